package e2e_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/internal/testing/frame"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
)

// Given a queue or an exchange that exists with other arguments, when a service subscribes, then
// the error names it, the argument, both values and the way out. For the user's own that is a field
// of the configuration, because no other name in the strategy would help. Once it is deleted,
// Subscribe declares it. A dead-letter queue that exists is adopted. The broker cuts the text of a
// long name at 255 bytes: a bug once missed such a conflict.
func TestConflictsAreNamed(t *testing.T) {
	t.Parallel()
	url, quorum := testbroker.URL(t), amqp.Table{"x-queue-type": "quorum"}
	five, six := amqp.Table{"x-max-priority": int32(5)}, amqp.Table{"x-max-priority": int32(6)}
	const ownField = `set Queue.Arguments["x-queue-type"] of the configuration to`
	type testCase struct {
		of        string // the kind, a space, and the end of the name behind the queue's
		exists    amqp.Table
		strategy  topology.Strategy // nil: PerQueue
		configure func(*wamqp.Config)
		argument  string
		texts     []string
	}
	rig.Each(t, map[string]testCase{
		"a wait queue": {
			of:       "queue .wait.1s",
			exists:   amqp.Table{"x-queue-type": "quorum", "x-message-ttl": int64(2000)},
			argument: "x-", texts: []string{"exists with other arguments"},
		},
		"a long name": {
			of: "queue " + strings.Repeat("-long", 24) + ".wait.1s", exists: quorum, argument: "x-",
		},
		"an exchange of an older version": {
			of: "exchange .retry", strategy: topology.PerAttempt{}, argument: "alternate-exchange",
			texts: []string{"stop all services that use it, delete it, and start them again"},
		},
		"own queue of another type": {
			of: "queue ", exists: quorum, argument: "x-queue-type", texts: []string{ownField},
		},
		"own queue that has one more": {
			of: "queue ", exists: five, argument: "x-max-priority",
			texts: []string{`set Queue.Arguments["x-max-priority"] of the configuration to`},
		},
		"own queue that lacks one": {
			of: "queue ", argument: "x-single-active-consumer",
			configure: rig.WithQueue(amqp.Table{"x-single-active-consumer": true}),
			texts: []string{
				`leave Queue.Arguments["x-single-active-consumer"] out of the configuration, or`,
			},
		},
		"own queue with another value": {
			of: "queue ", exists: five, configure: rig.WithQueue(six), argument: "x-max-priority",
			texts: []string{
				`x-max-priority is '5', wanted '6'; set Queue.Arguments["x-max-priority"] of the`,
			},
		},
		"own exchange": {
			of: "exchange .own", argument: "type",
			texts: []string{"set Exchange.Type of the configuration to"},
		},
	}, func(t *testing.T, c testCase) {
		kind, end, _ := strings.Cut(c.of, " ")
		long, _, _ := strings.Cut(end, ".")
		queue := testbroker.Queue(t) + long
		name := queue + strings.TrimPrefix(end, long)
		if c.strategy == nil {
			c.strategy = topology.PerQueue{}
		}
		testbroker.Delete(t, queue)
		policy := backoff.List{time.Second}
		rig.RemovePlan(t, url, c.strategy, queue, policy)
		cfg := rig.QueueConfig(url)
		if c.configure != nil {
			c.configure(&cfg)
		}
		if end == ".own" {
			rig.OnTopic(name, "#")(&cfg)
		}
		if kind == "queue" {
			rig.DeclareQueue(t, url, name, c.exists)
		} else {
			rig.DeclareExchange(t, url, name, "direct")
		}
		if name != queue {
			rig.DeclareQueue(t, url, queue+".dlq", quorum)
		}
		client := rig.OpenClient(t, url, c.strategy)
		err := rig.SubscribeError(t, client, cfg, queue, policy)
		var conflict *topology.ConflictError
		require.ErrorAs(t, err, &conflict)
		require.Equal(t, kind+" "+name, conflict.Kind+" "+conflict.Name)
		require.Contains(t, conflict.Argument, c.argument)
		require.NotEmpty(t, conflict.Wanted+conflict.Found)
		rig.RequireTexts(t, err, c.texts...)
		if name == queue {
			rig.RequireTexts(t, err, "delete the queue once it is empty")
			require.NotContains(t, err.Error(), "in the strategy")
		}
		ch := testbroker.Channel(t, url)
		if kind == "queue" {
			_, err = ch.QueueDelete(name, false, false, false)
		} else {
			err = ch.ExchangeDelete(name, false, false)
		}
		require.NoError(t, err)
		require.NoError(t, rig.SubscribeError(t, client, cfg, queue, policy))
	})
}

