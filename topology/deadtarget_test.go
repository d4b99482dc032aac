package topology_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/millpond-go/millpond/internal/testing/rig"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/frame"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
)

// Dead letters go to an exchange of the user's that does not exist: they are held, the
// error names the exchange, and nothing is declared. Retries beside them are published
// once each. When the exchange exists the dead letter arrives, once.
func TestMissingDeadLetterExchangeIsNotDeclared(t *testing.T) {
	t.Parallel()
	url, queue := testbroker.URL(t), testbroker.Queue(t)
	exchange, dead := queue+".missing", testbroker.Queue(t)
	proxy := testbroker.NewProxy(t, url)
	var mu sync.Mutex
	declared := 0
	proxy.Tap(func(s testbroker.Seen) testbroker.Fault {
		mu.Lock()
		defer mu.Unlock()
		if s.Up && s.Method() == frame.QueueDeclare {
			declared++
		}
		return testbroker.Fault{}
	})
	var told rig.HandOvers
	runs := map[string]int{}
	r := rig.Start(t, rig.Config{
		URL: url, PublisherURL: proxy.URL(), Queue: queue, Policy: backoff.List{200 * time.Millisecond},
		Strategy:     topology.PerQueue{Dead: topology.DeadLetters{Target: func(string) topology.Route { return topology.Route{Exchange: exchange} }}},
		Configure:    func(cfg *wamqp.Config) { rig.QuorumQueue(cfg); rig.QuickReconnect(cfg) },
		RetryOptions: []middleware.Option{middleware.WithObserver(&told)}, SubscriberOptions: []topology.SubscriberOption{topology.WithConcurrency(lateMessages)},
		Handler: func(msg *message.Message) ([]*message.Message, error) {
			mu.Lock()
			defer mu.Unlock()
			runs[string(msg.Payload)]++
			if string(msg.Payload) == "dead" {
				return nil, middleware.Permanent(rig.ErrFailed)
			}
			if middleware.Attempt(msg.Context()) == 1 {
				return nil, rig.ErrFailed
			}
			return nil, nil
		},
	})
	r.Publish(amqp.Publishing{Body: []byte("dead"), MessageId: "dead", DeliveryMode: amqp.Persistent})
	const others = 20
	for i := range others {
		r.Publish(amqp.Publishing{Body: fmt.Append(nil, i), DeliveryMode: amqp.Persistent})
	}
	rig.WaitFor(t, "the retries, and three failed tries of the dead letter", func() bool {
		return told.Succeeded() == others && told.AtLeast(1, 3)
	})
	assert.Contains(t, r.Logs.Text(), fmt.Sprintf("exchange %q may be missing, and the plan does not declare it", exchange))
	assert.NotContains(t, r.Logs.Text(), "was declared again")

	ch := testbroker.Channel(t, url)
	require.NoError(t, ch.ExchangeDeclare(exchange, "fanout", false, false, false, false, nil))
	defer func() { require.NoError(t, ch.ExchangeDelete(exchange, false, false)) }()
	_, err := ch.QueueDeclare(dead, true, false, false, false, nil)
	require.NoError(t, err)
	require.NoError(t, ch.QueueBind(dead, "", exchange, false, nil))
	assert.Equal(t, "dead", string(rig.Take(t, url, dead).Body))
	rig.WaitFor(t, "the second runs", func() bool {
		mu.Lock()
		defer mu.Unlock()
		all := 0
		for _, n := range runs {
			all += n
		}
		return all > 2*others && told.Succeeded() == others+1
	})
	r.Stop()
	assert.Zero(t, testbroker.Depth(t, url, dead), "a second dead letter")
	mu.Lock()
	defer mu.Unlock()
	for body, n := range runs {
		assert.Equal(t, map[bool]int{true: 1, false: 2}[body == "dead"], n, "runs of %s", body)
	}
	assert.Zero(t, declared, "declared on the publishing connection")
}
