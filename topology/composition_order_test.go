package topology_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/millpond-go/millpond/internal/testing/rig"

	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
)

// poison is Watermill's PoisonQueue to a queue of the test's own.
func poison(t *testing.T, url string) (queue string, m message.HandlerMiddleware) {
	t.Helper()
	queue = testbroker.Queue(t)
	rig.DeclareQueue(t, url, queue, nil)
	client, err := topology.Open(t.Context(), rig.ConnectionConfig(url), topology.PerQueue{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	m, err = wmiddleware.PoisonQueue(rig.NewPublisher(t, client, url), queue)
	require.NoError(t, err)
	return queue, m
}

// Inside, a PoisonQueue takes every error away, and the log says so once.
func TestPoisonQueueInsideIsNamed(t *testing.T) {
	t.Parallel()
	url := testbroker.URL(t)
	queue, m := poison(t, url)
	attempts := make(chan int, 10)
	r := rig.Start(t, rig.Config{URL: url, Policy: rig.Quickly(1), Handler: rig.Inside(rig.FailUntil(10, attempts), m)})
	for range 3 {
		r.Publish(amqp.Publishing{Body: []byte("order"), MessageId: "id-1"})
		rig.Take(t, url, queue)
	}
	rig.AwaitAttempts(t, attempts, 1, 1, 1)
	r.RequireNothingLeft(0)
	require.Equal(t, 1, r.Logs.Said("A PoisonQueue inside DelayedRetry has taken an error away before it could be retried"))
}

// Outside, it sees no failure of the handler.
func TestComposedWithPoisonQueue(t *testing.T) {
	t.Parallel()
	url := testbroker.URL(t)
	queue, m := poison(t, url)
	attempts := make(chan int, 10)
	r := rig.Start(t, rig.Config{URL: url, Policy: rig.Quickly(1), Handler: rig.FailUntil(10, attempts), Outer: []message.HandlerMiddleware{m}})
	r.Publish(amqp.Publishing{Body: []byte("order")})
	rig.AwaitAttempts(t, attempts, 1, 2)
	rig.WaitFor(t, "the dead letter", func() bool { return testbroker.Depth(t, url, r.Queue+".dlq") == 1 })
	r.RequireNothingLeft(1)
	require.Zero(t, testbroker.Depth(t, url, queue))
}

// What DelayedRetry could not settle goes back to its queue; a PoisonQueue outside
// takes it away with an attempt it never had, and the log says so.
func TestPoisonQueueOutsideThatTakesTheUnsettledIsNamed(t *testing.T) {
	t.Parallel()
	url := testbroker.URL(t)
	queue, m := poison(t, url)
	attempts := make(chan int, 10)
	proxy := testbroker.NewProxy(t, url)
	h := rig.FailUntil(10, attempts)
	r := rig.Start(t, rig.Config{
		URL: url, PublisherURL: proxy.URL(), Policy: rig.Quickly(1), Outer: []message.HandlerMiddleware{m},
		ClientOptions: []topology.Option{topology.WithConfirmTimeout(200 * time.Millisecond)},
		RetryOptions:  []middleware.Option{middleware.WithHoldLimit(time.Millisecond)},
		Handler: func(msg *message.Message) ([]*message.Message, error) {
			proxy.Blackhole(true)
			return h(msg)
		},
	})
	r.Publish(amqp.Publishing{Body: []byte("order")})
	taken := rig.Take(t, url, queue)
	rig.AwaitAttempts(t, attempts, 1)
	require.Contains(t, taken.Headers[wmiddleware.ReasonForPoisonedKey], middleware.ErrNotHandedOver.Error())
	rig.WaitFor(t, "the line in the log", func() bool {
		return r.Logs.Said("Message was acked though DelayedRetry could not settle it") == 1
	})
	proxy.Blackhole(false)
}

// A middleware outside that swallows every error used to have the message acked with
// no copy confirmed: it was gone.
func TestSwallowedUnsettledMessageWasLost(t *testing.T) {
	t.Parallel()
	url := testbroker.URL(t)
	proxy := testbroker.NewProxy(t, url)
	attempts := make(chan int, 10)
	first := true
	r := rig.Start(t, rig.Config{
		URL: url, PublisherURL: proxy.URL(), Policy: rig.Quickly(1),
		Outer: []message.HandlerMiddleware{func(h message.HandlerFunc) message.HandlerFunc {
			return func(msg *message.Message) ([]*message.Message, error) {
				produced, _ := h(msg)
				return produced, nil
			}
		}},
		ClientOptions: []topology.Option{topology.WithConfirmTimeout(200 * time.Millisecond)},
		RetryOptions:  []middleware.Option{middleware.WithHoldLimit(time.Millisecond)},
		Handler: func(msg *message.Message) ([]*message.Message, error) {
			attempts <- middleware.Attempt(msg.Context())
			if first {
				first = false
				proxy.Blackhole(true)
				return nil, rig.ErrFailed
			}
			return nil, nil
		},
	})
	r.Publish(amqp.Publishing{Body: []byte("order")})
	rig.WaitFor(t, "the line in the log", func() bool {
		return r.Logs.Said("Message was acked though DelayedRetry could not settle it") == 1
	})
	proxy.Blackhole(false)
	rig.AwaitAttempts(t, attempts, 1, 1)
}

// With an InstantAck every failure is a message lost, and each is named. Outside,
// the context of the message may be done before DelayedRetry sees it: the handler
// used not to be called then.
func TestInstantAckIsNamed(t *testing.T) {
	t.Parallel()
	const messages = 20
	for name, place := range map[string]func(*rig.Config){
		"inside":  func(rc *rig.Config) { rc.Handler = rig.Inside(rc.Handler, wmiddleware.InstantAck) },
		"outside": func(rc *rig.Config) { rc.Outer = []message.HandlerMiddleware{wmiddleware.InstantAck} },
		"outside, and the ack is done": func(rc *rig.Config) {
			rc.Outer = []message.HandlerMiddleware{wmiddleware.InstantAck, func(h message.HandlerFunc) message.HandlerFunc {
				return func(msg *message.Message) ([]*message.Message, error) {
					<-msg.Context().Done()
					return h(msg)
				}
			}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			attempts := make(chan int, 2*messages)
			rc := rig.Config{Policy: rig.Quickly(1), Handler: rig.FailUntil(1000, attempts)}
			place(&rc)
			r := rig.Start(t, rc)
			for i := range messages {
				r.Publish(amqp.Publishing{Body: []byte(fmt.Sprint("order ", i))})
			}
			for range messages {
				rig.AwaitAttempts(t, attempts, 1)
			}
			rig.WaitFor(t, "a line for each message that is lost", func() bool {
				return r.Logs.Said("Handler failed after its message was acked: it is lost and cannot be retried") == messages
			})
			r.RequireNothingLeft(0)
			require.Empty(t, attempts)
		})
	}
}

// Duplicator outside used to hand a failed message over twice, which doubled with
// each attempt.
func TestDuplicatorOutsideIsNamed(t *testing.T) {
	t.Parallel()
	attempts := make(chan int, 100)
	r := rig.Start(t, rig.Config{Policy: rig.Quickly(3), Handler: rig.FailUntil(100, attempts), Outer: []message.HandlerMiddleware{wmiddleware.Duplicator}})
	r.Publish(amqp.Publishing{Body: []byte("order")})
	rig.AwaitAttempts(t, attempts, 1, 2, 3, 4)
	rig.WaitFor(t, "the dead letter", func() bool { return r.Depth(".dlq") > 0 })
	r.RequireNothingLeft(1)
	require.Empty(t, attempts)
	require.Equal(t, 1, r.Logs.Said("DelayedRetry was called again for a message that it had handed over"))
}

// Inside, it calls the handler twice, and a failure of either is one failure.
func TestComposedWithDuplicator(t *testing.T) {
	t.Parallel()
	attempts := make(chan int, 100)
	r := rig.Start(t, rig.Config{Policy: rig.Quickly(3), Handler: rig.Inside(rig.FailUntil(3, attempts), wmiddleware.Duplicator)})
	r.Publish(amqp.Publishing{Body: []byte("order")})
	rig.AwaitAttempts(t, attempts, 1, 2, 3, 3)
	r.RequireNothingLeft(0)
}

// DelayOnError writes a delay into a message that does not travel: the policy
// decides, and the log says so once.
func TestDelayOnErrorInsideIsNamed(t *testing.T) {
	t.Parallel()
	attempts, seen := make(chan int, 10), make(chan string, 10)
	h := rig.FailUntil(10, attempts)
	onError := &wmiddleware.DelayOnError{InitialInterval: time.Hour, MaxInterval: time.Hour, Multiplier: 2}
	r := rig.Start(t, rig.Config{Policy: rig.Quickly(2), Handler: rig.Inside(func(msg *message.Message) ([]*message.Message, error) {
		seen <- msg.Metadata.Get(delay.DelayedForKey)
		return h(msg)
	}, onError.Middleware)})
	r.Publish(amqp.Publishing{Body: []byte("order")})
	rig.AwaitAttempts(t, attempts, 1, 2, 3)
	for range 3 {
		require.Empty(t, <-seen)
	}
	r.DeadLetter()
	require.Equal(t, 1, r.Logs.Said("DelayOnError inside DelayedRetry has no effect"))
}

// Errors that IgnoreErrors inside knows are successes. It compares texts, and knows
// none that was wrapped with %w.
func TestComposedWithIgnoreErrors(t *testing.T) {
	t.Parallel()
	errs := map[string]error{"ignored": rig.ErrFailed, "marked": middleware.Permanent(rig.ErrFailed), "wrapped": fmt.Errorf("sell: %w", rig.ErrFailed)}
	r := rig.Start(t, rig.Config{Policy: rig.Quickly(1), Handler: rig.Inside(func(msg *message.Message) ([]*message.Message, error) {
		return nil, errs[string(msg.Payload)]
	}, wmiddleware.NewIgnoreErrors([]error{rig.ErrFailed}).Middleware)})
	for _, body := range []string{"ignored", "marked", "wrapped"} {
		r.Publish(amqp.Publishing{Body: []byte(body)})
	}
	require.Equal(t, "wrapped", string(r.DeadLetter().Body))
	r.RequireNothingLeft(0)
}

// Inside, a RandomFail is a failure. Outside, no attempt is counted: the message is
// nacked and set aside for a second.
func TestComposedWithRandomFail(t *testing.T) {
	t.Parallel()
	succeeds := func(*message.Message) ([]*message.Message, error) { return nil, errors.New("never called") }
	for name, m := range map[string]message.HandlerMiddleware{"error": wmiddleware.RandomFail(1), "panic": wmiddleware.RandomPanic(1)} {
		t.Run(name+" inside", func(t *testing.T) {
			t.Parallel()
			r := rig.Start(t, rig.Config{Policy: rig.Quickly(1), Handler: rig.Inside(succeeds, m)})
			r.Publish(amqp.Publishing{Body: []byte("order")})
			dead := r.DeadLetter()
			require.Equal(t, "2", dead.Headers[header.DeadFailures])
			require.Contains(t, dead.Headers[header.DeadError], "random "+map[string]string{"error": "fail", "panic": "panic"}[name]+" occurred")
		})
		t.Run(name+" outside", func(t *testing.T) {
			t.Parallel()
			r := rig.Start(t, rig.Config{Policy: rig.Quickly(1), Handler: succeeds, Outer: []message.HandlerMiddleware{m}})
			r.Publish(amqp.Publishing{Body: []byte("order")})
			waiting := rig.Take(t, r.URL, r.Queue+".wait.1s")
			require.NotContains(t, waiting.Headers, header.Failures)
			require.Contains(t, waiting.Headers, header.FirstSeen)
			r.RequireNothingLeft(0)
		})
	}
}