// Given a dead-letter exchange of the user's that is missing, when a message dies, then it is held,
// the error names the exchange, and nothing is declared. Retries beside it are published once each.
// When the exchange is there, then the dead letter arrives once.
func TestMissingDeadLetterExchangeIsNotDeclared(t *testing.T) {
	t.Parallel()
	const others = 20
	url, queue := testbroker.URL(t), testbroker.Queue(t)
	exchange, dead := queue+".missing", testbroker.Queue(t)
	proxy := testbroker.NewProxy(t, url)
	var mu sync.Mutex
	declared, runs := 0, rig.NewCalls()
	proxy.Tap(func(s testbroker.Seen) testbroker.Fault {
		mu.Lock()
		defer mu.Unlock()
		if s.Up && s.Method() == frame.QueueDeclare {
			declared++
		}
		return testbroker.Fault{}
	})
	target := func(string) topology.Route { return topology.Route{Exchange: exchange} }
	var told events
	r := rig.Start(t, rig.Config{
		URL: url, PublisherURL: proxy.URL(), Queue: queue, Policy: backoff.List{200 * time.Millisecond},
		Strategy:          topology.PerQueue{Dead: topology.DeadLetters{Target: target}},
		Configure:         func(cfg *wamqp.Config) { rig.QuorumQueue(cfg); rig.QuickReconnect(cfg) },
		RetryOptions:      []middleware.Option{middleware.WithObserver(&told)},
		SubscriberOptions: rig.InFlight(5),
		Handle: func(msg *message.Message) error {
			defer runs.Enter(string(msg.Payload))()
			if string(msg.Payload) == "dead" {
				return middleware.Permanent(rig.ErrFailed)
			}
			if middleware.Attempt(msg.Context()) == 1 {
				return rig.ErrFailed
			}
			return nil
		},
	})
	letter := rig.Message("dead")
	letter.MessageId = "dead"
	r.Publish(letter)
	for i := range others {
		r.Send(fmt.Sprint(i))
	}
	rig.WaitFor(t, "the retries, and three failed tries of the dead letter", func() bool {
		return told.handedOver() == others && told.failing(3) > 0
	})
	assert.Contains(t, r.Logs.Text(),
		fmt.Sprintf("exchange %q may be missing, and the plan does not declare it", exchange))
	assert.NotContains(t, r.Logs.Text(), "was declared again")

	rig.DeclareExchange(t, url, exchange, "fanout")
	rig.BindQueue(t, url, dead, exchange, "")
	assert.Equal(t, "dead", string(rig.Take(t, url, dead).Body))
	rig.WaitFor(t, "the second runs", func() bool {
		return runs.Total() > 2*others && told.handedOver() == others+1
	})
	r.Stop()
	assert.Zero(t, testbroker.Depth(t, url, dead), "a second dead letter")
	assert.Equal(t, 1, runs.Of("dead"))
	for i := range others {
		assert.Equal(t, 2, runs.Of(fmt.Sprint(i)), "runs of %d", i)
	}
	mu.Lock()
	defer mu.Unlock()
	assert.Zero(t, declared, "declared on the publishing connection")
}

