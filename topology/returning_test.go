package topology_test

import (
	"fmt"
	"strings"
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
	url, events := testbroker.URL(t), ownExchange(t)
	victim := besideOn(t, url, events, "invoice.#")
	others := ownExchange(t)
	elsewhere := besideOn(t, url, others, "#")
	var calls timeline
	r := newRig(t, rigConfig{
		url: url, strategy: returning(t, events), policy: backoff.List{100 * time.Millisecond}, config: onTopic(events, "order.#"),
		handler: func(*message.Message) ([]*message.Message, error) {
			calls.add()
			return nil, errFailed
		},
	})
	forge := func(owner string) amqp.Table {
		return amqp.Table{
			header.Queue: owner, header.OriginExchange: others, header.OriginRoutingKey: "invoice.paid",
		}
	}
	publish(t, url, events, "order.created", amqp.Publishing{Headers: amqp.Table{header.Queue: victim}})
	for _, owner := range []string{r.queue, victim} {
		r.publish(amqp.Publishing{Headers: forge(owner)})
		publish(t, url, events, "order.created", amqp.Publishing{Headers: forge(owner)})
	}
	for range 5 {
		take(t, url, r.queue+".dlq")
	}
	require.Equal(t, 10, calls.count())
	require.Equal(t, 0, testbroker.Depth(t, url, victim))
	require.Equal(t, 0, testbroker.Depth(t, url, elsewhere))
}

// The exchange to return through does not exist: Verify says so, and the queue gets
// its retries all the same.
func TestReturnThroughAMissingExchange(t *testing.T) {
	t.Parallel()
	url, missing := testbroker.URL(t), testbroker.Queue(t)
	strategy, policy := returning(t, missing), backoff.List{100 * time.Millisecond}
	var calls timeline
	r := newRig(t, rigConfig{url: url, strategy: strategy, policy: policy, handler: func(*message.Message) ([]*message.Message, error) {
		calls.add()
		return nil, errFailed
	}})
	require.Equal(t, []string{"warning missing exchange " + missing}, found(t, r.client, r.plan))
	r.publish(amqp.Publishing{})
	take(t, url, r.queue+".dlq")
	calls.requireGaps(t, 100*time.Millisecond)
}

// A sibling takes the retry for a new message that came from the exchange itself.
func TestSiblingSeesARetryAsNew(t *testing.T) {
	t.Parallel()
	url, events := testbroker.URL(t), ownExchange(t)
	strategy, policy := returning(t, events), backoff.List{100 * time.Millisecond}
	serve := func(handler message.HandlerFunc) *rig {
		return newRig(t, rigConfig{url: url, strategy: strategy, policy: policy, config: onTopic(events, "order.#"), handler: handler})
	}
	var failing timeline
	serve(func(*message.Message) ([]*message.Message, error) {
		if failing.add() == 1 {
			return nil, errFailed
		}
		return nil, nil
	})
	arrivals := make(chan arrival, 10)
	serve(collect(arrivals))
	publish(t, url, events, "order.created.eu", amqp.Publishing{})
	for range 2 {
		got := await(t, arrivals)
		require.Equal(t, 1, got.attempt)
		state := middleware.StateOf(got.msg.Context())
		exchange, key := state.OriginExchange, state.OriginRoutingKey
		require.Equal(t, events+" order.created.eu", exchange+" "+key)
	}
	testbroker.WaitFor(t, "the retry", patience, func() bool { return failing.count() == 2 })
}

// Two siblings that fail everything: each retry is a new message to the other, and
// the retries of that are its own. Without that there would be no end to them.
func TestSiblingsDoNotMultiplyRetries(t *testing.T) {
	t.Parallel()
	url, events := testbroker.URL(t), ownExchange(t)
	strategy, policy := returning(t, events), backoff.List{100 * time.Millisecond, 200 * time.Millisecond}
	var rigs []*rig
	var calls [2]timeline
	for i := range calls {
		rigs = append(rigs, newRig(t, rigConfig{url: url, strategy: strategy, policy: policy, config: onTopic(events, "order.#"),
			handler: func(*message.Message) ([]*message.Message, error) {
				calls[i].add()
				return nil, errFailed
			}}))
	}
	publish(t, url, events, "order.created.eu", amqp.Publishing{})
	for i, r := range rigs {
		for range 3 { // its own, and two copies of the other's retries
			dead := take(t, url, r.queue+".dlq")
			require.Equal(t, "3", dead.Headers[header.DeadFailures])
			require.NotContains(t, dead.Headers, header.Via)
		}
		require.Equal(t, 9, calls[i].count())
	}
	for _, r := range rigs {
		r.stop()
		require.Equal(t, 0, testbroker.Depth(t, url, r.queue))
		require.Equal(t, 0, testbroker.Depth(t, url, r.queue+".dlq"))
		require.Equal(t, 0, waiting(t, url, r.plan))
	}
}

// A sibling gets a copy for each failure, and none for a message that is set aside
// or goes on waiting.
func TestNothingButRetriesPassesTheExchange(t *testing.T) {
	t.Parallel()
	url, events := testbroker.URL(t), ownExchange(t)
	sibling := besideOn(t, url, events, "order.#")
	var calls timeline
	r := newRig(t, rigConfig{url: url, strategy: returning(t, events), policy: backoff.List{time.Second, time.Second}, config: onTopic(events, "order.#"),
		handler: func(*message.Message) ([]*message.Message, error) {
			switch calls.add() {
			case 1, 4:
				return nil, middleware.Snooze(errFailed, 100*time.Millisecond)
			case 2:
				// Two rounds, unless the first takes so long that no time is left: then the retry does not pass the exchange.
				return nil, middleware.RetryAfter(errFailed, 1900*time.Millisecond)
			case 3:
				return nil, errFailed
			}
			return nil, nil
		}})
	publish(t, url, events, "order.created.eu", amqp.Publishing{})
	testbroker.WaitFor(t, "the fifth call", patience, func() bool { return calls.count() == 5 })
	r.stop()
	require.Equal(t, 3, testbroker.Depth(t, url, sibling), "the message and its two retries")
	require.Equal(t, 0, testbroker.Depth(t, url, r.queue+".dlq"))
}
