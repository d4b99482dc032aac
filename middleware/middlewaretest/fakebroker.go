package middlewaretest

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millpond-go/millpond/internal/attached"
	"github.com/millpond-go/millpond/internal/ladder"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
)

// ErrRefused is the error of a Broker that FailNext tells to fail without naming an
// error.
var ErrRefused = errors.New("publish refused")

// Call is one call of a Broker's Republish or DeadLetter.
type Call struct {
	// Message is the message that was handed over.
	Message *message.Message
	// Queue is the queue it was delivered from; empty if the Broker does not know.
	Queue string
	// Delay is the delay that the middleware asked for; zero for a dead letter.
	Delay time.Duration
	// Given is the delay that the wait queues give for Delay: see Broker.Given.
	Given time.Duration
	// State travels with the message. State.Reason is set only for a dead letter.
	State header.RetryState
	// Dead is true for DeadLetter.
	Dead bool
	// Snoozed is true for a Republish that middleware.Snooze asked for. It adds no
	// failure to State.
	Snoozed bool
	// Err is the result of the call; nil means confirmed.
	Err error
}

// Broker is a middleware.Republisher that confirms and records every call. It is
// safe for use by many goroutines at once. One Broker may run many messages.
type Broker struct {
	// Given returns the delay that the wait queues give when the middleware asks for
	// a delay, as a plan of package topology does: see [WaitSteps]. A result shorter
	// than asked counts as asked. Set it before the first Run. Many goroutines call it
	// at once.
	//
	// Default: the delay asked for.
	Given func(asked time.Duration) time.Duration
	// Sleep is called for each delay. Set it to time.Sleep in a bubble of testing/synctest: there the
	// delay takes no time, and every clock of the test moves with it, also Failure.Now. Set it before
	// the first Run.
	//
	// Default: a delay passes at once, and the times that the message carries are set back by it.
	Sleep func(time.Duration)

	mu       sync.Mutex
	calls    []Call
	failing  []error
	inFlight map[*message.Message]*inFlight
}

var _ middleware.Republisher = (*Broker)(nil)

// inFlight is a message that Run has delivered.
type inFlight struct{ confirmed *Call }

// NewBroker returns a Broker that has recorded nothing.
func NewBroker() *Broker { return &Broker{inFlight: map[*message.Message]*inFlight{}} }

// WaitSteps returns a function for Broker.Given that knows wait queues with these
// delays, in any order. topology.Plan lists the delays of a strategy in WaitSteps,
// which may be more than the policy has.
//
// A message waits on the shortest wait step that is not shorter than the delay asked
// for, unless it would come more than a quarter of the delay and more than a second
// late. Then it waits in rounds on shorter steps, and a delay longer than all steps
// begins with rounds on the longest. Without wait steps every delay is given as asked.
func WaitSteps(delays ...time.Duration) func(asked time.Duration) time.Duration {
	steps := slices.DeleteFunc(slices.Sorted(slices.Values(delays)),
		func(d time.Duration) bool { return d <= 0 })
	steps = slices.Compact(steps)
	return func(asked time.Duration) time.Duration { return ladder.Total(steps, asked) }
}

// FailNext lets the next calls fail with err, or with [ErrRefused] if err is nil, as
// many as times. Several FailNext follow one another.
//
// The middleware holds the message and tries again after half a second, then after
// a second and so on. Run such a test in a bubble of testing/synctest, in which
// pauses take no time, or use middleware.ErrNotDelivered, after which the middleware
// does not try again.
func (b *Broker) FailNext(times int, err error) {
	if err == nil {
		err = ErrRefused
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failing = append(b.failing, slices.Repeat([]error{err}, max(times, 0))...)
}

// Calls returns a copy of all calls so far, failed ones too.
func (b *Broker) Calls() []Call {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.calls)
}

// DeadLetters returns the confirmed dead letters so far.
func (b *Broker) DeadLetters() []Call {
	return slices.DeleteFunc(b.Calls(), func(c Call) bool { return !c.Dead || c.Err != nil })
}

// Republish records the call.
func (b *Broker) Republish(
	ctx context.Context, msg *message.Message, delay time.Duration, state header.RetryState,
) (middleware.Republished, error) {
	call := Call{
		Message: msg, Delay: delay, Given: b.given(delay), State: state, Snoozed: state.Snoozed > 0,
	}
	return middleware.Republished{Delay: call.Given}, b.record(ctx, call)
}

// DeadLetter records the call.
func (b *Broker) DeadLetter(
	ctx context.Context, msg *message.Message, state header.RetryState,
) error {
	return b.record(ctx, Call{Message: msg, State: state, Dead: true})
}

func (b *Broker) given(asked time.Duration) time.Duration {
	if b.Given == nil {
		return asked
	}
	return max(b.Given(asked), asked)
}

func (b *Broker) record(ctx context.Context, c Call) error {
	if d := attached.Of(ctx, c.Message); d != nil {
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
