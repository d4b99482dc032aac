package delayedx_test

import (
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/topologytest"
)

func TestMain(m *testing.M) {
	testbroker.Main(m, func() error { return goleak.Find() })
}

// classicQueue makes the main queue a classic one, before which a restart loses nothing.
func classicQueue(cfg *wamqp.Config) { cfg.Queue.Arguments = amqp.Table{"x-queue-type": "classic"} }

// exchange is the exchange of Via. Every vhost has it.
const exchange = "amq.topic"

// The scenarios share one node, because a start takes seconds of processor time. Each runs without
// Via and with it.
func TestDelayedExchange(t *testing.T) {
	t.Parallel()
	node := testbroker.Private(t, testbroker.DelayedPlugin(t))
	t.Log("RabbitMQ", node.Version())
	for name, scenario := range map[string]scenario{
		"every attempt comes on time":           attemptsComeOnTime,
		"every message ends":                    everyMessageEnds,
		"a vanished exchange":                   vanishedExchange,
		"the least permissions suffice":         leastPermissions,
		"definitions":                           definitions,
		"verify names what the plugin promises": verifyNamesIt,
		"the suite of all strategies":           suite,
	} {
		for way, via := range map[string][]string{"": nil, ", Via": {exchange}} {
			t.Run(name+way, func(t *testing.T) {
				t.Parallel()
				scenario(t, node, strategy(t, via...))
			})
		}
	}
	t.Run("siblings", func(t *testing.T) {
		t.Parallel()
		siblings(t, node, strategy(t, exchange))
	})
}

// scenario is a test of one strategy.
type scenario = func(*testing.T, *testbroker.Node, topology.DelayedExchange)

// strategy has its own prefix, so that scenarios do not share an exchange.
func strategy(t *testing.T, via ...string) topology.DelayedExchange {
	t.Helper()
	return topology.DelayedExchange{Prefix: own(t), Via: via}
}

// suite runs the tests that every strategy passes.
func suite(t *testing.T, node *testbroker.Node, st topology.DelayedExchange) {
	t.Helper()
	topologytest.Run(t, topologytest.Config{
		Strategy: st, URL: node.URL(), DeleteShared: true, Patience: rig.Patience,
	})
}

var names atomic.Int32

// own returns a name for a queue, an exchange prefix or a user of one scenario.
func own(t *testing.T) string {
	t.Helper()
	return "orders-" + strconv.Itoa(int(names.Add(1)))
}

// publish publishes a message to the queue, through the exchange of Via if the strategy has one.
func publish(
	t *testing.T, node *testbroker.Node, st topology.DelayedExchange, queue string,
	msg amqp.Publishing,
) {
	t.Helper()
	by := ""
	if st.Via != nil {
		by = exchange
		require.NoError(t, testbroker.Channel(t, node.URL()).QueueBind(queue, queue, by, false, nil))
	}
	rig.Publish(t, node.URL(), by, queue, msg)
}

// Given a handler that always fails, and a message that has come with its own x-delay, then each
// attempt comes no earlier than its delay and once, and the dead letter has the attempts and
// nothing of the plugin.
func attemptsComeOnTime(t *testing.T, node *testbroker.Node, st topology.DelayedExchange) {
	var calls rig.Timeline
	attempts := make(chan int, 10)
	s := rig.Start(t, rig.Config{
		URL: node.URL(), Queue: own(t), Strategy: st,
		Policy: backoff.List{300 * time.Millisecond, time.Second, 2 * time.Second},
		Handle: func(msg *message.Message) error {
			n := middleware.Attempt(msg.Context())
			attempts <- n
			if n > 1 {
				assert.NotContains(t, msg.Metadata, "x-delay")
			}
			return calls.Fail(msg)
		},
	})
	msg := rig.Message("again")
	msg.Headers = amqp.Table{"x-delay": int64(60_000), "tenant": "t1"}
	publish(t, node, st, s.Queue, msg)
	dead := s.DeadLetter()
	rig.RequireDead(t, dead, "exhausted", "4")
	require.Equal(t, "t1", dead.Headers["tenant"])
	require.NotContains(t, dead.Headers, "x-delay")
	require.Equal(t, s.Queue, dead.Headers[keys.OriginRoutingKey])
	require.NotContains(t, dead.Headers[keys.OriginExchange], ".delayed", "the first exchange")
	calls.RequireGaps(t, s.Plan, 300*time.Millisecond, time.Second, 2*time.Second)
	rig.AwaitAttempts(t, attempts, 1, 2, 3, 4)
	s.RequireOneConnection() // no message was taken for a failed publish
	s.RequireNothingLeft(0)
	require.Zero(t, stranded(t, node, st), "a second copy")
	require.Len(t, s.Logs.Saying("had vanished"), 0)
}

