package topology_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
)

// blockRow is the scenario row "block": queues on one exchange, five delays (5s 2m
// 30m 6h 2d, here much faster), back through the exchange with the routing key of
// several words; what cannot be placed ends in a final queue that can be seen, with
// the first exchange, key and queue; what cannot be published stays in its own.
func blockRow(t *testing.T, strategy topology.Strategy) {
	delays := backoff.List{50 * time.Millisecond, 120 * time.Millisecond, 300 * time.Millisecond, 600 * time.Millisecond, time.Second}
	const key, enough = "order.created.eu", 6 * time.Second // to end a service and delete its queue
	errVanishes := errors.New("about to vanish")
	policy := backoff.ByError{
		Cases:   []backoff.Case{{Match: backoff.Is(errVanishes), Policy: backoff.List{50 * time.Millisecond, enough}}},
		Default: delays,
	}
	url := testbroker.URL(t)
	exchange := returnTo(strategy)
	sibling := besideOn(t, url, exchange, "order.#")

	type seen struct {
		exchange, key, originExchange, originKey string
		attempt                                  int
	}
	var calls timeline
	var seens []seen
	vanishing := 0
	ch := testbroker.Channel(t, url)
	r := newRig(t, rigConfig{
		url: url, strategy: strategy, policy: policy,
		config: func(cfg *wamqp.Config) {
			onTopic(exchange, "order.#")(cfg)
			picky(cfg)
		},
		handler: func(msg *message.Message) ([]*message.Message, error) {
			raw, _ := topology.Received(msg.Context())
			if string(msg.Payload) == "vanishes" {
				if vanishing++; vanishing == 1 {
					if err := ch.ExchangeDelete(exchange, false, false); err != nil {
						t.Error(err)
					}
				}
				return nil, errVanishes
			}
			s := seen{exchange: raw.Exchange, key: raw.RoutingKey, attempt: middleware.Attempt(msg.Context())}
			state := middleware.StateOf(msg.Context())
			s.originExchange, s.originKey = state.OriginExchange, state.OriginRoutingKey
			seens = append(seens, s)
			if calls.add() < 6 {
				return nil, errFailed
			}
			return nil, nil
		},
	})
	other := newRig(t, rigConfig{url: url, strategy: strategy, policy: policy, config: onTopic(exchange, "invoice.#"),
		handler: func(*message.Message) ([]*message.Message, error) { return nil, nil }})
	if _, ok := strategy.(topology.Shared); ok {
		require.Equal(t, r.plan.WaitSteps[0].Exchange, other.plan.WaitSteps[0].Exchange, "one block for many queues")
	}
	send := func(body string) { publish(t, url, exchange, key, amqp.Publishing{Body: []byte(body)}) }

	send("order 1")
	testbroker.WaitFor(t, "the sixth attempt", patience, func() bool { return calls.count() == 6 })
	calls.requireGaps(t, delays...)
	for i, s := range seens {
		through := exchange
		if i > 0 {
			through = r.plan.Via.Through
		}
		require.Equal(t, seen{through, key, exchange, key, i + 1}, s)
	}
	for range 6 { // the fan-out that the option warns of
		copied := take(t, url, sibling)
		require.Equal(t, "order 1", string(copied.Body))
		require.Equal(t, key, copied.RoutingKey)
	}
	require.Contains(t, r.logs.text(), "every other queue bound there")
	require.Equal(t, 0, testbroker.Depth(t, url, other.queue+".dlq"))

	requireFinal := func(d amqp.Delivery, queueKey string) {
		require.Equal(t, exchange, d.Headers[header.OriginExchange])
		require.Equal(t, key, d.Headers[header.OriginRoutingKey])
		require.Equal(t, r.queue, d.Headers[queueKey])
	}
	send("refuse") // the marshaler does
	requireFinal(take(t, url, r.queue+".dlq"), header.DeadQueue)

	// The exchange vanishes while a message waits, and its queue gets it all the same;
	// then the queue vanishes, too.
	send("vanishes")
	testbroker.WaitFor(t, "it waits for the second time", patience, func() bool {
		return strings.Contains(r.logs.text(), "delay:"+enough.String()) && waiting(t, url, r.plan) == 1
	})
	r.stop()
	_, err := testbroker.Channel(t, url).QueueDelete(r.queue, false, false, false)
	require.NoError(t, err)
	stranded := r.plan.Exchanges[0].Name
	requireFinal(take(t, url, stranded), header.Queue)
	testbroker.WaitFor(t, "nothing waits", patience, func() bool { return waiting(t, url, r.plan) == 0 })
	blockKeeps(t, strategy, delays)
}

// blockKeeps: what cannot be published stays in its own queue.
func blockKeeps(t *testing.T, strategy topology.Strategy, delays backoff.List) {
	url := testbroker.URL(t)
	proxy := testbroker.NewProxy(t, url)
	r := newRig(t, rigConfig{
		url: url, publisherURL: proxy.URL(), strategy: strategy, policy: delays,
		clientOptions: []topology.Option{topology.WithConfirmTimeout(time.Second)},
		subOptions:    []topology.SubscriberOption{topology.WithDrainTimeout(time.Second)},
		handler: func(*message.Message) ([]*message.Message, error) {
			proxy.Blackhole(true)
			return nil, errFailed
		},
	})
	r.publish(amqp.Publishing{Body: []byte("kept")})
	testbroker.WaitFor(t, "it is held", patience, func() bool { return strings.Contains(r.logs.text(), "holding it") })
	r.stop()
	require.Equal(t, "kept", string(take(t, url, r.queue).Body))
	require.Equal(t, 0, testbroker.Depth(t, url, r.queue+".dlq"))
	require.Equal(t, 0, waiting(t, url, r.plan))
}

// returnTo is the exchange that a strategy returns messages through.
func returnTo(strategy topology.Strategy) string {
	switch s := strategy.(type) {
	case topology.PerQueue:
		return s.Via
	case topology.PerAttempt:
		return s.Via
	case topology.Shared:
		return s.Via
	}
	return ""
}
