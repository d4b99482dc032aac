package e2e_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
)

// fed is a queue that three exchanges feed: topic, fanout and headers. Each has a sibling of the
// queue, which keeps its messages.
type fed struct {
	t         *testing.T
	url       string
	exchanges map[string]string // by type
	siblings  map[string]string
}

var feeding = []string{"topic", "fanout", "headers"}

func newFed(t *testing.T) *fed {
	t.Helper()
	f := &fed{
		t: t, url: testbroker.URL(t), exchanges: map[string]string{}, siblings: map[string]string{},
	}
	for _, kind := range feeding {
		f.exchanges[kind], f.siblings[kind] = testbroker.Queue(t)+"."+kind, testbroker.Queue(t)
		rig.DeclareExchange(t, f.url, f.exchanges[kind], kind)
		rig.DeclareQueue(t, f.url, f.siblings[kind], nil)
		f.bind(f.siblings[kind], kind)
	}
	return f
}

// bind binds a queue to an exchange: order.# of topic, the orders of headers.
func (f *fed) bind(queue, kind string) {
	f.t.Helper()
	args := amqp.Table{"x-match": "all", "kind": "order"}
	if kind != "headers" {
		args = nil
	}
	ch := testbroker.Channel(f.t, f.url)
	require.NoError(f.t, ch.QueueBind(queue, "order.#", f.exchanges[kind], false, args))
}

// names are the exchanges, for Via.
func (f *fed) names() []string {
	var names []string
	for _, kind := range feeding {
		names = append(names, f.exchanges[kind])
	}
	return names
}

// routingKeys are the routing keys of the messages. The topic exchange alone looks at them.
var routingKeys = map[string]string{
	"topic": "order.created.eu", "fanout": "any other", "headers": "",
}

// send publishes a message whose body is the type of the exchange.
func (f *fed) send(kind string) {
	f.t.Helper()
	msg := rig.Message(kind)
	msg.Headers = amqp.Table{"kind": "order"}
	rig.Publish(f.t, f.url, f.exchanges[kind], routingKeys[kind], msg)
}

// onTopic declares the main queue with a binding to the topic exchange.
func (f *fed) onTopic(kind topology.QueueType) func(*wamqp.Config) {
	return func(cfg *wamqp.Config) {
		rig.OnTopic(f.exchanges["topic"], "order.#")(cfg)
		cfg.Queue.Arguments = amqp.Table{"x-queue-type": string(kind)}
	}
}

// withVia returns a strategy of the test's own with these exchanges.
func withVia(
	t testing.TB, name string, kind topology.QueueType, exchanges []string,
) topology.Strategy {
	prefix := testbroker.Queue(t)
	if name == "PerQueue" {
		return topology.PerQueue{Type: kind, Via: exchanges, Prefix: prefix}
	}
	return topology.Shared{Type: kind, Via: exchanges, Prefix: prefix}
}

var strategyNames = []string{"PerQueue", "Shared"}

// Given a queue that three exchanges feed, when a message of each fails twice, then each comes back
// through its own exchange with its own routing key. The siblings get the retries of their exchange
// alone. A message that was published to the queue, at once or with a delay, comes to the queue
// alone.
func TestEachMessageReturnsThroughItsOwnExchange(t *testing.T) {
	t.Parallel()
	for _, names := range []string{
		"PerQueue quorum quorum", "Shared quorum classic", "PerQueue classic classic",
	} {
		t.Run(names, func(t *testing.T) {
			t.Parallel()
			f, n := newFed(t), strings.Fields(names)
			strategy := withVia(t, n[0], topology.QueueType(n[1]), f.names())
			eachReturns(f, strategy, topology.QueueType(n[2]))
		})
	}
}