// stranded counts the stranded messages of a strategy.
func stranded(t *testing.T, node *testbroker.Node, st topology.DelayedExchange) int {
	t.Helper()
	return testbroker.Depth(t, node.URL(), st.Prefix+".stranded")
}

// Given a message for each way in which a message can end, then each ends as with every strategy.
func everyMessageEnds(t *testing.T, node *testbroker.Node, st topology.DelayedExchange) {
	cfg, handled := rig.EveryWay(rig.Config{
		URL: node.URL(), Queue: own(t), Strategy: st, Policy: backoff.List{time.Second},
	})
	rig.RequireEveryWay(t, rig.Start(t, cfg), handled, node.URL(), false)
}

// Given a delayed exchange that is deleted while messages wait, when the next message fails, then
// the exchange is declared again. The message that waited is still delivered (F49).
func vanishedExchange(t *testing.T, node *testbroker.Node, st topology.DelayedExchange) {
	handled := make(chan string, 10)
	s := rig.Start(t, rig.Config{
		URL: node.URL(), Queue: own(t), Strategy: st,
		Policy: backoff.List{15 * time.Second}, // to declare the exchange again
		Handle: func(msg *message.Message) error {
			if middleware.Attempt(msg.Context()) > 1 {
				handled <- string(msg.Payload)
				return nil
			}
			return rig.ErrFailed
		},
	})
	publish(t, node, st, s.Queue, rig.Message("before"))
	s.AwaitLine("Message will be retried")
	ch := testbroker.Channel(t, node.URL())
	delayed := s.Plan.WaitSteps[0].Exchange
	require.NoError(t, ch.ExchangeDelete(delayed, false, false))
	publish(t, node, st, s.Queue, rig.Message("after"))
	s.AwaitLine("was declared again", delayed)
	got := []string{rig.Await(t, handled), rig.Await(t, handled)}
	require.ElementsMatch(t, []string{"before", "after"}, got)
}

// Given a user with the permissions of the plan, then it retries and dead-letters.
func leastPermissions(t *testing.T, node *testbroker.Node, st topology.DelayedExchange) {
	name := own(t)
	plan, err := topology.PlanFor(st, name, backoff.List{time.Second})
	require.NoError(t, err)
	p := plan.Permissions(true)
	node.Grant(t, testbroker.Grant{
		VHost: "/", User: name, Configure: p.Configure, Write: p.Write, Read: p.Read,
	})
	s := rig.Start(t, rig.Config{
		URL: node.URLOf(name), AdminURL: node.URL(), Queue: name, Strategy: st,
		Policy: backoff.List{time.Second}, Handle: rig.Fail,
	})
	publish(t, node, st, name, rig.Message("again"))
	rig.RequireDead(t, rig.Take(t, node.URL(), name+".dlq"), "exhausted", "2")
	s.Stop()
}

