package topology_test

import (
	"strings"
	"testing"
	"time"

	"github.com/millpond-go/millpond/internal/testing/rig"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
)

func TestDelayedMessageArrivesWhenItIsDue(t *testing.T) {
	t.Parallel()
	for name, strategy := range rig.Strategies {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := testbroker.URL(t)
			arrivals := make(chan rig.Arrival, 10)
			delays := backoff.List{3 * time.Second}
			r := rig.Start(t, rig.Config{URL: url, Strategy: strategy(t), Policy: delays, Handler: rig.Collect(arrivals)})
			pub := rig.NewPublisher(t, r.Client, url, topology.WithDelays(delays...))

			late, soon := rig.DelayedBy(3*time.Second), message.NewMessage(watermill.NewUUID(), []byte("now"))
			began := time.Now()
			require.NoError(t, pub.Publish(r.Queue, late, soon))
			require.Equal(t, soon.UUID, rig.Await(t, arrivals).Msg.UUID)
			got := rig.Await(t, arrivals)
			require.Equal(t, late.UUID, got.Msg.UUID)
			require.Equal(t, "later", string(got.Msg.Payload))
			require.Equal(t, "reminder", got.Msg.Metadata.Get("kind"))
			require.Equal(t, 1, got.Attempt)
			require.Equal(t, amqp.Persistent, got.Raw.DeliveryMode)
			require.GreaterOrEqual(t, got.At.Sub(began), 3*time.Second-rig.Grace)
			require.LessOrEqual(t, got.At.Sub(began), 3*time.Second+rig.Ceiling)
		})
	}
}

// The broker is restarted while the messages wait.
func TestDelayedMessageSurvivesARestart(t *testing.T) {
	t.Parallel()
	node := testbroker.Private(t, rig.QuickDeadLettering)
	delays := backoff.List{3 * time.Second}
	type service struct {
		*rig.Service
		pub      *topology.Publisher
		arrivals chan rig.Arrival
	}
	services := map[string]service{}
	for _, name := range []string{"quorum", "attempt quorum", "shared quorum", "levels quorum", "returning quorum"} {
		s := service{arrivals: make(chan rig.Arrival, 10)}
		s.Service = rig.Start(t, rig.Config{
			URL: node.URL(), Queue: strings.ReplaceAll(name, " ", "-"), Strategy: rig.Strategies[name](t), Policy: delays,
			Configure: rig.QuorumQueue, Handler: rig.Collect(s.arrivals),
		})
		s.pub = rig.NewPublisher(t, s.Client, node.URL(), topology.WithDelays(delays...))
		require.NoError(t, s.pub.Publish(s.Queue, rig.DelayedBy(0)), "so that the delayed ones are published fast")
		rig.Await(t, s.arrivals)
		services[name] = s
	}
	began := time.Now()
	for _, s := range services {
		require.NoError(t, s.pub.Publish(s.Queue, rig.DelayedBy(3*time.Second)))
	}
	node.Stop(t)
	node.Start(t)
	for name, s := range services {
		got := rig.Await(t, s.arrivals)
		require.Equal(t, "later", string(got.Msg.Payload), name)
		require.GreaterOrEqual(t, got.At.Sub(began), 3*time.Second-rig.Grace, name)
		rig.WaitFor(t, "publishing works again with "+name, func() bool { return s.pub.Publish(s.Queue, rig.DelayedBy(0)) == nil })
		rig.Await(t, s.arrivals)
	}
}

// Levels holds any delay at once: what is due in forty days is in a wait queue, to
// be seen, and comes back on no round.
func TestDelayOfFortyDaysIsVisibleOnLevels(t *testing.T) {
	t.Parallel()
	url, queue := testbroker.URL(t), testbroker.Queue(t)
	strategy := topology.Levels{Prefix: testbroker.Queue(t)}
	rig.RemovePlan(t, url, strategy, queue, nil)
	client, plan := rig.Operator(t, url, queue, strategy, rig.Unlisted)
	rig.Provision(t, url, client, queue, rig.Unlisted)
	pub := rig.NewPublisher(t, client, url)
	const delay = 40 * 24 * time.Hour
	require.NoError(t, pub.Publish(queue, rig.DelayedBy(delay)))
	require.Equal(t, 1, rig.Waiting(t, url, plan))
	route, err := plan.Route(topology.Retry{Delay: delay})
	require.NoError(t, err)
	require.GreaterOrEqual(t, route.Delay, delay)
	require.LessOrEqual(t, route.Delay, delay+delay/100)
	report, err := rig.OpenOperator(t, url).Inspect(t.Context(), plan)
	require.NoError(t, err)
	for _, q := range report.Queues {
		if q.Ready.N == 1 {
			require.LessOrEqual(t, q.Delay, route.Delay)
			require.Greater(t, q.Delay, 10*24*time.Hour, "in a wait queue of days, not in rounds")
			return
		}
	}
	t.Fatal("no wait queue has it")
}

