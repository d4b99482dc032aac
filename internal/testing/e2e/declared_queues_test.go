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

// Given messages that wait, when a release changes the policy from 2s/5s to 3s/5s and another the
// queues from quorum to classic, then there is no conflict, and each message comes back (T5).
func TestPolicyAndTypeChangeOnALiveQueue(t *testing.T) {
	t.Parallel()
	url, queue := testbroker.URL(t), testbroker.Queue(t)
	type call struct {
		body    string
		attempt int
	}
	calls := make(chan call, 100)
	back := map[call]bool{} // also while the next release starts
	deploy := func(strategy topology.PerQueue, policy backoff.List, body string) *rig.Service {
		r := rig.Start(t, rig.Config{
			URL: url, Queue: queue, Strategy: strategy, Policy: policy,
			Handle: func(msg *message.Message) error {
				c := call{string(msg.Payload), middleware.Attempt(msg.Context())}
				calls <- c
				if c == (call{body, 1}) {
					return rig.ErrFailed
				}
				return nil
			},
		})
		r.Send(body)
		for c := rig.Await(t, calls); c != (call{body, 1}); c = rig.Await(t, calls) {
			require.Equal(t, 2, c.attempt, c.body)
			back[c] = true
		}
		rig.AwaitDepth(t, url, r.Plan.WaitSteps[0].RoutingKey, 1)
		return r
	}
	quorum, classic := topology.PerQueue{}, topology.PerQueue{Type: topology.Classic}
	deploy(quorum, backoff.List{2 * time.Second, 5 * time.Second}, "first").Stop()
	deploy(quorum, backoff.List{3 * time.Second, 5 * time.Second}, "second").Stop()
	last := deploy(classic, backoff.List{3 * time.Second, 5 * time.Second}, "third")

	for len(back) < 3 {
		back[rig.Await(t, calls)] = true
	}
	require.Equal(t, map[call]bool{{"first", 2}: true, {"second", 2}: true, {"third", 2}: true}, back)
	require.Contains(t, last.Logs.Text(), "it is used unchanged", "the quorum DLQ is adopted")
	require.NotContains(t, last.Logs.Text(), "PRECONDITION_FAILED")
}

// requireConflict requires a conflict of "kind name argument" with these texts. An empty argument
// stands for any.
func requireConflict(t *testing.T, err error, of, argument string, texts ...string) {
	t.Helper()
	t.Log(err)
	var conflict *topology.ConflictError
	require.ErrorAs(t, err, &conflict)
	require.Equal(t, of, conflict.Kind+" "+conflict.Name)
	require.NotEmpty(t, conflict.Argument)
	if argument != "" {
		require.Equal(t, argument, conflict.Argument)
	}
	rig.RequireTexts(t, err, texts...)
}

// Given a queue with the name of a wait queue and other arguments, when a service subscribes, then
// the error names the queue, the argument, and both values.
func TestConflictingWaitQueueIsNamed(t *testing.T) {
	t.Parallel()
	url, queue := testbroker.URL(t), testbroker.Queue(t)
	other := amqp.Table{"x-queue-type": "quorum", "x-message-ttl": int64(2000)}
	rig.DeclareQueue(t, url, queue+".wait.1s", other)
	_, sub := rig.OpenSubscriber(t, url, topology.PerQueue{}, backoff.List{time.Second})
	_, err := sub.Subscribe(t.Context(), queue)
	requireConflict(t, err, "queue "+queue+".wait.1s", "", "exists with other arguments")
	var conflict *topology.ConflictError
	require.ErrorAs(t, err, &conflict)
	require.NotEmpty(t, conflict.Wanted)
	require.NotEmpty(t, conflict.Found)
}

// Given an exchange of an older version without an alternate exchange, when a service subscribes,
// then the error says that the exchange may be deleted. The next Subscribe declares it.
func TestConflictingExchangeIsNamed(t *testing.T) {
	t.Parallel()
	url, queue := testbroker.URL(t), testbroker.Queue(t)
	testbroker.Delete(t, queue+".retry.1.1s")
	exchange := queue + ".retry"
	rig.DeclareExchange(t, url, exchange, "direct")
	_, sub := rig.OpenSubscriber(t, url, topology.PerAttempt{}, backoff.List{time.Second})
	_, err := sub.Subscribe(t.Context(), queue)
	requireConflict(t, err, "exchange "+exchange, "alternate-exchange",
		"stop all services that use it, delete it, and start them again")
	require.NoError(t, testbroker.Channel(t, url).ExchangeDelete(exchange, false, false))
	_, err = sub.Subscribe(t.Context(), queue)
	require.NoError(t, err)
}

