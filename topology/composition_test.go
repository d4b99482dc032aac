package topology_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	cenkalti "github.com/cenkalti/backoff/v5"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
)

// inside puts middlewares between DelayedRetry and a handler, the first outermost.
func inside(h message.HandlerFunc, middlewares ...message.HandlerMiddleware) message.HandlerFunc {
	for i := len(middlewares) - 1; i >= 0; i-- {
		h = middlewares[i](h)
	}
	return h
}

// failUntil is a handler that fails before its nth call, and notes the attempts.
func failUntil(n int, attempts chan int) message.HandlerFunc {
	var calls atomic.Int32
	return func(msg *message.Message) ([]*message.Message, error) {
		attempts <- middleware.Attempt(msg.Context())
		if int(calls.Add(1)) < n {
			return nil, errFailed
		}
		return nil, nil
	}
}

// awaitAttempts requires the next calls of a handler to have been these attempts.
func awaitAttempts(t testing.TB, attempts chan int, want ...int) {
	t.Helper()
	for i, attempt := range want {
		select {
		case got := <-attempts:
			require.Equal(t, attempt, got, "call %d", i+1)
		case <-time.After(patience):
			t.Fatalf("call %d of the handler has not come", i+1)
		}
	}
}

// requireNothingLeft requires a service that is stopped to have left nothing in its
// queue, and so many dead letters.
func requireNothingLeft(t testing.TB, r *rig, dead int) {
	t.Helper()
	r.stop()
	require.Equal(t, 0, testbroker.Depth(t, r.url, r.queue), "messages left in the queue")
	require.Equal(t, dead, testbroker.Depth(t, r.url, r.queue+".dlq"), "dead letters")
}

func quickly(retries int) backoff.Policy {
	return backoff.Constant{Interval: 100 * time.Millisecond, Retries: retries}
}

// A panic is retried wherever Recoverer stands, and its stack goes nowhere.
func TestComposedWithRecoverer(t *testing.T) {
	t.Parallel()
	panics := func(*message.Message) ([]*message.Message, error) { panic("no stock") }
	for name, rc := range map[string]rigConfig{
		"inside":  {handler: inside(panics, wmiddleware.Recoverer)},
		"outside": {handler: panics, outer: []message.HandlerMiddleware{wmiddleware.Recoverer}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rc.policy = quickly(1)
			r := newRig(t, rc)
			r.publish(amqp.Publishing{Body: []byte("order")})
			dead := take(t, r.url, r.queue+".dlq")
			require.Equal(t, "2", dead.Headers[header.DeadFailures])
			require.Contains(t, dead.Headers[header.DeadError], "no stock")
			require.NotContains(t, dead.Headers[header.DeadError], "goroutine")
		})
	}
}

// A Timeout inside replaces the context of the message and ends it: that is a
// failure as any other, and no interruption.
func TestComposedWithTimeout(t *testing.T) {
	t.Parallel()
	attempts := make(chan int, 10)
	slow := func(msg *message.Message) ([]*message.Message, error) {
		attempts <- middleware.Attempt(msg.Context())
		<-msg.Context().Done()
		return nil, msg.Context().Err()
	}
	r := newRig(t, rigConfig{
		policy: quickly(1), handler: inside(slow, wmiddleware.Timeout(50*time.Millisecond)),
		options: []middleware.Option{middleware.WithDefaultClass(header.ClassPermanent), middleware.WithClassifier(middleware.RetryableErrors(context.DeadlineExceeded))},
	})
	r.publish(amqp.Publishing{Body: []byte("order")})
	dead := take(t, r.url, r.queue+".dlq")
	awaitAttempts(t, attempts, 1, 2)
	require.Equal(t, "exhausted", dead.Headers[header.DeadReason])
}

// A Timeout outside looks like a shutdown: no attempt is ever counted, and the log
// says so.
func TestTimeoutOutsideIsNamed(t *testing.T) {
	t.Parallel()
	attempts := make(chan int, 10)
	var calls atomic.Int32
	r := newRig(t, rigConfig{
		policy: quickly(1), outer: []message.HandlerMiddleware{wmiddleware.Timeout(50 * time.Millisecond)},
		handler: func(msg *message.Message) ([]*message.Message, error) {
			attempts <- middleware.Attempt(msg.Context())
			if calls.Add(1) < 3 {
				<-msg.Context().Done()
				return nil, msg.Context().Err()
			}
			return nil, nil
		},
	})
	r.publish(amqp.Publishing{Body: []byte("order")})
	awaitAttempts(t, attempts, 1, 1, 1)
	require.Contains(t, r.logs.text(), "a Timeout middleware belongs inside DelayedRetry, not around it")
	requireNothingLeft(t, r, 0)
}

// The correlation id that the first attempt has set is there at the next, and on
// what that produces.
func TestComposedWithCorrelationID(t *testing.T) {
	t.Parallel()
	url, out := testbroker.URL(t), testbroker.Queue(t)
	declareFirst(t, url, out, func(*wamqp.Config) {})
	pub, err := wamqp.NewPublisher(queueConfig(url), watermill.NopLogger{})
	require.NoError(t, err)
	r := newRig(t, rigConfig{
		url: url, policy: quickly(1), publisher: pub, publishTopic: out,
		outer: []message.HandlerMiddleware{wmiddleware.CorrelationID},
		handler: func(msg *message.Message) ([]*message.Message, error) {
			if middleware.Attempt(msg.Context()) == 1 {
				wmiddleware.SetCorrelationID("made at attempt 1", msg)
				return nil, errFailed
			}
			return []*message.Message{message.NewMessage(watermill.NewUUID(), []byte("produced"))}, nil
		},
	})
	r.publish(amqp.Publishing{Body: []byte("order")})
	produced := take(t, url, out)
	require.Equal(t, "made at attempt 1", produced.Headers[wmiddleware.CorrelationIDMetadataKey])
}

// Watermill's Retry inside: a few quick tries, of which the broker sees none, in
// each attempt.
func TestComposedWithRetry(t *testing.T) {
	t.Parallel()
	quick := wmiddleware.Retry{MaxRetries: 2, InitialInterval: time.Millisecond}.Middleware
	for name, c := range map[string]struct {
		err              error
		calls            int32
		failures, reason string
	}{
		"any error": {errFailed, 6, "2", "exhausted"},
		// Retry takes cenkalti's mark away and leaves ours, of which it knows nothing.
		"cenkalti's mark":        {cenkalti.Permanent(errFailed), 2, "2", "exhausted"},
		"our mark":               {middleware.Permanent(errFailed), 3, "1", "permanent"},
		"our mark in cenkalti's": {cenkalti.Permanent(middleware.Permanent(errFailed)), 1, "1", "permanent"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var calls atomic.Int32
			r := newRig(t, rigConfig{policy: quickly(1), handler: inside(func(*message.Message) ([]*message.Message, error) {
				calls.Add(1)
				return nil, c.err
			}, quick)})
			r.publish(amqp.Publishing{Body: []byte("order")})
			dead := take(t, r.url, r.queue+".dlq")
			require.Equal(t, c.failures, dead.Headers[header.DeadFailures])
			require.Equal(t, c.reason, dead.Headers[header.DeadReason])
			require.Equal(t, c.calls, calls.Load())
		})
	}
}
