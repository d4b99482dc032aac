package topology_test

import (
	"encoding/binary"
	"fmt"
	"slices"
	"sync"

	"github.com/millpond-go/millpond/internal/testing/frame"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

// journal is what passed on the wire between one service and the broker: the
// connection it publishes on and the one it consumes on, in the order in which
// things happened. It injects one fault, and holds the order against the promise
// that nothing is acked before its copy is confirmed.
type journal struct {
	leg   leg
	point *faultPoint // nil: only watch

	mu      sync.Mutex
	proxies map[side]*testbroker.Proxy
	armed   bool
	frames  []testbroker.Seen // of the leg, since it was armed
	fired   bool
	thawed  func()

	publish    wirePlace            // of the one under way
	tags       map[wirePlace]uint64 // of the last one there
	returned   bool
	unanswered int // publishes the client has given up
	confirms   int
	acks       int
	handled    int
	excused    int      // acks of other messages
	early      []string // acks that came before their confirm
}

// wirePlace is where a publish is answered; zero for nowhere.
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

// look notes a frame and says what becomes of the connection there.
func (j *journal) look(s side, seen testbroker.Seen) testbroker.Fault {
	if seen.Kind() == frame.KindHeartbeat {
		return testbroker.Fault{}
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	var fault testbroker.Fault
	if j.armed && s == j.leg.side && !j.fired {
		if p := j.point; p != nil && p.index == len(j.frames) {
			j.fired = true
			fault = testbroker.Fault{Kind: p.kind, After: p.after}
		}
		j.frames = append(j.frames, seen)
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

// passed counts what the promise is about. j.mu is held.
func (j *journal) passed(s side, seen testbroker.Seen) {
	method, at := seen.Method(), wirePlace{seen.Connection, seen.Channel()}
	switch {
	case s == publishing && method == frame.BasicPublish:
		if j.publish != (wirePlace{}) {
			j.unanswered++
		}
		j.publish, j.returned = at, false
		j.tags[at]++
	case s == publishing && at == j.publish && method == frame.BasicReturn:
		j.returned = true
	case s == publishing && at == j.publish && (method == frame.BasicAck || method == frame.BasicNack):
		tag, multiple := binary.BigEndian.Uint64(seen.Args()), seen.Args()[8]&1 == 1
		if tag != j.tags[at] && !(multiple && tag > j.tags[at]) {
			break // of another one
		}
		if method == frame.BasicAck && !j.returned {
			j.confirms++
		}
		j.publish = wirePlace{}
	case s == consuming && seen.Up && method == frame.BasicAck:
		j.acks++
		if j.acks > j.confirms+j.handled+j.excused {
			j.early = append(j.early, fmt.Sprintf("ack %d after %d confirms and %d successes", j.acks, j.confirms, j.handled))
		}
	}
}

// success notes that the handler is about to return nil.
func (j *journal) success() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.handled++
}

// forget drops what was published so far: it went to a peer that stores nothing.
func (j *journal) forget() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.publish, j.unanswered, j.confirms = wirePlace{}, 0, 0
}

// excuse notes that an ack comes that has nothing to do with the message.
func (j *journal) excuse() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.excused++
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

// report is what the journal has seen so far.
type report struct {
	fired          bool
	unanswered     int
	confirms, acks int
	handled        int
	early          []string
	frames         []testbroker.Seen
}

func (j *journal) report() report {
	j.mu.Lock()
	defer j.mu.Unlock()
	return report{
		fired: j.fired, unanswered: j.unanswered, confirms: j.confirms, acks: j.acks, handled: j.handled,
		early: slices.Clone(j.early), frames: slices.Clone(j.frames),
	}
}