// Longer than every wait queue: the Subscriber keeps it going.
func TestDelayedMessageWaitsInRounds(t *testing.T) {
	t.Parallel()
	url := testbroker.URL(t)
	arrivals := make(chan rig.Arrival, 10)
	strategy := topology.PerQueue{WaitSteps: []time.Duration{time.Second}}
	r := rig.Start(t, rig.Config{URL: url, Strategy: strategy, Policy: backoff.List{time.Second}, Handler: rig.Collect(arrivals)})
	pub := rig.NewPublisher(t, r.Client, url)
	began := time.Now()
	require.NoError(t, pub.Publish(r.Queue, rig.DelayedBy(40*24*time.Hour), rig.DelayedBy(2500*time.Millisecond)))
	got := rig.Await(t, arrivals)
	require.Equal(t, 1, got.Attempt)
	require.GreaterOrEqual(t, got.At.Sub(began), 2500*time.Millisecond-50*time.Millisecond-rig.Grace)
	seen, ok := middleware.FirstSeen(got.Msg.Context())
	require.True(t, ok)
	require.GreaterOrEqual(t, seen.Sub(began), 2500*time.Millisecond-50*time.Millisecond-rig.Grace, "first seen when it was due")

	// The one of forty days is there to be seen.
	r.Stop()
	rig.WaitFor(t, "the message of forty days", func() bool {
		return testbroker.Depth(t, url, r.Plan.WaitSteps[0].RoutingKey)+testbroker.Depth(t, url, r.Queue) == 1
	})
	waiting := rig.Take(t, url, r.Queue)
	due, err := time.Parse(time.RFC3339Nano, waiting.Headers[header.NotBefore].(string))
	require.NoError(t, err)
	require.WithinDuration(t, began.Add(40*24*time.Hour), due, rig.Ceiling)
}

// Watermill's DelayOnError, with PoisonQueue to publish it again: every failure
// doubles the delay.
func TestDelayOnError(t *testing.T) {
	t.Parallel()
	url := testbroker.URL(t)
	queue := testbroker.Queue(t)
	var calls rig.Timeline
	done := make(chan struct{})
	delays := backoff.List{time.Second, 2 * time.Second}
	client, err := topology.Open(t.Context(), rig.ConnectionConfig(url), topology.PerQueue{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	pub := rig.NewPublisher(t, client, url, topology.WithDelays(delays...))
	poison, err := wmiddleware.PoisonQueue(pub, queue)
	require.NoError(t, err)
	onError := &wmiddleware.DelayOnError{InitialInterval: time.Second, MaxInterval: time.Minute, Multiplier: 2}
	r := rig.Start(t, rig.Config{
		URL: url, Queue: queue, Policy: delays, Outer: nil,
		Handler: poison(onError.Middleware(func(msg *message.Message) ([]*message.Message, error) {
			if calls.Add() < 3 {
				return nil, rig.ErrFailed
			}
			close(done)
			return nil, nil
		})),
	})
	require.NoError(t, pub.Publish(r.Queue, message.NewMessage("id", []byte("again"))))
	select {
	case <-done:
	case <-time.After(rig.Patience):
		t.Fatal("not handled")
	}
	calls.RequireGaps(t, time.Second, 2*time.Second)
}

func TestPublisherReportsWhatIsNotTaken(t *testing.T) {
	t.Parallel()
	url := testbroker.URL(t)
	client, err := topology.Open(t.Context(), rig.ConnectionConfig(url), topology.PerQueue{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	pub := rig.NewPublisher(t, client, url)
	missing := testbroker.Queue(t)
	plain := func() *message.Message { return message.NewMessage("id", nil) }
	require.ErrorContains(t, pub.Publish(missing, plain()), "no queue for")
	require.ErrorContains(t, pub.Publish(missing, rig.DelayedBy(time.Second)), "subscribe to it first")
	require.Equal(t, -1, testbroker.Depth(t, url, missing+".wait.1s"), "nothing was declared")

	r := rig.Start(t, rig.Config{URL: url, Policy: backoff.List{time.Second}, Handler: rig.Collect(make(chan rig.Arrival, 10))})
	garbage := plain()
	garbage.Metadata.Set(delay.DelayedForKey, "soon")
	require.ErrorContains(t, pub.Publish(r.Queue, garbage), `"_watermill_delayed_for" is no duration`)
	wide := rig.DelayedBy(time.Second)
	wide.Metadata.Set("wide", strings.Repeat("x", 130_000))
	require.ErrorIs(t, pub.Publish(r.Queue, wide), topology.ErrTooLarge)

	cfg := rig.QueueConfig(url)
	cfg.Marshaler = wamqp.DefaultMarshaler{PostprocessPublishing: func(p amqp.Publishing) amqp.Publishing {
		p.Expiration = "500"
		return p
	}}
	expiring, err := client.NewPublisher(cfg)
	require.NoError(t, err)
	require.ErrorContains(t, expiring.Publish(r.Queue, rig.DelayedBy(time.Second)), "before its wait queue gives it back")
	require.NoError(t, expiring.Publish(r.Queue, plain()))

	exchange := wamqp.NewDurablePubSubConfig(url, nil)
	events, err := client.NewPublisher(exchange)
	require.NoError(t, err)
	topic := testbroker.Queue(t)
	t.Cleanup(func() { _ = testbroker.Channel(t, url).ExchangeDelete(topic, false, false) })
	require.ErrorContains(t, events.Publish(topic, rig.DelayedBy(time.Second)), "returns to one queue")
	require.ErrorContains(t, events.Publish(topic, plain()), "no queue for", "the exchange is declared, and nobody is bound")

	require.NoError(t, pub.Close())
	require.ErrorIs(t, pub.Publish(r.Queue, plain()), topology.ErrClosed)
	_, err = client.NewPublisher(wamqp.Config{Publish: wamqp.PublishConfig{Immediate: true}}, topology.WithDelays(0))
	for _, want := range []string{"Marshaler is nil", "Exchange.GenerateName is nil", "Immediate", "WithDelays: 0s is not positive"} {
		require.ErrorContains(t, err, want)
	}
	require.NoError(t, client.Close())
	require.ErrorIs(t, events.Publish(topic, plain()), topology.ErrClosed)
	_, err = client.NewPublisher(cfg)
	require.ErrorIs(t, err, topology.ErrClosed)
}