// Given a plan that was imported as definitions, then a client that declares nothing uses it.
func definitions(t *testing.T, node *testbroker.Node, st topology.DelayedExchange) {
	name := own(t)
	plan, err := topology.PlanFor(st, name, backoff.List{time.Second})
	require.NoError(t, err)
	file, err := plan.Definitions("/", topology.Queue{
		Name: name, Arguments: amqp.Table{"x-queue-type": "classic"},
	})
	require.NoError(t, err)
	node.Import(t, file)
	s := rig.Start(t, rig.Config{
		URL: node.URL(), Queue: name, Strategy: st, Configure: classicQueue,
		ClientOptions: []topology.Option{topology.WithPreProvisioned()},
		Policy:        backoff.List{time.Second}, Handle: rig.Fail,
	})
	publish(t, node, st, s.Queue, rig.Message("again"))
	rig.RequireDead(t, s.DeadLetter(), "exhausted", "2")
}

// Given the plan on the broker, then Verify names the promises of the plugin, and for a quorum
// queue that messages are lost in a restart.
func verifyNamesIt(t *testing.T, node *testbroker.Node, st topology.DelayedExchange) {
	for kind, want := range map[string][]string{
		"classic": {"warning exposed exchange DELAYED"},
		"quorum":  {"critical dropping queue NAME", "warning exposed exchange DELAYED"},
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			name, st := own(t), st
			st.Prefix = name
			s := rig.Start(t, rig.Config{
				URL: node.URL(), Queue: name, Strategy: st, Handle: rig.Succeed,
				Policy: backoff.List{time.Second},
				Configure: func(cfg *wamqp.Config) {
					cfg.Queue.Arguments = amqp.Table{"x-queue-type": kind}
					if kind == "quorum" {
						cfg.Queue.Arguments["x-delivery-limit"] = int64(1000)
						cfg.Queue.Arguments["x-dead-letter-exchange"] = ""
						cfg.Queue.Arguments["x-dead-letter-routing-key"] = name + ".dlq"
					}
				},
			})
			logs := s.Logs.Saying("wait in a delayed-message exchange are lost")
			require.Len(t, logs, map[string]int{"classic": 0, "quorum": 1}[kind])
			found := rig.BlindFindings(t, rig.OpenOperator(t, node.URL()), s.Plan)
			names := strings.NewReplacer("NAME", name, "DELAYED", s.Plan.WaitSteps[0].Exchange)
			require.Equal(t, names.Replace(strings.Join(want, "\n")), strings.Join(found, "\n"))
		})
	}
}

// Given two siblings on the exchange that fail everything, then each sees each retry of the other
// as a new message, without the delay that the other has asked for.
func siblings(t *testing.T, node *testbroker.Node, st topology.DelayedExchange) {
	key := own(t)
	var calls [2]rig.Timeline
	var services []*rig.Service
	for i := range calls {
		s := rig.Start(t, rig.Config{
			URL: node.URL(), Queue: own(t), Strategy: st,
			Policy: backoff.List{200 * time.Millisecond, time.Second},
			Handle: func(msg *message.Message) error {
				assert.NotContains(t, msg.Metadata, "x-delay")
				return calls[i].Fail(msg)
			},
		})
		ch := testbroker.Channel(t, node.URL())
		require.NoError(t, ch.QueueBind(s.Queue, key, exchange, false, nil))
		services = append(services, s)
	}
	rig.Publish(t, node.URL(), exchange, key, rig.Message("again"))
	for i, s := range services {
		for range 3 { // the message, and two copies of the sibling's retries
			dead := s.DeadLetter()
			rig.RequireDead(t, dead, "exhausted", "3")
			require.Equal(t, exchange, dead.Headers[keys.OriginExchange])
			require.Equal(t, key, dead.Headers[keys.OriginRoutingKey])
			require.NotContains(t, dead.Headers, "x-delay")
		}
		require.Equal(t, 9, calls[i].Count())
	}
	for _, s := range services {
		s.RequireNothingLeft(0)
		require.Zero(t, stranded(t, node, st))
	}
}
