package e2e_test

import (
	"encoding/binary"
	"fmt"
	"slices"
	"sync"

	"github.com/millpond-go/millpond/internal/testing/frame"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

// leg is a part of the way of a failed message, on one connection.
type leg struct {
	name     string
	side     side
	dead     bool // it goes to the DLQ, not to a wait queue
	vanished bool // its queue was deleted: basic.return, declare, publish again
	atOnce   bool // straight to the tail of its queue
}

var legs = []leg{
	{name: "republish", side: publishing},
	{name: "dead-letter", side: publishing, dead: true},
	{name: "republish to a vanished queue", side: publishing, vanished: true},
	{name: "dead-letter to a vanished queue", side: publishing, dead: true, vanished: true},
	{name: "republish at once", side: publishing, atOnce: true},
	{name: "consume and republish", side: consuming},
	{name: "consume and dead-letter", side: consuming, dead: true},
}

// faultPoint is a place between two frames of a leg, and a fault there.
type faultPoint struct {
	kind  testbroker.FaultKind
	index int  // of the frame in its leg
	after bool // the frame has passed; else it has reached the proxy only
	frame string
	copies
}

// copies are the numbers of extra copies that there must and may be.
type copies struct{ atLeast, atMost int }

func (p faultPoint) String() string {
	place := "before"
	if p.after {
		place = "after"
	}
	return fmt.Sprintf("%2d %s %s %s", p.index+1, place, p.frame, p.kind)
}

// points lists every place between two frames of a recorded leg. Before an answer, the peer has
// acted on the frame that it answers. Right after that frame the peer may not have acted, so that
// is another place.
func (l leg) points(frames []testbroker.Seen) []faultPoint {
	first := 0
	if l.vanished { // the frames before belong to the leg without
		first = slices.IndexFunc(frames, func(s testbroker.Seen) bool {
			return s.Method() == frame.BasicReturn
		})
	}
	var points []faultPoint
	for i := first; i < len(frames); i++ {
		for _, kind := range []testbroker.FaultKind{testbroker.FIN, testbroker.RST, testbroker.Frozen} {
			points = append(points, l.point(frames, i, false, kind))
			if i == len(frames)-1 || frames[i].Up != frames[i+1].Up {
				points = append(points, l.point(frames, i, true, kind))
			}
		}
	}
	return points
}

func (l leg) point(
	frames []testbroker.Seen, i int, after bool, kind testbroker.FaultKind,
) faultPoint {
	p := faultPoint{kind: kind, index: i, after: after, frame: frames[i].String()}
	if l.side == publishing {
		p.copies = copiesOfPublish(frames, p)
	} else {
		p.copies = copiesOfDelivery(frames, p)
	}
	return p
}

// copiesOfPublish returns the extra copies of a publish with a fault. A second copy is published if
// the first copy was sent and its outcome is unknown.
func copiesOfPublish(frames []testbroker.Seen, p faultPoint) copies {
	begin, confirm := last(frames, frame.BasicPublish), last(frames, frame.BasicAck)
	stored := lastBody(frames)
	switch {
	case p.index == confirm && !p.after && p.kind == testbroker.Frozen:
		return copies{0, 1} // awaited, unless the connection is given up before it comes
	case p.index == confirm && !p.after:
		return copies{1, 1} // the broker has stored it, the client will never know
	case p.index == confirm && p.kind == testbroker.RST:
		return copies{0, 1} // a reset may overtake the confirm
	case p.index == stored && p.after:
		return copies{0, 1}
	case p.index == begin-1 && p.after:
		return copies{0, 1} // the next publish may pass before the fault takes effect
	case p.kind == testbroker.Frozen && p.index >= begin && p.index <= stored:
		return copies{0, 1} // sent by the client, and stored when the network thaws
	}
	return copies{0, 0} // never whole at the broker, or confirmed
}

// copiesOfDelivery returns the extra copies of a delivery with a fault. The broker delivers an
// unacked message again, and by then there may be a copy. A handled message is handled again.
func copiesOfDelivery(frames []testbroker.Seen, p faultPoint) copies {
	switch {
	case p.kind == testbroker.Frozen:
		return copies{0, 0} // only late
	case frames[p.index].Method() == frame.BasicAck && !p.after:
		return copies{1, 1}
	case p.after: // an ack, or the end of a delivery
		return copies{0, 1}
	}
	return copies{0, 0}
}

func last(frames []testbroker.Seen, method frame.Method) int {
	for i := len(frames) - 1; i >= 0; i-- {
		if frames[i].Method() == method {
			return i
		}
	}
	return -1
}

func lastBody(frames []testbroker.Seen) int {
	for i := len(frames) - 1; i >= 0; i-- {
		if frames[i].Kind() == frame.KindBody && frames[i].Up {
			return i
		}
	}
	return -1
}

// journal records the frames between one service and the broker, on the connection that publishes
// and on the connection that consumes, in their order. It injects one fault. It checks the promise
// that nothing is acked before its copy is confirmed.
type journal struct {
	leg   leg
	point *faultPoint // nil: only watch

	mu      sync.Mutex
	proxies map[side]*testbroker.Proxy
	armed   bool
	thawed  func()
	seen    report

	publish  wirePlace            // of the publish under way
	tags     map[wirePlace]uint64 // of the last publish there
	returned bool
	open     map[wirePlace][]uint64 // deliveries that are not settled
}

// report is the content of a journal so far.
type report struct {
	fired    bool
	confirms int
	acks     int // deliveries that were acked
	handled  int
	early    []string          // acks that came before their confirm
	frames   []testbroker.Seen // of the leg, since it was armed
}

// wirePlace is the channel that gets the answer to a publish; zero means none.
type wirePlace struct {
	connection int
	channel    uint16
}

// side is one of the two connections of a service.
type side string

const (
	publishing side = "publishing"
	consuming  side = "consuming"
)

// watch makes the journal see a connection.
func (j *journal) watch(s side, proxy *testbroker.Proxy) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.proxies == nil {
		j.proxies, j.tags = map[side]*testbroker.Proxy{}, map[wirePlace]uint64{}
		j.open = map[wirePlace][]uint64{}
	}
	j.proxies[s] = proxy
	proxy.Tap(func(seen testbroker.Seen) testbroker.Fault { return j.look(s, seen) })
}

