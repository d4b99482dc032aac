package topology_test

import (
	"errors"
	"fmt"
	"sync"
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

// adrRow is the scenario row "adr": classified errors, bounded retries, ids, count
// and reason in the dead-letter queue, log lines that name all of it, an idempotent
// consumer, and nothing dropped while the machinery fails. The producer is a plain
// AMQP client: its ids are properties. The row's metrics are those of an observer.
func adrRow(t *testing.T, strategy topology.Strategy) {
	url := testbroker.URL(t)
	proxy := testbroker.NewProxy(t, url)
	errInvalid := errors.New("no such customer")

	// An inbox: what was handled once is not handled again.
	var mu sync.Mutex
	attempts, handled := map[string]int{}, map[string]int{}
	r := rig.Start(t, rig.Config{
		URL: url, PublisherURL: proxy.URL(), Strategy: strategy, Policy: backoff.List{100 * time.Millisecond, 300 * time.Millisecond},
		Configure:     rig.QuorumQueue,
		RetryOptions:  []middleware.Option{middleware.WithClassifier(middleware.PermanentErrors(errInvalid))},
		ClientOptions: []topology.Option{topology.WithConfirmTimeout(2 * time.Second)},
		Handler: func(msg *message.Message) ([]*message.Message, error) {
			raw, _ := topology.Received(msg.Context())
			mu.Lock()
			defer mu.Unlock()
			attempts[raw.MessageId]++
			switch raw.MessageId {
			case "invalid":
				return nil, fmt.Errorf("order of nobody: %w", errInvalid)
			case "hopeless":
				return nil, rig.ErrFailed
			case "held": // its first failure cannot be handed over
				if attempts["held"] == 1 {
					proxy.Blackhole(true)
				}
			}
			if attempts[raw.MessageId] < 3 {
				return nil, rig.ErrFailed
			}
			handled[raw.MessageId] = 1
			return nil, nil
		},
	})
	send := func(id string) {
		r.Publish(amqp.Publishing{MessageId: id, CorrelationId: "corr-" + id, Body: []byte("order " + id)})
	}
	send("invalid")
	send("hopeless")
	dead := map[string]amqp.Delivery{}
	for range 2 {
		d := rig.Take(t, url, r.Plan.Dead.RoutingKey)
		dead[d.MessageId] = d
	}
	for id, want := range map[string]struct{ reason, class, failures, text string }{
		"invalid":  {"permanent", "permanent", "1", "order of nobody: no such customer"},
		"hopeless": {"exhausted", "retryable", "3", rig.ErrFailed.Error()},
	} {
		d := dead[id]
		require.Equal(t, "corr-"+id, d.CorrelationId)
		require.Equal(t, "order "+id, string(d.Body))
		require.Equal(t, want.reason, d.Headers[header.DeadReason])
		require.Equal(t, want.failures, d.Headers[header.DeadFailures])
		require.Equal(t, want.text, d.Headers[header.DeadError])
		require.Equal(t, want.class, d.Headers[header.DeadClass])
	}

	// The machinery fails: the message is held, in the end it is retried.
	send("held")
	rig.WaitFor(t, "the message is held", func() bool {
		return len(r.Logs.About("held")) > 0
	})
	require.Equal(t, "Failed message cannot be handed over, holding it", r.Logs.About("held")[0].Msg)
	require.Equal(t, 0, testbroker.Depth(t, url, r.Plan.Dead.RoutingKey))
	proxy.Blackhole(false)
	rig.WaitFor(t, "the held message is handled", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return handled["held"] == 1
	})

	for id, want := range map[string][]map[string]any{
		"invalid": {{"attempt": 1, "class": "permanent", "reason": "permanent"}},
		"hopeless": {
			{"attempt": 1, "class": "retryable", "delay": 100 * time.Millisecond},
			{"attempt": 2, "class": "retryable", "delay": 300 * time.Millisecond},
			{"attempt": 3, "class": "retryable", "reason": "exhausted"},
		},
	} {
		lines := r.Logs.About(id)
		require.Len(t, lines, len(want), "lines about %s", id)
		for i, line := range lines {
			require.Equal(t, "corr-"+id, line.Fields["correlation_id"])
			require.Equal(t, "handler", line.Fields["handler"])
			require.Equal(t, r.Queue, line.Fields["queue"])
			for key, value := range want[i] {
				require.Equal(t, value, line.Fields[key], "line %d about %s: %s", i+1, id, key)
			}
		}
	}
	require.NotContains(t, r.Logs.Text(), "order hopeless", "no payload is logged")
}
