package topology_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
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

// said counts the log lines with this text.
func (c *capture) said(text string) int { return strings.Count(c.text(), text) }

// poison is Watermill's PoisonQueue to a queue of the test's own.
func poison(t *testing.T, url string) (queue string, m message.HandlerMiddleware) {
	t.Helper()
	queue = testbroker.Queue(t)
	declareFirst(t, url, queue, func(*wamqp.Config) {})
	client, err := topology.Open(t.Context(), connection(url), topology.PerQueue{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	m, err = wmiddleware.PoisonQueue(newPublisher(t, client, url), queue)
	require.NoError(t, err)
	return queue, m
}

// Inside, a PoisonQueue takes every error away, and the log says so once.
func TestPoisonQueueInsideIsNamed(t *testing.T) {
	t.Parallel()
	url := testbroker.URL(t)
	queue, m := poison(t, url)
	attempts := make(chan int, 10)
	r := newRig(t, rigConfig{url: url, policy: quickly(1), handler: inside(failUntil(10, attempts), m)})
	for range 3 {
		r.publish(amqp.Publishing{Body: []byte("order"), MessageId: "id-1"})
		take(t, url, queue)
	}
	awaitAttempts(t, attempts, 1, 1, 1)
	requireNothingLeft(t, r, 0)
	require.Equal(t, 1, r.logs.said("A PoisonQueue inside DelayedRetry took an error away before the message could be retried"))
}

// Outside, it sees no failure of the handler.
func TestComposedWithPoisonQueue(t *testing.T) {
	t.Parallel()
	url := testbroker.URL(t)
	queue, m := poison(t, url)
	attempts := make(chan int, 10)
	r := newRig(t, rigConfig{url: url, policy: quickly(1), handler: failUntil(10, attempts), outer: []message.HandlerMiddleware{m}})
	r.publish(amqp.Publishing{Body: []byte("order")})
	awaitAttempts(t, attempts, 1, 2)
	testbroker.WaitFor(t, "the dead letter", patience, func() bool { return testbroker.Depth(t, url, r.queue+".dlq") == 1 })
	requireNothingLeft(t, r, 1)
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
	h := failUntil(10, attempts)
	r := newRig(t, rigConfig{
		url: url, publisherURL: proxy.URL(), policy: quickly(1), outer: []message.HandlerMiddleware{m},
		clientOptions: []topology.Option{topology.WithConfirmTimeout(200 * time.Millisecond)},
		subOptions:    []topology.SubscriberOption{topology.WithConsumerTimeout(20 * time.Millisecond)}, // held for a few
		handler: func(msg *message.Message) ([]*message.Message, error) {
			proxy.Blackhole(true)
			return h(msg)
		},
	})
	r.publish(amqp.Publishing{Body: []byte("order")})
	taken := take(t, url, queue)
	awaitAttempts(t, attempts, 1)
	require.Contains(t, taken.Headers[wmiddleware.ReasonForPoisonedKey], middleware.ErrNotHandedOver.Error())
	testbroker.WaitFor(t, "the line in the log", patience, func() bool {
		return r.logs.said("Message was acked though DelayedRetry could not settle it") == 1
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
	r := newRig(t, rigConfig{
		url: url, publisherURL: proxy.URL(), policy: quickly(1),
		outer: []message.HandlerMiddleware{func(h message.HandlerFunc) message.HandlerFunc {
			return func(msg *message.Message) ([]*message.Message, error) {
				produced, _ := h(msg)
				return produced, nil
			}
		}},
		clientOptions: []topology.Option{topology.WithConfirmTimeout(200 * time.Millisecond)},
		subOptions:    []topology.SubscriberOption{topology.WithConsumerTimeout(20 * time.Millisecond)}, // held for a few
		handler: func(msg *message.Message) ([]*message.Message, error) {
			attempts <- middleware.Attempt(msg.Context())
			if first {
				first = false
				proxy.Blackhole(true)
				return nil, errFailed
			}
			return nil, nil
		},
	})
	r.publish(amqp.Publishing{Body: []byte("order")})
	testbroker.WaitFor(t, "the line in the log", patience, func() bool {
		return r.logs.said("Message was acked though DelayedRetry could not settle it") == 1
	})
	proxy.Blackhole(false)
	awaitAttempts(t, attempts, 1, 1)
}

// With an InstantAck every failure is a message lost, and each is named. Outside,
// the context of the message may be done before DelayedRetry sees it: the handler
// used not to be called then.
func TestInstantAckIsNamed(t *testing.T) {
	t.Parallel()
	const messages = 20
	for name, place := range map[string]func(*rigConfig){
		"inside":  func(rc *rigConfig) { rc.handler = inside(rc.handler, wmiddleware.InstantAck) },
		"outside": func(rc *rigConfig) { rc.outer = []message.HandlerMiddleware{wmiddleware.InstantAck} },
		"outside, and the ack is done": func(rc *rigConfig) {
			rc.outer = []message.HandlerMiddleware{wmiddleware.InstantAck, func(h message.HandlerFunc) message.HandlerFunc {
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
			rc := rigConfig{policy: quickly(1), handler: failUntil(1000, attempts)}
			place(&rc)
			r := newRig(t, rc)
			for i := range messages {
				r.publish(amqp.Publishing{Body: []byte(fmt.Sprint("order ", i))})
			}
			for range messages {
				awaitAttempts(t, attempts, 1)
			}
			testbroker.WaitFor(t, "a line for each message that is lost", patience, func() bool {
				return r.logs.said("Handler failed after its message was acked: the message is lost and cannot be retried") == messages
			})
			requireNothingLeft(t, r, 0)
			require.Empty(t, attempts)
		})
	}
}

// Duplicator outside used to hand a failed message over twice, which doubled with
// each attempt.
func TestDuplicatorOutsideIsNamed(t *testing.T) {
	t.Parallel()
	attempts := make(chan int, 100)
	r := newRig(t, rigConfig{policy: quickly(3), handler: failUntil(100, attempts), outer: []message.HandlerMiddleware{wmiddleware.Duplicator}})
	r.publish(amqp.Publishing{Body: []byte("order")})
	awaitAttempts(t, attempts, 1, 2, 3, 4)
	testbroker.WaitFor(t, "the dead letter", patience, func() bool { return testbroker.Depth(t, r.url, r.queue+".dlq") > 0 })
	requireNothingLeft(t, r, 1)
	require.Empty(t, attempts)
	require.Equal(t, 1, r.logs.said("DelayedRetry was called again for a message that it had handed over"))
}

// Inside, it calls the handler twice, and a failure of either is one failure.
func TestComposedWithDuplicator(t *testing.T) {
	t.Parallel()
	attempts := make(chan int, 100)
	r := newRig(t, rigConfig{policy: quickly(3), handler: inside(failUntil(3, attempts), wmiddleware.Duplicator)})
	r.publish(amqp.Publishing{Body: []byte("order")})
	awaitAttempts(t, attempts, 1, 2, 3, 3)
	requireNothingLeft(t, r, 0)
}

// DelayOnError writes a delay into a message that does not travel: the policy
// decides, and the log says so once.
func TestDelayOnErrorInsideIsNamed(t *testing.T) {
	t.Parallel()
	attempts, seen := make(chan int, 10), make(chan string, 10)
	h := failUntil(10, attempts)
	onError := &wmiddleware.DelayOnError{InitialInterval: time.Hour, MaxInterval: time.Hour, Multiplier: 2}
	r := newRig(t, rigConfig{policy: quickly(2), handler: inside(func(msg *message.Message) ([]*message.Message, error) {
		seen <- msg.Metadata.Get(delay.DelayedForKey)
		return h(msg)
	}, onError.Middleware)})
	r.publish(amqp.Publishing{Body: []byte("order")})
	awaitAttempts(t, attempts, 1, 2, 3)
	for range 3 {
		require.Empty(t, <-seen)
	}
	take(t, r.url, r.queue+".dlq")
	require.Equal(t, 1, r.logs.said("DelayOnError inside DelayedRetry has no effect"))
}

// Errors that IgnoreErrors inside knows are successes. It compares texts, and knows
// none that was wrapped with %w.
func TestComposedWithIgnoreErrors(t *testing.T) {
	t.Parallel()
	errs := map[string]error{"ignored": errFailed, "marked": middleware.Permanent(errFailed), "wrapped": fmt.Errorf("sell: %w", errFailed)}
	r := newRig(t, rigConfig{policy: quickly(1), handler: inside(func(msg *message.Message) ([]*message.Message, error) {
		return nil, errs[string(msg.Payload)]
	}, wmiddleware.NewIgnoreErrors([]error{errFailed}).Middleware)})
	for _, body := range []string{"ignored", "marked", "wrapped"} {
		r.publish(amqp.Publishing{Body: []byte(body)})
	}
	require.Equal(t, "wrapped", string(take(t, r.url, r.queue+".dlq").Body))
	requireNothingLeft(t, r, 0)
}

// Inside, a RandomFail is a failure. Outside, no attempt is counted: the message is
// nacked and set aside for a second.
func TestComposedWithRandomFail(t *testing.T) {
	t.Parallel()
	succeeds := func(*message.Message) ([]*message.Message, error) { return nil, errors.New("never called") }
	for name, m := range map[string]message.HandlerMiddleware{"error": wmiddleware.RandomFail(1), "panic": wmiddleware.RandomPanic(1)} {
		t.Run(name+" inside", func(t *testing.T) {
			t.Parallel()
			r := newRig(t, rigConfig{policy: quickly(1), handler: inside(succeeds, m)})
			r.publish(amqp.Publishing{Body: []byte("order")})
			dead := take(t, r.url, r.queue+".dlq")
			require.Equal(t, "2", dead.Headers[header.DeadFailures])
			require.Contains(t, dead.Headers[header.DeadError], "random "+map[string]string{"error": "fail", "panic": "panic"}[name]+" occurred")
		})
		t.Run(name+" outside", func(t *testing.T) {
			t.Parallel()
			r := newRig(t, rigConfig{policy: quickly(1), handler: succeeds, outer: []message.HandlerMiddleware{m}})
			r.publish(amqp.Publishing{Body: []byte("order")})
			waiting := take(t, r.url, r.queue+".wait.1s")
			require.NotContains(t, waiting.Headers, header.Failures)
			require.Contains(t, waiting.Headers, header.FirstSeen)
			requireNothingLeft(t, r, 0)
		})
	}
}
