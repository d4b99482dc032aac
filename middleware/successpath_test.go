package middleware_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
)

type routerKey int

// deliveredMessage is a message as a router hands it out: a cancellable context
// with the delivery in it, below the values of the router, and ten metadata keys.
func deliveredMessage(tb testing.TB, notes header.RetryState) *message.Message {
	ctx, cancel := context.WithCancel(context.Background())
	tb.Cleanup(cancel)
	msg := message.NewMessageWithContext(ctx, "uuid", []byte("payload"))
	for i := range 10 {
		msg.Metadata.Set("key-"+strconv.Itoa(i), "value")
	}
	d := &middleware.Attached{Delivery: delivery{
		Queue: "orders", Arrived: time.Now(), Gone: ctx.Done(), Closing: make(
			chan struct{},
		), State: notes,
	}}
	d.Attach(msg)
	for key := range routerKey(4) {
		msg.SetContext(context.WithValue(msg.Context(), key, "handler, subscriber and topic names"))
	}
	return msg
}

func succeeds(*message.Message) ([]*message.Message, error) { return nil, nil }

func newRetry(
	tb testing.TB, r middleware.Republisher, options ...middleware.Option,
) *middleware.DelayedRetry {
	tb.Helper()
	retry, err := middleware.NewDelayedRetry(
		r, backoff.List{time.Second, 10 * time.Second}, options...,
	)
	require.NoError(tb, err)
	return retry
}

// everything is a DelayedRetry with all that might get in the way of a success.
func everything(tb testing.TB) *middleware.DelayedRetry {
	return newRetry(tb, unused{},
		withClassifier(middleware.NetworkErrors()),
		withMaxAttempts(9), withMaxAge(time.Hour), middleware.WithSnoozeLimit(time.Hour),
		policyFor(selector{Handler: "billing", Error: middleware.NetworkErrors()}, backoff.List{1, 2}),
		policyFor(selector{Queue: "orders"}, backoff.List{1, 2, 3}),
		middleware.WithKeptMetadata("key-1", "key-2"),
		middleware.WithDeadLetterHook(func(context.Context, middleware.DeadLetter) {}),
	)
}

// States of a message that has failed once. The second one also expires, so the clock is asked.
var (
	second   = state{Failures: 1, FirstSeen: time.Now()}
	expiring = state{Failures: 1, FirstSeen: time.Now(), Deadline: time.Now().Add(24 * time.Hour)}
)

func TestSuccessPathAllocatesNothing(t *testing.T) {
	for name, run := range map[string]struct {
		retry *middleware.DelayedRetry
		notes header.RetryState
	}{
		"first delivery":               {newRetry(t, unused{}), state{}},
		"first delivery, all options":  {everything(t), state{}},
		"second delivery":              {newRetry(t, unused{}), second},
		"second delivery, all options": {everything(t), expiring},
	} {
		h := run.retry.Middleware(succeeds)
		msg := deliveredMessage(t, run.notes)
		assert.Zero(t, testing.AllocsPerRun(1000, func() { _, _ = h(msg) }), name)
	}
}

func BenchmarkSuccess(b *testing.B) {
	for _, run := range []struct {
		name string
		h    message.HandlerFunc
	}{
		{"handler alone", succeeds},
		{"watermill Recoverer", wmiddleware.Recoverer(succeeds)},
		{"millpond DelayedRetry", newRetry(b, unused{}).Middleware(succeeds)},
	} {
		b.Run(run.name, func(b *testing.B) {
			msg := deliveredMessage(b, state{})
			b.ReportAllocs()
			for b.Loop() {
				_, _ = run.h(msg)
			}
		})
	}
}

// Apart from BenchmarkSuccess, in which each further middleware would change the code that
// the compiler makes for the others.
func BenchmarkSuccessWithMore(b *testing.B) {
	for _, run := range []struct {
		name  string
		retry *middleware.DelayedRetry
		notes header.RetryState
	}{
		{"all options", everything(b), state{}},
		{"second delivery", newRetry(b, unused{}), second},
		{"second delivery, all options", everything(b), expiring},
		{"an observer", newRetry(b, unused{}, withObserver(ignore)), state{}},
	} {
		b.Run(run.name, func(b *testing.B) {
			h, msg := run.retry.Middleware(succeeds), deliveredMessage(b, run.notes)
			b.ReportAllocs()
			for b.Loop() {
				_, _ = h(msg)
			}
		})
	}
}

var ignore = middleware.ObserverFunc(func(context.Context, event) {})

// unused is a Republisher for messages that do not fail.
type unused struct{}

func (unused) Republish(
	context.Context, *message.Message, time.Duration, header.RetryState,
) (middleware.Republished, error) {
	panic("nothing failed")
}

func (unused) DeadLetter(context.Context, *message.Message, header.RetryState) error {
	panic("nothing failed")
}
