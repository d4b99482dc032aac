package topology_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/millpond-go/millpond/internal/testing/rig"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	cenkalti "github.com/cenkalti/backoff/v5"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
)

// A panic is retried wherever Recoverer stands, and its stack goes nowhere.
func TestComposedWithRecoverer(t *testing.T) {
	t.Parallel()
	panics := func(*message.Message) ([]*message.Message, error) { panic("no stock") }
	for name, rc := range map[string]rig.Config{
		"inside":  {Handler: rig.Inside(panics, wmiddleware.Recoverer)},
		"outside": {Handler: panics, Outer: []message.HandlerMiddleware{wmiddleware.Recoverer}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rc.Policy = rig.Quickly(1)
			r := rig.Start(t, rc)
			r.Publish(amqp.Publishing{Body: []byte("order")})
			dead := r.DeadLetter()
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
	r := rig.Start(t, rig.Config{
		Policy: rig.Quickly(1), Handler: rig.Inside(slow, wmiddleware.Timeout(50*time.Millisecond)),
		RetryOptions: []middleware.Option{middleware.WithDefaultClass(header.ClassPermanent), middleware.WithClassifier(middleware.ContextDeadline())},
	})
	r.Publish(amqp.Publishing{Body: []byte("order")})
	dead := r.DeadLetter()
	rig.AwaitAttempts(t, attempts, 1, 2)
	require.Equal(t, "exhausted", dead.Headers[header.DeadReason])
}

// A Timeout outside looks like a shutdown: no attempt is ever counted, and the log
// says so.
func TestTimeoutOutsideIsNamed(t *testing.T) {
	t.Parallel()
	attempts := make(chan int, 10)
	var calls atomic.Int32
	r := rig.Start(t, rig.Config{
		Policy: rig.Quickly(1), Outer: []message.HandlerMiddleware{wmiddleware.Timeout(50 * time.Millisecond)},
		Handler: func(msg *message.Message) ([]*message.Message, error) {
			attempts <- middleware.Attempt(msg.Context())
			if calls.Add(1) < 3 {
				<-msg.Context().Done()
				return nil, msg.Context().Err()
			}
			return nil, nil
		},
	})
	r.Publish(amqp.Publishing{Body: []byte("order")})
	rig.AwaitAttempts(t, attempts, 1, 1, 1)
	require.Contains(t, r.Logs.Text(), "a Timeout middleware belongs inside DelayedRetry, not around it")
	r.RequireNothingLeft(0)
}

// The correlation id that the first attempt has set is there at the next, and on
// what that produces.
func TestComposedWithCorrelationID(t *testing.T) {
	t.Parallel()
	url, out := testbroker.URL(t), testbroker.Queue(t)
	rig.DeclareQueue(t, url, out, nil)
	pub, err := wamqp.NewPublisher(rig.QueueConfig(url), watermill.NopLogger{})
	require.NoError(t, err)
	r := rig.Start(t, rig.Config{
		URL: url, Policy: rig.Quickly(1), Publisher: pub, PublishTopic: out,
		Outer: []message.HandlerMiddleware{wmiddleware.CorrelationID},
		Handler: func(msg *message.Message) ([]*message.Message, error) {
			if middleware.Attempt(msg.Context()) == 1 {
				wmiddleware.SetCorrelationID("made at attempt 1", msg)
				return nil, rig.ErrFailed
			}
			return []*message.Message{message.NewMessage(watermill.NewUUID(), []byte("produced"))}, nil
		},
	})
	r.Publish(amqp.Publishing{Body: []byte("order")})
	produced := rig.Take(t, url, out)
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
		"any error": {rig.ErrFailed, 6, "2", "exhausted"},
		// Retry takes cenkalti's mark away and leaves ours, of which it knows nothing.
		"cenkalti's mark":        {cenkalti.Permanent(rig.ErrFailed), 2, "2", "exhausted"},
		"our mark":               {middleware.Permanent(rig.ErrFailed), 3, "1", "permanent"},
		"our mark in cenkalti's": {cenkalti.Permanent(middleware.Permanent(rig.ErrFailed)), 1, "1", "permanent"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var calls atomic.Int32
			r := rig.Start(t, rig.Config{Policy: rig.Quickly(1), Handler: rig.Inside(func(*message.Message) ([]*message.Message, error) {
				calls.Add(1)
				return nil, c.err
			}, quick)})
			r.Publish(amqp.Publishing{Body: []byte("order")})
			dead := r.DeadLetter()
			require.Equal(t, c.failures, dead.Headers[header.DeadFailures])
			require.Equal(t, c.reason, dead.Headers[header.DeadReason])
			require.Equal(t, c.calls, calls.Load())
		})
	}
}