func eachReturns(f *fed, strategy topology.Strategy, main topology.QueueType) {
	t := f.t
	var mu sync.Mutex
	seen := map[string][]string{}
	r := rig.Start(t, rig.Config{
		URL: f.url, Strategy: strategy, Configure: f.onTopic(main),
		Policy: backoff.List{100 * time.Millisecond, 300 * time.Millisecond},
		Handle: func(msg *message.Message) error {
			raw, _ := topology.Received(msg.Context())
			state := middleware.StateOf(msg.Context())
			attempt := middleware.Attempt(msg.Context())
			mu.Lock()
			defer mu.Unlock()
			body := string(msg.Payload)
			seen[body] = append(seen[body], fmt.Sprintf("%d %s of %s %s", attempt, raw.RoutingKey,
				state.OriginExchange, state.OriginRoutingKey))
			if attempt < 3 {
				return rig.ErrFailed
			}
			return nil
		},
	})
	f.bind(r.Queue, "fanout")
	f.bind(r.Queue, "headers")
	for _, kind := range feeding {
		f.send(kind)
	}
	alone := rig.Message("alone")
	alone.Headers = amqp.Table{ // a producer forges every header that could steer it
		"kind": "order", header.Queue: r.Queue, keys.OriginExchange: f.exchanges["topic"],
		keys.Via: "through " + f.exchanges["topic"] + " " + r.Queue, keys.Level + "9": "first",
	}
	r.Publish(alone)
	pub := rig.NewPublisher(t, rig.OpenClient(t, f.url, strategy), f.url)
	require.NoError(t, pub.Publish(r.Queue, rig.DelayedBy(700*time.Millisecond)))
	calls := func() int {
		mu.Lock()
		defer mu.Unlock()
		n := 0
		for _, each := range seen {
			n += len(each)
		}
		return n
	}
	rig.WaitFor(t, "three attempts of each", func() bool { return calls() >= 15 })
	for _, kind := range feeding {
		var want []string
		for attempt := range 3 {
			want = append(want, fmt.Sprintf("%d %s of %s %s", attempt+1, routingKeys[kind],
				f.exchanges[kind], routingKeys[kind]))
		}
		require.Equal(t, want, seen[kind])
		for range 3 {
			copied := rig.Take(t, f.url, f.siblings[kind])
			require.Equal(t, kind+" by "+routingKeys[kind], string(copied.Body)+" by "+copied.RoutingKey)
		}
	}
	require.Len(t, seen["alone"], 3)
	require.Len(t, seen["later"], 3)
	r.RequireNothingLeft(0)
	require.Equal(t, 15, calls())
	require.Equal(t, 0, rig.Waiting(t, f.url, r.Plan))
	for _, kind := range feeding {
		require.Equal(t, 0, testbroker.Depth(t, f.url, f.siblings[kind]), "no more than its own")
	}
}

// Given two services that two exchanges feed and that fail everything, then each retry is a new
// message for the other service, and its failures there stay there.
func TestSiblingsOfTwoExchangesDoNotMultiplyRetries(t *testing.T) {
	t.Parallel()
	for _, name := range strategyNames {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFed(t)
			strategy := withVia(t, name, topology.Quorum, f.names())
			var services []*rig.Service
			var calls [2]rig.Timeline
			for i := range calls {
				r := rig.Start(t, rig.Config{
					URL: f.url, Strategy: strategy, Configure: f.onTopic(topology.Classic),
					Policy: rig.Quickly(2), Handle: calls[i].Fail,
				})
				f.bind(r.Queue, "fanout")
				services = append(services, r)
			}
			f.send("topic")
			f.send("fanout")
			for i, r := range services {
				for range 6 { // of each exchange the message, and two copies of the other's retries
					dead := r.DeadLetter()
					require.Equal(t, "3", dead.Headers[header.DeadFailures])
					require.Equal(t, f.exchanges[string(dead.Body)], dead.Headers[keys.OriginExchange])
					require.Equal(t, routingKeys[string(dead.Body)], dead.Headers[keys.OriginRoutingKey])
					for key := range dead.Headers {
						require.False(t, key == keys.Via || strings.HasPrefix(key, keys.Level), key)
					}
				}
				require.Equal(t, 18, calls[i].Count())
				r.RequireNothingLeft(0)
			}
			for _, r := range services { // they may share the wait queues
				require.Equal(t, 0, rig.Waiting(t, f.url, r.Plan))
			}
			require.Equal(t, 5, testbroker.Depth(t, f.url, f.siblings["topic"]), "the message, four retries")
			require.Equal(t, 5, testbroker.Depth(t, f.url, f.siblings["fanout"]))
		})
	}
}
