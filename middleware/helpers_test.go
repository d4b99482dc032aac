package middleware_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/middleware/middlewaretest"
)

var errBoom = errors.New("boom")

func failsWith(err error) message.HandlerFunc {
	return consumer(func(*message.Message) error { return err })
}

func newMessage(d middleware.Delivery) *message.Message {
	if d.Queue == "" {
		d.Queue = "orders"
	}
	return middlewaretest.NewMessage(d, []byte("payload"))
}

// handle lets one failing delivery of a fresh message through and returns the
// result of the middleware.
func handle(
	tb testing.TB, h message.HandlerFunc, options ...middleware.Option,
) middlewaretest.Call {
	tb.Helper()
	broker := newBroker()
	_, err := newRetry(tb, broker, options...).Middleware(h)(newMessage(delivery{}))
	require.NoError(tb, err)
	calls := broker.Calls()
	require.Len(tb, calls, 1)
	return calls[0]
}

// republishFunc is a Republisher that does the same for both methods.
type republishFunc func(ctx context.Context, msg *message.Message) error

func (f republishFunc) Republish(
	ctx context.Context, msg *message.Message, _ time.Duration, _ header.RetryState,
) (middleware.Republished, error) {
	return middleware.Republished{}, f(ctx, msg)
}

func (f republishFunc) DeadLetter(
	ctx context.Context, msg *message.Message, _ header.RetryState,
) error {
	return f(ctx, msg)
}

func closedChan() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// returns reports whether h returns. Else it ends its goroutine.
func returns(h message.HandlerFunc, msg *message.Message) (returned bool) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = h(msg)
		returned = true
	}()
	<-ended
	return returned
}

func wantErrors(tb testing.TB, got error, want ...error) {
	tb.Helper()
	for _, w := range want {
		assert.ErrorIs(tb, got, w)
	}
}

// Short names for the tables.
type (
	delivery = middleware.Delivery
	state    = header.RetryState
	options  = []middleware.Option
	selector = middleware.Selector
	event    = middleware.Event
)

const exhausted = header.ReasonExhausted

var (
	withLogger      = middleware.WithLogger
	withObserver    = middleware.WithObserver
	withClassifier  = middleware.WithClassifier
	policyFor       = middleware.WithPolicyFor
	permanentErrors = middleware.PermanentErrors
	retryableErrors = middleware.RetryableErrors
	permanentIf     = middleware.PermanentIf
	retryableIf     = middleware.RetryableIf
	withMaxAttempts = middleware.WithMaxAttempts
	withMaxAge      = middleware.WithMaxAge

	newBroker = middlewaretest.NewBroker
	consumer  = middlewaretest.Consumer
)

// acked has h handle msg, and the router would ack it.
func acked(tb testing.TB, h message.HandlerFunc, msg *message.Message) {
	tb.Helper()
	_, err := h(msg)
	require.NoError(tb, err)
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
