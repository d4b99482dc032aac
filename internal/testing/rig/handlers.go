package rig

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/passage"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
)

// FailUntil returns a handler that fails before its nth call, and sends the attempt of each call.
func FailUntil(n int, attempts chan int) message.HandlerFunc {
	var calls atomic.Int32
	return func(msg *message.Message) ([]*message.Message, error) {
		attempts <- middleware.Attempt(msg.Context())
		if int(calls.Add(1)) < n {
			return nil, ErrFailed
		}
		return nil, nil
	}
}

// AwaitAttempts requires these attempts from the next calls of a handler.
func AwaitAttempts(t testing.TB, attempts chan int, want ...int) {
	t.Helper()
	for i, attempt := range want {
		select {
		case got := <-attempts:
			require.Equal(t, attempt, got, "call %d", i+1)
		case <-time.After(Patience):
			t.Fatalf("call %d of the handler did not come", i+1)
		}
	}
}

// Inside puts middlewares between DelayedRetry and a handler, the first outermost.
func Inside(h message.HandlerFunc, middlewares ...message.HandlerMiddleware) message.HandlerFunc {
	for i := len(middlewares) - 1; i >= 0; i-- {
		h = middlewares[i](h)
	}
	return h
}

// Arrival is a message as a handler received it.
type Arrival struct {
	At      time.Time
	Msg     *message.Message
	Attempt int
	Raw     amqp.Delivery
}

// Collect returns a handler that sends its messages to a channel and succeeds.
func Collect(arrivals chan Arrival) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		raw, _ := topology.Received(msg.Context())
		arrivals <- Arrival{time.Now(), msg, middleware.Attempt(msg.Context()), raw}
		return nil, nil
	}
}

// Await returns the next value of a channel, and fails the test if none comes.
func Await[T any](t testing.TB, values <-chan T) T {
	t.Helper()
	select {
	case v := <-values:
		return v
	case <-time.After(Patience):
		t.Fatal("nothing came on the channel")
		panic("not reached")
	}
}

// places bound the scenarios with up to a hundred handlers that run at once.
var places = make(chan struct{}, 4)

// Place waits until one of the four places for heavy scenarios is free; leave frees it again.
func Place() (leave func()) {
	places <- struct{}{}
	return func() { <-places }
}

// Timeline records the calls of a handler.
type Timeline struct {
	mu    sync.Mutex
	calls []time.Time
	came  []amqp.Delivery // by each call, empty without a message
}

// Add records a call and returns its number, 1-based.
func (l *Timeline) Add() int { return l.add(amqp.Delivery{}) }

// Record records the call for a message and returns its number, 1-based.
func (l *Timeline) Record(msg *message.Message) int {
	raw, _ := topology.Received(msg.Context())
	return l.add(raw)
}

func (l *Timeline) add(raw amqp.Delivery) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls, l.came = append(l.calls, time.Now()), append(l.came, raw)
	return len(l.calls)
}

// All returns the times of the calls, counted from the first one.
func (l *Timeline) All() []time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	offsets := make([]time.Duration, len(l.calls))
	for i, at := range l.calls {
		offsets[i] = at.Sub(l.calls[0])
	}
	return offsets
}

// Passed returns the wait queues that the message has passed before each call but the first, as
// names with a space between. See [passage.Queues].
func (l *Timeline) Passed() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	passed := make([]string, max(len(l.came)-1, 0))
	for i := range passed {
		passed[i] = strings.Join(passage.Queues(&l.came[i+1]), " ")
	}
	return passed
}

// Count returns the number of calls.
func (l *Timeline) Count() int { return len(l.All()) }

// Succeed is a Config.Handle that records the call and handles the message.
func (l *Timeline) Succeed(msg *message.Message) error {
	l.Record(msg)
	return nil
}

