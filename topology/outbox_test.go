package topology_test

import (
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
)

var errFailed = errors.New("the shop is closed")

// outboxName names wait queues as the row does: <queue>.delay_2s.
func outboxName(queue string, delay time.Duration) string {
	return fmt.Sprintf("%s.delay_%ds", queue, delay/time.Second)
}

// outboxRow is the scenario row "outbox": 2s, 5s, 15s, so attempts at 0, 2, 7 and
// 22 s, of one of two queues on a topic exchange. In full on the row's own kind of
// queues, or with MILLPOND_LONG; else ten times as fast.
func outboxRow(t *testing.T, strategy topology.Strategy) {
	const tenth = 10
	delays := backoff.List{2 * time.Second, 5 * time.Second, 15 * time.Second}
	s, own := strategy.(topology.PerQueue)
	own = own && s.Type != topology.Classic
	if own {
		s.WaitName = outboxName
		strategy = s
	} else if os.Getenv("MILLPOND_LONG") == "" {
		for i := range delays {
			delays[i] /= tenth
		}
	}
	url, exchange := testbroker.URL(t), testbroker.Queue(t)
	sibling := besideOn(t, url, exchange, "order.#")
	var calls timeline
	keys := make(chan string, 10)
	r := newRig(t, rigConfig{
		url: url, strategy: strategy, policy: delays, config: onTopic(exchange, "order.#"),
		handler: func(msg *message.Message) ([]*message.Message, error) {
			key := middleware.StateOf(msg.Context()).OriginRoutingKey
			keys <- key
			if calls.add() < 4 {
				return nil, errFailed
			}
			return nil, nil
		},
	})
	publish(t, url, exchange, "order.created.eu", amqp.Publishing{Body: []byte("order 1")})
	if own {
		testbroker.WaitFor(t, "the message waits", patience, func() bool { return waiting(t, r.url, r.plan) == 1 })
		require.Equal(t, r.queue+".delay_2s", r.plan.Queues[0].Name, "the names of the row")
	}
	testbroker.WaitFor(t, "the fourth attempt", patience, func() bool { return calls.count() == 4 })
	calls.requireGaps(t, delays...)
	for range 4 {
		require.Equal(t, "order.created.eu", <-keys)
	}
	r.stop()
	require.Equal(t, 0, testbroker.Depth(t, r.url, r.queue))
	require.Equal(t, 0, testbroker.Depth(t, r.url, r.queue+".dlq"))
	require.Equal(t, 1, testbroker.Depth(t, r.url, sibling), "only the queue that failed sees the retry")
}

// Where the last attempt fails too, the message is in the DLQ and is not tried
// again.
func TestOutboxExhausted(t *testing.T) {
	t.Parallel()
	for name, strategy := range strategies {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var calls timeline
			r := newRig(t, rigConfig{
				strategy: strategy(t),
				policy:   backoff.List{100 * time.Millisecond, 200 * time.Millisecond, 300 * time.Millisecond},
				handler: func(msg *message.Message) ([]*message.Message, error) {
					calls.add()
					return nil, errFailed
				},
			})
			r.publish(amqp.Publishing{Body: []byte("order 1")})
			dead := take(t, r.url, r.queue+".dlq")
			require.Equal(t, "order 1", string(dead.Body))
			require.Equal(t, "exhausted", dead.Headers[header.DeadReason])
			require.Equal(t, "4", dead.Headers[header.DeadFailures])
			calls.requireGaps(t, 100*time.Millisecond, 200*time.Millisecond, 300*time.Millisecond)
			r.stop()
			require.Equal(t, 4, calls.count(), "no fifth attempt")
			require.Equal(t, 0, testbroker.Depth(t, r.url, r.queue))
		})
	}
}

// An empty list and a permanent error go straight to the DLQ.
func TestOutboxStraightToTheDLQ(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		policy backoff.Policy
		err    error
		reason string
	}{
		"empty list":      {backoff.List{}, errFailed, "exhausted"},
		"no retries":      {backoff.None{}, errFailed, "exhausted"},
		"marked":          {backoff.List{time.Second}, fmt.Errorf("refuse: %w", middleware.Permanent(errFailed)), "permanent"},
		"classified":      {backoff.List{time.Second}, errors.Join(errors.New("also"), errFailed), "permanent"},
		"first of a join": {backoff.List{time.Second}, errors.Join(errors.New("also"), middleware.Permanent(errors.New("never"))), "permanent"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var calls timeline
			rc := rigConfig{
				policy: c.policy,
				handler: func(*message.Message) ([]*message.Message, error) {
					calls.add()
					return nil, c.err
				},
			}
			if name == "classified" {
				rc.options = []middleware.Option{middleware.WithClassifier(middleware.PermanentErrors(errFailed))}
			}
			r := newRig(t, rc)
			r.publish(amqp.Publishing{Body: []byte("order 1")})
			dead := take(t, r.url, r.queue+".dlq")
			require.Equal(t, c.reason, dead.Headers[header.DeadReason])
			require.Equal(t, "1", dead.Headers[header.DeadFailures])
			r.stop()
			require.Equal(t, 1, calls.count())
		})
	}
}
