package middleware_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/middleware"
)

type routerKey int

// deliveredMessage is a message as a router hands it out: a cancellable context
// with the delivery in it, below what the router adds, and ten metadata keys.
func deliveredMessage(tb testing.TB) *message.Message {
	ctx, cancel := context.WithCancel(context.Background())
	tb.Cleanup(cancel)
	msg := message.NewMessageWithContext(ctx, "uuid", []byte("payload"))
	for i := range 10 {
		msg.Metadata.Set("key-"+strconv.Itoa(i), "value")
	}
	d := &middleware.Delivery{
		Queue: "orders", Arrived: time.Now(), Gone: make(chan struct{}), Closing: make(chan struct{}),
	}
	d.Attach(msg)
	for key := range routerKey(4) {
		msg.SetContext(context.WithValue(msg.Context(), key, "handler, subscriber and topic names"))
	}
	return msg
}

func succeeds(*message.Message) ([]*message.Message, error) { return nil, nil }

func newRetry(tb testing.TB, r middleware.Republisher, options ...middleware.Option) *middleware.DelayedRetry {
	tb.Helper()
	retry, err := middleware.NewDelayedRetry(r, backoff.List{time.Second, 10 * time.Second}, options...)
	if err != nil {
		tb.Fatal(err)
	}
	return retry
}

func TestSuccessPathAllocatesNothing(t *testing.T) {
	h := newRetry(t, unused{}).Middleware(succeeds)
	msg := deliveredMessage(t)
	if allocs := testing.AllocsPerRun(1000, func() { _, _ = h(msg) }); allocs != 0 {
		t.Errorf("%v allocations added to a handler that succeeds, want none", allocs)
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
			msg := deliveredMessage(b)
			b.ReportAllocs()
			for b.Loop() {
				_, _ = run.h(msg)
			}
		})
	}
}

// unused is a Republisher for messages that do not fail.
type unused struct{}

func (unused) Republish(context.Context, *message.Message, time.Duration, middleware.Notes) error {
	panic("nothing failed")
}

func (unused) DeadLetter(context.Context, *message.Message, middleware.Notes) error {
	panic("nothing failed")
}
