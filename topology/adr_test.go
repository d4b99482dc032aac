package topology_test

import (
	"errors"
	"fmt"
	"sync"
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
	r := newRig(t, rigConfig{
		url: url, publisherURL: proxy.URL(), strategy: strategy, policy: backoff.List{100 * time.Millisecond, 300 * time.Millisecond},
		config:        quorumQueue,
		options:       []middleware.Option{middleware.WithClassifier(middleware.PermanentErrors(errInvalid))},
		clientOptions: []topology.Option{topology.WithConfirmTimeout(2 * time.Second)},
		handler: func(msg *message.Message) ([]*message.Message, error) {
			raw, _ := topology.Received(msg.Context())
			mu.Lock()
			defer mu.Unlock()
			attempts[raw.MessageId]++
			switch raw.MessageId {
			case "invalid":
				return nil, fmt.Errorf("order of nobody: %w", errInvalid)
			case "hopeless":
				return nil, errFailed
			case "held": // its first failure cannot be handed over
				if attempts["held"] == 1 {
					proxy.Blackhole(true)
				}
			}
			if attempts[raw.MessageId] < 3 {
				return nil, errFailed
			}
			handled[raw.MessageId] = 1
			return nil, nil
		},
	})
	send := func(id string) {
		r.publish(amqp.Publishing{MessageId: id, CorrelationId: "corr-" + id, Body: []byte("order " + id)})
	}
	send("invalid")
	send("hopeless")
	dead := map[string]amqp.Delivery{}
	for range 2 {
		d := take(t, url, r.plan.Dead.RoutingKey)
		dead[d.MessageId] = d
	}
	for id, want := range map[string]struct{ reason, class, failures, text string }{
		"invalid":  {"permanent", "permanent", "1", "order of nobody: no such customer"},
		"hopeless": {"exhausted", "retryable", "3", errFailed.Error()},
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
	testbroker.WaitFor(t, "the message is held", patience, func() bool {
		return len(r.logs.about("held")) > 0
	})
	require.Equal(t, "Failed message cannot be handed over, holding it", r.logs.about("held")[0].msg)
	require.Equal(t, 0, testbroker.Depth(t, url, r.plan.Dead.RoutingKey))
	proxy.Blackhole(false)
	testbroker.WaitFor(t, "the held message is handled", patience, func() bool {
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
		lines := r.logs.about(id)
		require.Len(t, lines, len(want), "lines about %s", id)
		for i, line := range lines {
			require.Equal(t, "corr-"+id, line.fields["correlation_id"])
			require.Equal(t, "handler", line.fields["handler"])
			require.Equal(t, r.queue, line.fields["queue"])
			for key, value := range want[i] {
				require.Equal(t, value, line.fields[key], "line %d about %s: %s", i+1, id, key)
			}
		}
	}
	require.NotContains(t, r.logs.text(), "order hopeless", "no payload is logged")
}
