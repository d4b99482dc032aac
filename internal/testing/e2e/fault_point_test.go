package e2e_test

import (
	"fmt"
	"slices"

	"github.com/millpond-go/millpond/internal/testing/frame"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

// leg is a part of a failed message's way, on one connection.
type leg struct {
	name     string
	side     side
	dead     bool // it goes to the DLQ, not to a wait queue
	classic  bool // rather than quorum: the queues of ours
	vanished bool // the queue it goes to was deleted: returned, declared, published again
}

var legs = []leg{
	{name: "republish", side: publishing},
	{name: "dead-letter", side: publishing, dead: true},
	{name: "republish to a vanished queue", side: publishing, vanished: true},
	{name: "dead-letter to a vanished queue", side: publishing, dead: true, vanished: true},
	{name: "republish, classic", side: publishing, classic: true},
	{name: "consume and republish", side: consuming},
	{name: "consume and dead-letter", side: consuming, dead: true},
}

// faultPoint is a place between two frames of a leg, and what happens there.
type faultPoint struct {
	kind  testbroker.FaultKind
	index int  // of the frame in its leg
	after bool // the frame has passed; else it has come to the proxy and not passed
	frame string
	copies
}

// copies are how many more than one there must and may be.
type copies struct{ atLeast, atMost int }

func (p faultPoint) String() string {
	place := "before"
	if p.after {
		place = "after"
	}
	return fmt.Sprintf("%2d %s %s %s", p.index+1, place, p.frame, p.kind)
}

// allowed says it in words.
func (c copies) allowed() string {
	switch {
	case c.atMost == 0:
		return "none allowed"
	case c.atLeast == 0:
		return "outcome unknown: one allowed"
	default:
		return "outcome unknown: one expected"
	}
}

// points lists every place between two frames of a leg as it was recorded.
// Before a frame that answers the one before, the peer has acted on that one;
// right after the one before it may not have, so that is a place of its own.
func (l leg) points(frames []testbroker.Seen) []faultPoint {
	first := 0
	if l.vanished { // what comes before is the leg without
		first = slices.IndexFunc(frames, func(s testbroker.Seen) bool { return s.Method() == frame.BasicReturn })
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

func (l leg) point(frames []testbroker.Seen, i int, after bool, kind testbroker.FaultKind) faultPoint {
	p := faultPoint{kind: kind, index: i, after: after, frame: frames[i].String()}
	if l.side == publishing {
		p.copies = copiesOfPublish(frames, p)
	} else {
		p.copies = copiesOfDelivery(frames, p)
	}
	return p
}

// copiesOfPublish: a second copy is published where the first was sent and its
// outcome is unknown.
func copiesOfPublish(frames []testbroker.Seen, p faultPoint) copies {
	begin, stored, confirm := last(frames, frame.BasicPublish), lastBody(frames), last(frames, frame.BasicAck)
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
		return copies{0, 1} // the publish that answers this frame may pass before the fault takes effect
	case p.kind == testbroker.Frozen && p.index >= begin && p.index <= stored:
		return copies{0, 1} // sent by the client, and stored when the network thaws
	}
	return copies{0, 0} // never whole at the broker, or confirmed
}

// copiesOfDelivery: the broker delivers again what was not acked, and by then
// there may be a copy; what was handled is handled again.
func copiesOfDelivery(frames []testbroker.Seen, p faultPoint) copies {
	switch {
	case p.kind == testbroker.Frozen:
		return copies{0, 0} // late, and nothing else
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