// Given the user's own queue or exchange with other arguments, when a service subscribes, then the
// error names the field of the configuration. No other name in the strategy would help.
func TestConflictOnTheUsersOwnQueueNamesTheField(t *testing.T) {
	t.Parallel()
	url := testbroker.URL(t)
	client, policy := rig.OpenClient(t, url, topology.PerQueue{}), backoff.List{time.Second}
	five, six := amqp.Table{"x-max-priority": int32(5)}, amqp.Table{"x-max-priority": int32(6)}
	for name, c := range map[string]struct {
		exists, wanted amqp.Table
		argument, want string
	}{
		"another type": {
			amqp.Table{"x-queue-type": "quorum"},
			nil, "x-queue-type",
			`set Queue.Arguments["x-queue-type"] of the configuration to`,
		},
		"has one more": {
			five, nil, "x-max-priority", `set Queue.Arguments["x-max-priority"] of the configuration to`,
		},
		"lacks one": {
			nil,
			amqp.Table{"x-single-active-consumer": true},
			"x-single-active-consumer",
			`leave Queue.Arguments["x-single-active-consumer"] out of the configuration, or`,
		},
		"other value": {
			five, six, "x-max-priority",
			`x-max-priority is '5', wanted '6'; set Queue.Arguments["x-max-priority"] of the`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			queue := testbroker.Queue(t)
			rig.DeclareQueue(t, url, queue, c.exists)
			cfg := rig.QueueConfig(url)
			cfg.Queue.Arguments = c.wanted
			err := rig.SubscribeError(t, client, cfg, queue, policy)
			requireConflict(t, err, "queue "+queue, c.argument, c.want, "delete the queue once it is empty")
			require.NotContains(t, err.Error(), "in the strategy")
		})
	}

	exchange := testbroker.Queue(t)
	rig.DeclareExchange(t, url, exchange, "direct")
	testbroker.Delete(t, exchange+"_shipping")
	suffix := wamqp.GenerateQueueNameTopicNameWithSuffix("shipping")
	err := rig.SubscribeError(t, client, wamqp.NewDurablePubSubConfig(url, suffix), exchange, policy)
	requireConflict(t, err, "exchange "+exchange, "type", "set Exchange.Type of the configuration to")
}

