package consumer

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// ackDelay is how long an ack may wait for others while deliveries wait for their handlers.
const ackDelay = time.Millisecond

// maxAcks is the most acks that wait for others.
const maxAcks = 64

// acks sends the acks of one channel: one ack for a run of deliveries from the oldest on that
// are all to be acked. Each ack costs a system call, and a quorum queue writes it to its log.
type acks struct {
	// send acks the delivery, and with multiple all open deliveries before it.
	send func(tag uint64, multiple bool) error
	// most is how many acks may wait for others.
	most int
	// backlog is how many deliveries wait for their handlers.
	backlog atomic.Int32

	mu       sync.Mutex
	open     []openTag // in the order of the tags, and some that have ended
	ended    int       // of open
	wanted   []uint64  // to be acked
	spare    []uint64  // the memory of the last wanted
	flushing bool      // a goroutine calls flush in a moment
	late     *time.Timer
}

// openTag is a delivery that the broker has not seen settled.
type openTag struct {
	tag    uint64
	wanted bool // to be acked
	ended  bool
}

// arrived notes a delivery. The tags of a channel ascend.
func (a *acks) arrived(tag uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.open) > 32 && a.ended > len(a.open)/2 {
		a.open = slices.DeleteFunc(a.open, func(o openTag) bool { return o.ended })
		a.ended = 0
	}
	a.open = append(a.open, openTag{tag: tag})
}

// last returns the last delivery that has arrived, 0 for none, and reports whether all are settled.
func (a *acks) last() (tag uint64, settled bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.open) > 0 {
		tag = a.open[len(a.open)-1].tag
	}
	return tag, a.ended == len(a.open)
}

// nacked notes a delivery that was given back. A later ack may cover its tag, so its nack must
// have been written before.
func (a *acks) nacked(tag uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if i, ok := a.find(tag); ok {
		a.end(i)
	}
}

// want notes that a delivery is to be acked, and reports whether the caller must flush. If not,
// another goroutine does, or flushLate does within ackDelay.
func (a *acks) want(tag uint64, flushLate func()) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if i, ok := a.find(tag); ok {
		a.open[i].wanted = true
	}
	a.wanted = append(a.wanted, tag)
	switch {
	case a.flushing:
		return false
	case a.backlog.Load() == 0 || len(a.wanted) >= a.most:
		a.flushing = true
		return true
	case len(a.wanted) > 1: // the timer runs
	case a.late == nil:
		a.late = time.AfterFunc(ackDelay, flushLate)
	default:
		a.late.Reset(ackDelay)
	}
	return false
}

// flush writes the acks that are wanted.
func (a *acks) flush() (err error) {
	a.mu.Lock()
	wanted := a.wanted
	a.wanted, a.spare, a.flushing = a.spare[:0], nil, false
	last, run := a.run()
	for _, tag := range wanted {
		if i, ok := a.find(tag); ok {
			a.end(i)
		}
	}
	// Written under the lock: a delivery after the run must not be acked before it.
	if run > 1 {
		err = a.send(last, true)
	}
	for _, tag := range wanted {
		if run <= 1 || tag > last {
			if failed := a.send(tag, false); failed != nil {
				err = failed
			}
		}
	}
	a.spare = wanted
	a.mu.Unlock()
	return err
}

// run returns the last delivery of the run from the oldest open one on that is wanted, and the
// length of the run. a.mu is held.
func (a *acks) run() (last uint64, n int) {
	for _, o := range a.open {
		switch {
		case o.ended:
		case !o.wanted:
			return last, n
		default:
			last, n = o.tag, n+1
		}
	}
	return last, n
}

// find returns the place of an open delivery. a.mu is held.
func (a *acks) find(tag uint64) (int, bool) {
	i, ok := slices.BinarySearchFunc(a.open, tag, func(o openTag, tag uint64) int {
		return cmp.Compare(o.tag, tag)
	})
	return i, ok && !a.open[i].ended
}

// end ends an open delivery. a.mu is held.
func (a *acks) end(i int) {
	a.open[i].ended = true
	a.ended++
}