// arm begins to count frames.
func (j *journal) arm() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.armed = true
}

// look records a frame and returns the fault of the connection there.
func (j *journal) look(s side, seen testbroker.Seen) testbroker.Fault {
	if seen.Kind() == frame.KindHeartbeat {
		return testbroker.Fault{}
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	var fault testbroker.Fault
	if j.armed && s == j.leg.side && !j.seen.fired {
		if p := j.point; p != nil && p.index == len(j.seen.frames) {
			j.seen.fired = true
			fault = testbroker.Fault{Kind: p.kind, After: p.after}
		}
		j.seen.frames = append(j.seen.frames, seen)
	}
	passes := func() { j.passed(s, seen) }
	switch {
	case fault.Kind == testbroker.Frozen && !fault.After:
		j.thawed = passes
	case fault.Kind == testbroker.NoFault || fault.After:
		passes()
	}
	return fault
}

// passed counts the frames that the promise is about. j.mu is held.
func (j *journal) passed(s side, seen testbroker.Seen) {
	method, at := seen.Method(), wirePlace{seen.Connection, seen.Channel()}
	switch {
	case s == publishing && method == frame.BasicPublish:
		j.publish, j.returned = at, false
		j.tags[at]++
	case s == publishing && at == j.publish && method == frame.BasicReturn:
		j.returned = true
	case s == publishing && at == j.publish && (method == frame.BasicAck || method == frame.BasicNack):
		tag, multiple := binary.BigEndian.Uint64(seen.Args()), seen.Args()[8]&1 == 1
		if tag != j.tags[at] && !(multiple && tag > j.tags[at]) {
			break // of another publish
		}
		if method == frame.BasicAck && !j.returned {
			j.seen.confirms++
		}
		j.publish = wirePlace{}
	case s == consuming && method == frame.BasicDeliver:
		_, rest := frame.TakeShort(seen.Args())
		j.open[at] = append(j.open[at], binary.BigEndian.Uint64(rest))
	case s == consuming && seen.Up && method == frame.BasicNack:
		j.settled(at, seen)
	case s == consuming && seen.Up && method == frame.BasicAck:
		j.seen.acks += j.settled(at, seen)
		if j.seen.acks > j.seen.confirms+j.seen.handled {
			j.seen.early = append(j.seen.early, fmt.Sprintf("ack %d after %d confirms and %d successes",
				j.seen.acks, j.seen.confirms, j.seen.handled))
		}
	}
}

// settled ends the deliveries that an ack or a nack names, and returns their number. j.mu is held.
func (j *journal) settled(at wirePlace, seen testbroker.Seen) int {
	tag, multiple := binary.BigEndian.Uint64(seen.Args()), seen.Args()[8]&1 == 1
	before := len(j.open[at])
	j.open[at] = slices.DeleteFunc(j.open[at], func(open uint64) bool {
		return open == tag || multiple && open < tag
	})
	return before - len(j.open[at])
}

// handled counts a message right before the handler returns nil.
func (j *journal) handled() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.seen.handled++
}

// heal ends a freeze.
func (j *journal) heal() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.thawed != nil {
		j.thawed()
		j.thawed = nil
	}
	j.proxies[j.leg.side].Freeze(false)
}

func (j *journal) report() report {
	j.mu.Lock()
	defer j.mu.Unlock()
	now := j.seen
	now.early, now.frames = slices.Clone(j.seen.early), slices.Clone(j.seen.frames)
	return now
}