// AwaitPassed waits for a call after each of these wait queues, named as Passed names them. It
// fails the test at the first other one.
func (l *Timeline) AwaitPassed(t testing.TB, want ...string) {
	t.Helper()
	var passed []string
	WaitFor(t, fmt.Sprintf("%d calls", len(want)+1), func() bool {
		passed = l.Passed()
		n := min(len(passed), len(want))
		return l.Count() > len(want) || !slices.Equal(passed[:n], want[:n])
	})
	require.Equal(t, want, passed)
}

// RequireNotEarly requires that the calls are these delays apart, and no gap shorter by more than
// Grace. A gap may be longer: see Passed and RequireGaps.
func (l *Timeline) RequireNotEarly(t testing.TB, delays ...time.Duration) {
	t.Helper()
	calls := l.All()
	require.Len(t, calls, len(delays)+1, "calls at %v, by %q", calls, l.Passed())
	t.Logf("calls at %v", calls)
	for i, d := range delays {
		require.GreaterOrEqual(t, calls[i+1]-calls[i], d-Grace, "delay %d, calls at %v", i+1, calls)
	}
}

// RequireGaps requires these delays between the calls, which were recorded with their messages. It
// does not measure how long a message waits at most: the message has passed wait queues of the plan
// that keep it for the delay exactly. See [passage.Waited].
func (l *Timeline) RequireGaps(t testing.TB, plan topology.Plan, delays ...time.Duration) {
	t.Helper()
	l.RequireNotEarly(t, delays...)
	for i, d := range delays {
		waited, err := passage.Waited(plan, &l.came[i+1])
		require.NoError(t, err, "delay %d", i+1)
		require.Equal(t, d, waited, "delay %d", i+1)
	}
}

// Calls counts the calls of handlers, by message, and the handlers that run at once.
type Calls struct {
	mu            sync.Mutex
	running, most int
	calls         map[string]int
}

// NewCalls returns Calls that have counted nothing.
func NewCalls() *Calls { return &Calls{calls: map[string]int{}} }

// Enter counts the begin of a call for a message; leave counts its end.
func (c *Calls) Enter(body string) (leave func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running++
	c.most = max(c.most, c.running)
	c.calls[body]++
	return func() { c.mu.Lock(); defer c.mu.Unlock(); c.running-- }
}

// Handle counts a call that is over.
func (c *Calls) Handle(body string) { c.Enter(body)() }

// Now returns the number of handlers that run.
func (c *Calls) Now() int { c.mu.Lock(); defer c.mu.Unlock(); return c.running }

// Peak returns the largest number of handlers that ran at once.
func (c *Calls) Peak() int { c.mu.Lock(); defer c.mu.Unlock(); return c.most }

// Of returns the number of calls for a message.
func (c *Calls) Of(body string) int { c.mu.Lock(); defer c.mu.Unlock(); return c.calls[body] }

// Count returns the number of messages that had a call.
func (c *Calls) Count() int { c.mu.Lock(); defer c.mu.Unlock(); return len(c.calls) }

// Total returns the number of all calls.
func (c *Calls) Total() (total int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.calls {
		total += n
	}
	return total
}

// Fail is a Config.Handle that fails every message.
func Fail(*message.Message) error { return ErrFailed }

// Succeed is a Config.Handle that handles every message.
func Succeed(*message.Message) error { return nil }

// FailFirst is a Config.Handle that fails the first attempt of every message.
func FailFirst(msg *message.Message) error {
	if middleware.Attempt(msg.Context()) == 1 {
		return ErrFailed
	}
	return nil
}

// Fail is a Config.Handle that records the call and fails.
func (l *Timeline) Fail(msg *message.Message) error {
	l.Record(msg)
	return ErrFailed
}

// FailFirst is a Config.Handle that fails the first attempt of every message. It records the other
// attempts.
func (l *Timeline) FailFirst(msg *message.Message) error {
	err := FailFirst(msg)
	if err == nil {
		l.Record(msg)
	}
	return err
}

// FailUntil returns a Config.Handle that records the call and fails before the nth call.
func (l *Timeline) FailUntil(n int) func(*message.Message) error {
	return func(msg *message.Message) error {
		if l.Record(msg) < n {
			return ErrFailed
		}
		return nil
	}
}