// Given a long name, when the broker cuts its text at 255 bytes, then a conflict is a conflict all
// the same, and a dead-letter queue that exists is adopted. A bug once missed the conflict.
func TestConflictWithALongNameIsRecognised(t *testing.T) {
	t.Parallel()
	url, queue := testbroker.URL(t), testbroker.Queue(t)+strings.Repeat("-long", 24)
	testbroker.Delete(t, queue, queue+".dlq", queue+".wait.1s", queue+".wait.2s")
	quorum := amqp.Table{"x-queue-type": "quorum"}
	rig.DeclareQueue(t, url, queue+".dlq", quorum)
	_, sub := rig.OpenSubscriber(t, url, topology.PerQueue{}, backoff.List{time.Second})
	_, err := sub.Subscribe(t.Context(), queue)
	require.NoError(t, err)

	rig.DeclareQueue(t, url, queue+".wait.2s", quorum)
	_, sub = rig.OpenSubscriber(t, url, topology.PerQueue{}, backoff.List{2 * time.Second})
	_, err = sub.Subscribe(t.Context(), queue)
	requireConflict(t, err, "queue "+queue+".wait.2s", "")
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
	declared, runs := 0, rig.NewBusy()
	proxy.Tap(func(s testbroker.Seen) testbroker.Fault {
		mu.Lock()
		defer mu.Unlock()
		if s.Up && s.Method() == frame.QueueDeclare {
			declared++
		}
		return testbroker.Fault{}
	})
	target := func(string) topology.Route { return topology.Route{Exchange: exchange} }
	var told rig.HandOvers
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
		return told.Succeeded() == others && told.AtLeast(1, 3)
	})
	assert.Contains(t, r.Logs.Text(),
		fmt.Sprintf("exchange %q may be missing, and the plan does not declare it", exchange))
	assert.NotContains(t, r.Logs.Text(), "was declared again")

	rig.DeclareExchange(t, url, exchange, "fanout")
	rig.BindQueue(t, url, dead, exchange, "")
	assert.Equal(t, "dead", string(rig.Take(t, url, dead).Body))
	rig.WaitFor(t, "the second runs", func() bool {
		return runs.Total() > 2*others && told.Succeeded() == others+1
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
// declared again and used: wait queues and the dead-letter queue (T6).
func TestVanishedQueuesAreDeclaredAgain(t *testing.T) {
	t.Parallel()
	rig.OnEachStrategy(t, func(t *testing.T, strategy topology.Strategy) {
		url, queue := testbroker.URL(t), testbroker.Queue(t)
		ch := testbroker.Channel(t, url)
		policy := backoff.List{time.Second, time.Second}
		plan := rig.PlanOf(t, strategy, queue, policy...)
		var mu sync.Mutex
		var ended time.Time
		var waited []time.Duration
		r := rig.Start(t, rig.Config{
			URL: url, Queue: queue, Strategy: strategy, Policy: policy,
			Handle: func(*message.Message) error {
				mu.Lock()
				defer mu.Unlock()
				if !ended.IsZero() {
					waited = append(waited, time.Since(ended))
				}
				for _, e := range plan.Exchanges {
					if err := ch.ExchangeDelete(e.Name, false, false); err != nil {
						t.Error(err)
					}
				}
				for _, q := range plan.Queues {
					if _, err := ch.QueueDelete(q.Name, false, false, false); err != nil {
						t.Error(err)
					}
				}
				ended = time.Now()
				return rig.ErrFailed
			},
		})
		r.Send("here")
		dead := rig.Take(t, url, plan.Dead.RoutingKey)
		require.Equal(t, "here", string(dead.Body), dead.Headers)
		// The waits count from the end of the handler, because its deletions take a busy
		// broker seconds.
		mu.Lock()
		defer mu.Unlock()
		require.Len(t, waited, 2)
		for _, d := range waited { // how much longer, the broker decides: Levels has 32 queues to declare
			require.GreaterOrEqual(t, d, time.Second-rig.Grace)
		}
		t.Logf("waited %v", waited)
		// The wait queue or its exchange twice, and the dead-letter queue.
		lines := r.Logs.Saying("A part of the plan had vanished and was declared again")
		require.Len(t, lines, 3)
		require.Regexp(t, "^error ", lines[0])
		require.Contains(t, lines[2], fmt.Sprintf("vanished:queue %q", plan.Dead.RoutingKey))
	})
}

// Not promised: a queue that is bound beside a wait queue hides that the wait queue has vanished,
// because the broker returns only a copy that no queue takes (F4). A strategy is safe that
// publishes to the default exchange: the broker lets no queue be bound to it.
func TestAForeignBindingHidesAVanishedWaitQueue(t *testing.T) {
	t.Parallel()
	rig.OnEachStrategy(t, func(t *testing.T, strategy topology.Strategy) {
		url, queue, foreign := testbroker.URL(t), testbroker.Queue(t), testbroker.Queue(t)
		ch := testbroker.Channel(t, url)
		var calls rig.Timeline
		plan := rig.PlanOf(t, strategy, queue, time.Second)
		waits := rig.QueueNames(plan)[:len(plan.WaitSteps)]
		r := rig.Start(t, rig.Config{
			URL: url, Queue: queue, Strategy: strategy, Policy: backoff.List{time.Second},
			Handle: func(msg *message.Message) error {
				for _, name := range waits {
					if _, err := ch.QueueDelete(name, false, false, false); err != nil {
						t.Error(err)
					}
				}
				return calls.Fail(msg)
			},
		})
		route, err := plan.Route(topology.Retry{Attempt: 1, Delay: time.Second})
		require.NoError(t, err)
		rig.DeclareQueue(t, url, foreign, nil)
		err = testbroker.Channel(t, url).QueueBind(foreign, route.RoutingKey, route.Exchange, false, nil)
		if route.Exchange == "" {
			require.ErrorContains(t, err, "ACCESS_REFUSED")
			return
		}
		require.NoError(t, err)
		r.Send("gone")
		require.Equal(t, "gone", string(rig.Take(t, url, foreign).Body))
		var still rig.Stillness
		rig.WaitFor(t, "the end of any wait", func() bool { return still.Look(calls.Count() > 1) })
		r.Stop()
		require.Equal(t, 1, calls.Count(), "the message was not retried")
		require.Zero(t, testbroker.Depth(t, url, queue), "and is acked")
		for _, name := range waits {
			require.Equal(t, -1, testbroker.Depth(t, url, name), "nothing was declared again")
		}
		require.Empty(t, r.Logs.Saying("had vanished"))
	})
}

// Not promised: a deleted wait queue takes its messages along (F10).
func TestDeletedWaitQueueLosesWhatIsInside(t *testing.T) {
	t.Parallel()
	for _, kind := range []topology.QueueType{topology.Quorum, topology.Classic} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			const delay = 2 * time.Second
			var calls rig.Timeline
			r := rig.Start(t, rig.Config{
				Strategy: topology.PerQueue{Type: kind}, Policy: backoff.List{delay}, Handle: calls.Fail,
			})
			r.Send("gone")
			waits := r.Plan.Queues[0].Name
			rig.AwaitDepth(t, r.URL, waits, 1)
			lost, err := testbroker.Channel(t, r.URL).QueueDelete(waits, false, false, false)
			require.NoError(t, err)
			require.Equal(t, 1, lost)
			<-time.After(2 * delay)
			require.Equal(t, 1, calls.Count())
			r.RequireNothingLeft(0)
		})
	}
}

