package topology_test

import (
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/millpond-go/millpond/internal/testing/rig"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
)

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
	sibling := rig.BesideOn(t, url, exchange, "order.#")
	var calls rig.Timeline
	keys := make(chan string, 10)
	r := rig.Start(t, rig.Config{
		URL: url, Strategy: strategy, Policy: delays, Configure: rig.OnTopic(exchange, "order.#"),
		Handler: func(msg *message.Message) ([]*message.Message, error) {
			_, key, _ := middleware.Origin(msg.Context())
			keys <- key
			if calls.Add() < 4 {
				return nil, rig.ErrFailed
			}
			return nil, nil
		},
	})
	rig.Publish(t, url, exchange, "order.created.eu", amqp.Publishing{Body: []byte("order 1")})
	if own {
		rig.WaitFor(t, "the message waits", func() bool { return rig.Waiting(t, r.URL, r.Plan) == 1 })
		require.Equal(t, r.Queue+".delay_2s", r.Plan.Queues[0].Name, "the names of the row")
	}
	rig.WaitFor(t, "the fourth attempt", func() bool { return calls.Count() == 4 })
	calls.RequireGaps(t, delays...)
	for range 4 {
		require.Equal(t, "order.created.eu", <-keys)
	}
	r.Stop()
	require.Equal(t, 0, r.Depth(""))
	require.Equal(t, 0, r.Depth(".dlq"))
	require.Equal(t, 1, testbroker.Depth(t, r.URL, sibling), "only the queue that failed sees the retry")
}

// Where the last attempt fails too, the message is in the DLQ and is not tried
// again.
func TestOutboxExhausted(t *testing.T) {
	t.Parallel()
	for name, strategy := range rig.Strategies {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var calls rig.Timeline
			r := rig.Start(t, rig.Config{
				Strategy: strategy(t),
				Policy:   backoff.List{100 * time.Millisecond, 200 * time.Millisecond, 300 * time.Millisecond},
				Handler: func(msg *message.Message) ([]*message.Message, error) {
					calls.Add()
					return nil, rig.ErrFailed
				},
			})
			r.Publish(amqp.Publishing{Body: []byte("order 1")})
			dead := r.DeadLetter()
			require.Equal(t, "order 1", string(dead.Body))
			require.Equal(t, "exhausted", dead.Headers[header.DeadReason])
			require.Equal(t, "4", dead.Headers[header.DeadFailures])
			calls.RequireGaps(t, 100*time.Millisecond, 200*time.Millisecond, 300*time.Millisecond)
			r.Stop()
			require.Equal(t, 4, calls.Count(), "no fifth attempt")
			require.Equal(t, 0, r.Depth(""))
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
		"empty list":      {backoff.List{}, rig.ErrFailed, "exhausted"},
		"no retries":      {backoff.None{}, rig.ErrFailed, "exhausted"},
		"marked":          {backoff.List{time.Second}, fmt.Errorf("refuse: %w", middleware.Permanent(rig.ErrFailed)), "permanent"},
		"classified":      {backoff.List{time.Second}, errors.Join(errors.New("also"), rig.ErrFailed), "permanent"},
		"first of a join": {backoff.List{time.Second}, errors.Join(errors.New("also"), middleware.Permanent(errors.New("never"))), "permanent"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var calls rig.Timeline
			rc := rig.Config{
				Policy: c.policy,
				Handler: func(*message.Message) ([]*message.Message, error) {
					calls.Add()
					return nil, c.err
				},
			}
			if name == "classified" {
				rc.RetryOptions = []middleware.Option{middleware.WithClassifier(middleware.PermanentErrors(rig.ErrFailed))}
			}
			r := rig.Start(t, rc)
			r.Publish(amqp.Publishing{Body: []byte("order 1")})
			dead := r.DeadLetter()
			require.Equal(t, c.reason, dead.Headers[header.DeadReason])
			require.Equal(t, "1", dead.Headers[header.DeadFailures])
			r.Stop()
			require.Equal(t, 1, calls.Count())
		})
	}
}
