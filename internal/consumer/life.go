package consumer

import "sync/atomic"

// life is how far a delivery has come: its phase, which only goes on, and its copy, as far as that
// is known. They are two, because a handler may call Republish itself while it runs, and because a
// message that its queue keeps may still be copied. The package comment has the transitions.
//
// A handler that acks its message and then calls Republish does that beside the goroutine that
// settles the delivery. So both are one value, and once the delivery is settled it stays.
type life struct{ both atomic.Uint32 }

type phase uint32

const (
	arrived  phase = iota // no function of the user has it
	decoding              // the marshaler runs
	handling              // the router or a handler has it
	deciding              // the Subscription hands it over, after the handler or without it
	acked
	rejected // its queue keeps the message
	back     // the broker has it again, or gets it back
	left     // the marshaler still runs, and the delivery has ended without it
)

type copied uint32

const (
	none   copied = iota // no copy is known
	open                 // its outcome is not known
	stored               // the broker has confirmed it
	kept                 // there is none: the queue keeps the message if the delivery is rejected
)

// packed is both values in one.
func packed(p phase, c copied) uint32 { return uint32(p)<<2 | uint32(c) }

func (l *life) load() (uint32, phase, copied) {
	v := l.both.Load()
	return v, phase(v >> 2), copied(v & 3)
}

func (l *life) phase() phase {
	_, p, _ := l.load()
	return p
}

func (l *life) copy() copied {
	_, _, c := l.load()
	return c
}

// enter begins a phase before the delivery is settled.
func (l *life) enter(p phase) {
	for {
		if v, _, c := l.load(); l.both.CompareAndSwap(v, packed(p, c)) {
			return
		}
	}
}

// endDecoding ends the phase of the marshaler. It is false if another goroutine has ended it.
func (l *life) endDecoding(next phase) bool {
	v, p, c := l.load()
	return p == decoding && l.both.CompareAndSwap(v, packed(next, c))
}

// know notes what became of the copy, unless the delivery is settled.
func (l *life) know(c copied) bool {
	for {
		v, p, _ := l.load()
		if p >= acked {
			return false
		}
		if l.both.CompareAndSwap(v, packed(p, c)) {
			return true
		}
	}
}

// settle ends the delivery by an ack, or by a reject if its queue keeps the message.
func (l *life) settle() phase {
	for {
		v, _, c := l.load()
		end := acked
		if c == kept {
			end = rejected
		}
		if l.both.CompareAndSwap(v, packed(end, c)) {
			return end
		}
	}
}