// Given messages in shared wait queues, when their main queue is deleted, then they end in the
// stranded queue with all their headers. Messages of another queue behind them are on time (T8).
func TestVanishedDestinationStrandsOnlyItsOwn(t *testing.T) {
	t.Parallel()
	const gone, healthy = 200, 100 // more than the 32 that stop a wait queue (F5)
	for name, strategy := range rig.Strategies {
		if !rig.Sharing[name] {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var waits, back rig.Timeline
			c := rig.Config{
				URL: testbroker.URL(t), Strategy: strategy(t), Configure: rig.Prefetch(100),
				// Longer than it takes until all wait on a broker that ten tests share. A
				// message that returned earlier would be dead-lettered.
				Policy: backoff.List{30 * time.Second},
			}
			vanishing, other := c, c
			vanishing.Handle = rig.Fail
			vanishing.Outer = []message.HandlerMiddleware{func(h message.HandlerFunc) message.HandlerFunc {
				return func(msg *message.Message) ([]*message.Message, error) {
					produced, err := h(msg)
					if err == nil {
						waits.Add()
					}
					return produced, err
				}
			}}
			first := rig.Start(t, vanishing)
			rig.Fill(t, c.URL, first.Queue, gone)
			rig.WaitFor(t, "all to wait", func() bool { return waits.Count() == gone })
			first.Stop()
			rig.DeleteQueue(t, c.URL, first.Queue)

			other.Handle = back.FailFirst
			second := rig.Start(t, other)
			rig.Fill(t, c.URL, second.Queue, healthy)
			rig.WaitFor(t, "the healthy messages to return", func() bool { return back.Count() == healthy })
			var stranded string
			for _, q := range rig.QueueNames(first.Plan) {
				if strings.HasSuffix(q, ".stranded") {
					stranded = q
				}
			}
			rig.AwaitDepth(t, c.URL, stranded, gone)
			one := rig.Take(t, c.URL, stranded)
			words := strings.Split(one.RoutingKey, ".")
			require.Equal(t, first.Queue, words[len(words)-1])
			require.Equal(t, first.Queue, one.Headers[header.Queue])
			require.Equal(t, "1", one.Headers[keys.Failures])
			require.Zero(t, rig.Waiting(t, c.URL, first.Plan))
		})
	}
}
