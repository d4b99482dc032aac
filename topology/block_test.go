package topology_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/millpond-go/millpond/internal/testing/rig"

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
	sibling := rig.BesideOn(t, url, exchange, "order.#")

	type seen struct {
		exchange, key, originExchange, originKey string
		attempt                                  int
	}
	var calls rig.Timeline
	var seens []seen
	vanishing := 0
	ch := testbroker.Channel(t, url)
	r := rig.Start(t, rig.Config{
		URL: url, Strategy: strategy, Policy: policy,
		Configure: func(cfg *wamqp.Config) {
			rig.OnTopic(exchange, "order.#")(cfg)
			rig.Picky(cfg)
		},
		Handler: func(msg *message.Message) ([]*message.Message, error) {
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
			s.originExchange, s.originKey, _ = middleware.Origin(msg.Context())
			seens = append(seens, s)
			if calls.Add() < 6 {
				return nil, rig.ErrFailed
			}
			return nil, nil
		},
	})
	other := rig.Start(t, rig.Config{
		URL: url, Strategy: strategy, Policy: policy, Configure: rig.OnTopic(exchange, "invoice.#"),
		Handler: func(*message.Message) ([]*message.Message, error) { return nil, nil },
	})
	if _, ok := strategy.(topology.Shared); ok {
		require.Equal(t, r.Plan.WaitSteps[0].Exchange, other.Plan.WaitSteps[0].Exchange, "one block for many queues")
	}
	send := func(body string) { rig.Publish(t, url, exchange, key, amqp.Publishing{Body: []byte(body)}) }

	send("order 1")
	rig.WaitFor(t, "the sixth attempt", func() bool { return calls.Count() == 6 })
	calls.RequireGaps(t, delays...)
	for i, s := range seens {
		through := exchange
		if i > 0 {
			through = r.Plan.Via.Through
		}
		require.Equal(t, seen{through, key, exchange, key, i + 1}, s)
	}
	for range 6 { // the fan-out that the option warns of
		copied := rig.Take(t, url, sibling)
		require.Equal(t, "order 1", string(copied.Body))
		require.Equal(t, key, copied.RoutingKey)
	}
	require.Contains(t, r.Logs.Text(), "every other queue bound there")
	require.Equal(t, 0, testbroker.Depth(t, url, other.Queue+".dlq"))

	requireFinal := func(d amqp.Delivery, queueKey string) {
		require.Equal(t, exchange, d.Headers[header.OriginExchange])
		require.Equal(t, key, d.Headers[header.OriginRoutingKey])
		require.Equal(t, r.Queue, d.Headers[queueKey])
	}
	send("refuse") // the marshaler does
	requireFinal(rig.Take(t, url, r.Queue+".dlq"), header.DeadQueue)

	// The exchange vanishes while a message waits, and its queue gets it all the same;
	// then the queue vanishes, too.
	send("vanishes")
	rig.WaitFor(t, "it waits for the second time", func() bool {
		return strings.Contains(r.Logs.Text(), "delay:"+enough.String()) && rig.Waiting(t, url, r.Plan) == 1
	})
	r.Stop()
	_, err := testbroker.Channel(t, url).QueueDelete(r.Queue, false, false, false)
	require.NoError(t, err)
	stranded := r.Plan.Exchanges[0].Name
	requireFinal(rig.Take(t, url, stranded), header.Queue)
	rig.WaitFor(t, "nothing waits", func() bool { return rig.Waiting(t, url, r.Plan) == 0 })
	blockKeeps(t, strategy, delays)
}

// blockKeeps: what cannot be published stays in its own queue.
func blockKeeps(t *testing.T, strategy topology.Strategy, delays backoff.List) {
	url := testbroker.URL(t)
	proxy := testbroker.NewProxy(t, url)
	r := rig.Start(t, rig.Config{
		URL: url, PublisherURL: proxy.URL(), Strategy: strategy, Policy: delays,
		ClientOptions:     []topology.Option{topology.WithConfirmTimeout(time.Second)},
		SubscriberOptions: []topology.SubscriberOption{topology.WithDrainTimeout(time.Second)},
		Handler: func(*message.Message) ([]*message.Message, error) {
			proxy.Blackhole(true)
			return nil, rig.ErrFailed
		},
	})
	r.Publish(amqp.Publishing{Body: []byte("kept")})
	rig.WaitFor(t, "it is held", func() bool { return strings.Contains(r.Logs.Text(), "holding it") })
	r.Stop()
	require.Equal(t, "kept", string(rig.Take(t, url, r.Queue).Body))
	require.Equal(t, 0, testbroker.Depth(t, url, r.Queue+".dlq"))
	require.Equal(t, 0, rig.Waiting(t, url, r.Plan))
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
