package topology_test

import (
	"fmt"
	"strings"
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

func ExampleReturn() {
	plan, err := topology.PerQueue{Via: "events"}.Plan("orders", []time.Duration{5 * time.Second})
	if err != nil {
		fmt.Println(err)
	}
	for _, b := range plan.Bindings {
		fmt.Println(b.Exchange, "→", b.Queue+b.ToExchange)
	}
	route, _ := plan.Route(topology.Retry{Delay: time.Second, Exchange: "events", RoutingKey: "order.created.eu"})
	fmt.Println("published to", route.Exchange, "with the key", route.RoutingKey)
	// Output:
	// orders.wait.5s.to.events → orders.wait.5s.to.events
	// millpond.stranded → millpond.stranded
	// orders.return.events → orders
	// millpond.return.events → orders
	// millpond.return.events → orders.return.events
	// published to orders.wait.5s.to.events with the key order.created.eu
}

// Only what came by the exchange, for the first time or back, keeps its key.
func TestReturnKeepsTheKeyOfItsExchange(t *testing.T) {
	t.Parallel()
	for name, strategy := range map[string]topology.Strategy{
		"per queue":   topology.PerQueue{Via: "events"},
		"per attempt": topology.PerAttempt{Via: "events"},
		"shared":      topology.Shared{Via: "events"},
	} {
		plan, err := strategy.Plan("q", []time.Duration{time.Second})
		require.NoError(t, err)
		for from, want := range map[string]string{"events": "a.b", plan.Via.Through: "a.b", "": "q", "others": "q", "millpond.return.others": "q"} {
			route, err := plan.Route(topology.Retry{Delay: time.Second, Exchange: from, RoutingKey: "a.b"})
			require.NoError(t, err)
			require.Equal(t, want, route.RoutingKey, "%s, from %q", name, from)
		}
	}
	plan, err := topology.Shared{}.Plan("q", nil)
	require.NoError(t, err)
	route, err := plan.Route(topology.Retry{Delay: time.Second, Exchange: "events", RoutingKey: "a.b"})
	require.NoError(t, err)
	require.Equal(t, "q", route.RoutingKey)
}

func TestReturnNamesThatAreTooLong(t *testing.T) {
	t.Parallel()
	_, err := topology.PerQueue{Via: strings.Repeat("e", 250)}.Plan("q", []time.Duration{time.Second})
	for _, want := range []string{"wait queue of 1s", "return exchange", "exchange to return from"} {
		require.ErrorContains(t, err, want)
	}
}

// Whoever may publish to a queue writes notes that say another exchange, key and
// queue: the retry goes back to the queue, and to nobody who did not get the message.
func TestForgedNotesSteerNoRetryThroughTheExchange(t *testing.T) {
	t.Parallel()
	url, events := testbroker.URL(t), rig.TopicExchange(t)
	victim := rig.BesideOn(t, url, events, "invoice.#")
	others := rig.TopicExchange(t)
	elsewhere := rig.BesideOn(t, url, others, "#")
	var calls rig.Timeline
	r := rig.Start(t, rig.Config{
		URL: url, Strategy: rig.SharedVia(t, events), Policy: backoff.List{100 * time.Millisecond}, Configure: rig.OnTopic(events, "order.#"),
		Handler: func(*message.Message) ([]*message.Message, error) {
			calls.Add()
			return nil, rig.ErrFailed
		},
	})
	forge := func(owner string) amqp.Table {
		return amqp.Table{
			header.Queue: owner, header.OriginExchange: others, header.OriginRoutingKey: "invoice.paid",
		}
	}
	rig.Publish(t, url, events, "order.created", amqp.Publishing{Headers: amqp.Table{header.Queue: victim}})
	for _, owner := range []string{r.Queue, victim} {
		r.Publish(amqp.Publishing{Headers: forge(owner)})
		rig.Publish(t, url, events, "order.created", amqp.Publishing{Headers: forge(owner)})
	}
	for range 5 {
		rig.Take(t, url, r.Queue+".dlq")
	}
	require.Equal(t, 10, calls.Count())
	require.Equal(t, 0, testbroker.Depth(t, url, victim))
	require.Equal(t, 0, testbroker.Depth(t, url, elsewhere))
}

// The exchange to return through does not exist: Verify says so, and the queue gets
// its retries all the same.
func TestReturnThroughAMissingExchange(t *testing.T) {
	t.Parallel()
	url, missing := testbroker.URL(t), testbroker.Queue(t)
	strategy, policy := rig.SharedVia(t, missing), backoff.List{100 * time.Millisecond}
	var calls rig.Timeline
	r := rig.Start(t, rig.Config{URL: url, Strategy: strategy, Policy: policy, Handler: func(*message.Message) ([]*message.Message, error) {
		calls.Add()
		return nil, rig.ErrFailed
	}})
	require.Equal(t, []string{"warning missing exchange " + missing}, rig.BlindFindings(t, rig.OpenOperator(t, r.URL), r.Plan))
	r.Publish(amqp.Publishing{})
	rig.Take(t, url, r.Queue+".dlq")
	calls.RequireGaps(t, 100*time.Millisecond)
}

// A sibling takes the retry for a new message that came from the exchange itself.
func TestSiblingSeesARetryAsNew(t *testing.T) {
	t.Parallel()
	url, events := testbroker.URL(t), rig.TopicExchange(t)
	strategy, policy := rig.SharedVia(t, events), backoff.List{100 * time.Millisecond}
	serve := func(handler message.HandlerFunc) *rig.Service {
		return rig.Start(t, rig.Config{URL: url, Strategy: strategy, Policy: policy, Configure: rig.OnTopic(events, "order.#"), Handler: handler})
	}
	var failing rig.Timeline
	serve(func(*message.Message) ([]*message.Message, error) {
		if failing.Add() == 1 {
			return nil, rig.ErrFailed
		}
		return nil, nil
	})
	arrivals := make(chan rig.Arrival, 10)
	serve(rig.Collect(arrivals))
	rig.Publish(t, url, events, "order.created.eu", amqp.Publishing{})
	for range 2 {
		got := rig.Await(t, arrivals)
		require.Equal(t, 1, got.Attempt)
		exchange, key, _ := middleware.Origin(got.Msg.Context())
		require.Equal(t, events+" order.created.eu", exchange+" "+key)
	}
	rig.WaitFor(t, "the retry", func() bool { return failing.Count() == 2 })
}

// Two siblings that fail everything: each retry is a new message to the other, and
// the retries of that are its own. Without that there would be no end to them.
func TestSiblingsDoNotMultiplyRetries(t *testing.T) {
	t.Parallel()
	url, events := testbroker.URL(t), rig.TopicExchange(t)
	strategy, policy := rig.SharedVia(t, events), backoff.List{100 * time.Millisecond, 200 * time.Millisecond}
	var rigs []*rig.Service
	var calls [2]rig.Timeline
	for i := range calls {
		rigs = append(rigs, rig.Start(t, rig.Config{
			URL: url, Strategy: strategy, Policy: policy, Configure: rig.OnTopic(events, "order.#"),
			Handler: func(*message.Message) ([]*message.Message, error) {
				calls[i].Add()
				return nil, rig.ErrFailed
			},
		}))
	}
	rig.Publish(t, url, events, "order.created.eu", amqp.Publishing{})
	for i, r := range rigs {
		for range 3 { // its own, and two copies of the other's retries
			dead := rig.Take(t, url, r.Queue+".dlq")
			require.Equal(t, "3", dead.Headers[header.DeadFailures])
			require.NotContains(t, dead.Headers, header.Via)
		}
		require.Equal(t, 9, calls[i].Count())
	}
	for _, r := range rigs {
		r.Stop()
		require.Equal(t, 0, testbroker.Depth(t, url, r.Queue))
		require.Equal(t, 0, testbroker.Depth(t, url, r.Queue+".dlq"))
		require.Equal(t, 0, rig.Waiting(t, url, r.Plan))
	}
}

// A sibling gets a copy for each failure, and none for a message that is set aside
// or goes on waiting.
func TestNothingButRetriesPassesTheExchange(t *testing.T) {
	t.Parallel()
	url, events := testbroker.URL(t), rig.TopicExchange(t)
	sibling := rig.BesideOn(t, url, events, "order.#")
	var calls rig.Timeline
	r := rig.Start(t, rig.Config{
		URL: url, Strategy: rig.SharedVia(t, events), Policy: backoff.List{time.Second, time.Second}, Configure: rig.OnTopic(events, "order.#"),
		Handler: func(*message.Message) ([]*message.Message, error) {
			switch calls.Add() {
			case 1, 4:
				return nil, middleware.Snooze(rig.ErrFailed, 100*time.Millisecond)
			case 2:
				// Two rounds, unless the first takes so long that no time is left: then the retry does not pass the exchange.
				return nil, middleware.RetryAfter(rig.ErrFailed, 1900*time.Millisecond)
			case 3:
				return nil, rig.ErrFailed
			}
			return nil, nil
		},
	})
	rig.Publish(t, url, events, "order.created.eu", amqp.Publishing{})
	rig.WaitFor(t, "the fifth call", func() bool { return calls.Count() == 5 })
	r.Stop()
	require.Equal(t, 3, testbroker.Depth(t, url, sibling), "the message and its two retries")
	require.Equal(t, 0, testbroker.Depth(t, url, r.Queue+".dlq"))
}
