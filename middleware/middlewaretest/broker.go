package middlewaretest

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
)

// ErrRefused is what a Broker answers while it is told to fail without an error
// being named.
var ErrRefused = errors.New("publish refused")

// Call is one call of a Broker's Republish or DeadLetter.
type Call struct {
	// Message is the one that was handed over.
	Message *message.Message
	// Queue it was delivered from; empty if the Broker does not know.
	Queue string
	// Delay asked for; zero for a dead letter.
	Delay time.Duration
	// Notes to travel with it. Notes.Reason is set for a dead letter only.
	Notes header.RetryState
	// Dead is true for DeadLetter.
	Dead bool
	// SetAside is true for a Republish that middleware.Snooze asked for: the notes
	// have no failure more than before.
	SetAside bool
	// Err is what the Broker answered; nil means confirmed.
	Err error
}

// Broker is a middleware.Republisher that confirms everything it is given and
// records it. It is safe for use by many goroutines at once; one Broker may run
// many messages.
type Broker struct {
	mu       sync.Mutex
	calls    []Call
	failing  []error
	inFlight map[*message.Message]*inFlight
}

// inFlight is a message that Run has delivered.
type inFlight struct {
	confirmed *Call
}

// NewBroker returns a Broker that has recorded nothing.
func NewBroker() *Broker {
	return &Broker{inFlight: map[*message.Message]*inFlight{}}
}

// FailNext lets the next times calls fail with err, or with ErrRefused if err is
// nil. Several FailNext follow one another. The middleware holds the message and
// tries again after half a second, then after a second and so on: run such a
// test in a bubble of testing/synctest, in which pauses take no time, or use
// middleware.ErrNotDelivered, after which it does not try again.
func (b *Broker) FailNext(times int, err error) {
	if err == nil {
		err = ErrRefused
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failing = append(b.failing, slices.Repeat([]error{err}, max(times, 0))...)
}

// Calls returns a copy of what was recorded so far, also the calls that failed.
func (b *Broker) Calls() []Call {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.calls)
}

// DeadLetters returns the confirmed dead letters so far.
func (b *Broker) DeadLetters() []Call {
	return slices.DeleteFunc(b.Calls(), func(c Call) bool { return !c.Dead || c.Err != nil })
}

var _ middleware.Republisher = (*Broker)(nil)

// Republish records the call.
func (b *Broker) Republish(
	ctx context.Context, msg *message.Message, delay time.Duration, notes header.RetryState,
) (middleware.Republished, error) {
	err := b.record(ctx, Call{Message: msg, Delay: delay, Notes: notes, SetAside: notes.Snoozed > 0})
	return middleware.Republished{}, err
}

// DeadLetter records the call.
func (b *Broker) DeadLetter(ctx context.Context, msg *message.Message, notes header.RetryState) error {
	return b.record(ctx, Call{Message: msg, Notes: notes, Dead: true})
}

func (b *Broker) record(ctx context.Context, c Call) error {
	if d := middleware.DeliveryOf(ctx, c.Message); d != nil {
		c.Queue = d.Queue
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.failing) > 0 {
		c.Err, b.failing = b.failing[0], b.failing[1:]
	}
	b.calls = append(b.calls, c)
	if flying := b.inFlight[c.Message]; flying != nil && c.Err == nil {
		flying.confirmed = &c
	}
	return c.Err
}