// Given a plan whose queues and exchanges are deleted while they are empty, then each is
// declared again and used: wait queues and the dead-letter queue (T6). A bug once let an alternate
// exchange take the messages, which a policy had given to every exchange.
func TestVanishedQueuesAreDeclaredAgain(t *testing.T) {
	t.Parallel()
	alternate := ruledBy(t, "alternate")
	rig.DeclareExchange(t, alternate, "sink", "fanout")
	rig.BindQueue(t, alternate, "sink", "sink", "")
	t.Cleanup(func() { require.Zero(t, testbroker.Depth(t, alternate, "sink")) })
	t.Run("by name", func(t *testing.T) {
		t.Parallel()
		rig.OnEachStrategy(t, func(t *testing.T, strategy topology.Strategy) {
			queuesVanish(t, testbroker.URL(t), strategy, true)
		}, "quorum", "attempt quorum", "shared classic", "levels quorum", "returning quorum")
	})
	t.Run("under a policy", func(t *testing.T) {
		t.Parallel()
		rig.OnEachStrategy(t, func(t *testing.T, strategy topology.Strategy) {
			queuesVanish(t, alternate, strategy, false)
		}, "quorum", "shared quorum", "levels quorum", "returning quorum")
	})
}

func queuesVanish(t *testing.T, url string, strategy topology.Strategy, exchanges bool) {
	t.Helper()
	queue, ch := testbroker.Queue(t), testbroker.Channel(t, url)
	policy := backoff.List{time.Second, time.Second}
	plan := rig.PlanOf(t, strategy, queue, policy...)
	var calls rig.Timeline
	r := rig.Start(t, rig.Config{
		URL: url, Queue: queue, Strategy: strategy, Policy: policy,
		Handle: func(msg *message.Message) error {
			for _, e := range plan.Exchanges {
				if exchanges {
					assert.NoError(t, ch.ExchangeDelete(e.Name, false, false))
				}
			}
			for _, q := range plan.Queues {
				if _, err := ch.QueueDelete(q.Name, false, false, false); err != nil {
					t.Error(err)
				}
			}
			return calls.Fail(msg) // Its deletions take a busy broker seconds.
		},
	})
	r.Send("here")
	dead := rig.Take(t, url, plan.Dead.RoutingKey)
	require.Equal(t, "here", string(dead.Body), dead.Headers)
	calls.RequireNotEarly(t, policy...)
	// The wait queue or its exchange twice, and the dead-letter queue.
	lines := r.Logs.Saying("A part of the plan had vanished and was declared again")
	require.Len(t, lines, 3)
	require.Regexp(t, "^error ", lines[0])
	require.Contains(t, lines[2], fmt.Sprintf("vanished:queue %q", plan.Dead.RoutingKey))
}

// Given messages in shared wait queues, when their main queue is deleted, then they end in the
// stranded queue with all their headers. Messages of another queue behind them are on time (T8).
func TestVanishedDestinationStrandsOnlyItsOwn(t *testing.T) {
	t.Parallel()
	const gone, healthy = 40, 20 // more than the 32 that stop a wait queue (F5)
	rig.OnEachStrategy(t, func(t *testing.T, strategy topology.Strategy) {
		var back rig.Timeline
		c := rig.Config{
			URL: testbroker.URL(t), Strategy: strategy, Configure: rig.Prefetch(100),
			// Longer than it takes until all wait on a broker that ten tests share. A
			// message that returned earlier would be dead-lettered.
			Policy: backoff.List{10 * time.Second},
		}
		vanishing, other := c, c
		vanishing.Handle, other.Handle = rig.Fail, back.FailFirst
		first := rig.Start(t, vanishing)
		rig.Fill(t, c.URL, first.Queue, gone)
		rig.WaitFor(t, "all to wait", func() bool { return first.Logs.Said(willBeRetried) == gone })
		first.Stop()
		rig.DeleteQueue(t, c.URL, first.Queue)

		second := rig.Start(t, other)
		rig.Fill(t, c.URL, second.Queue, healthy)
		rig.WaitFor(t, "the healthy messages to return", func() bool { return back.Count() == healthy })
		names := rig.QueueNames(first.Plan)
		stranded := names[slices.IndexFunc(names, func(q string) bool {
			return strings.HasSuffix(q, ".stranded")
		})]
		rig.AwaitDepth(t, c.URL, stranded, gone)
		one := rig.Take(t, c.URL, stranded)
		words := strings.Split(one.RoutingKey, ".")
		require.Equal(t, first.Queue, words[len(words)-1])
		require.Equal(t, first.Queue, one.Headers[header.Queue])
		require.Equal(t, "1", one.Headers[keys.Failures])
		require.Zero(t, rig.Waiting(t, c.URL, first.Plan))
	}, "shared quorum", "levels classic", "returning quorum")
}
