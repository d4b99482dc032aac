package topology_test

import (
	"context"
	"strings"
	"testing"
	"time"

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

// arrival is a message as a handler saw it.
type arrival struct {
	at      time.Time
	msg     *message.Message
	attempt int
	raw     amqp.Delivery
}

// collect is a handler that passes on what it is given.
func collect(arrivals chan arrival) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		raw, _ := topology.Received(msg.Context())
		arrivals <- arrival{time.Now(), msg, middleware.Attempt(msg.Context()), raw}
		return nil, nil
	}
}

// await returns the next arrival.
func await(t testing.TB, arrivals chan arrival) arrival {
	t.Helper()
	select {
	case a := <-arrivals:
		return a
	case <-time.After(patience):
		t.Fatal("no message has arrived")
		return arrival{}
	}
}

func newPublisher(t testing.TB, client *topology.Client, url string, options ...topology.PublisherOption) *topology.Publisher {
	t.Helper()
	pub, err := client.NewPublisher(queueConfig(url), options...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, pub.Close()) })
	return pub
}

// delayedBy is a message with a delay in its context, as CQRS buses are given one.
func delayedBy(d time.Duration) *message.Message {
	msg := message.NewMessage(watermill.NewUUID(), []byte("later"))
	msg.Metadata.Set("kind", "reminder")
	msg.SetContext(delay.WithContext(context.Background(), delay.For(d)))
	return msg
}

func TestDelayedMessageArrivesWhenItIsDue(t *testing.T) {
	t.Parallel()
	for name, strategy := range strategies {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := testbroker.URL(t)
			arrivals := make(chan arrival, 10)
			delays := backoff.List{3 * time.Second}
			r := newRig(t, rigConfig{url: url, strategy: strategy(t), policy: delays, handler: collect(arrivals)})
			pub := newPublisher(t, r.client, url, topology.WithDelays(delays...))

			late, soon := delayedBy(3*time.Second), message.NewMessage(watermill.NewUUID(), []byte("now"))
			began := time.Now()
			require.NoError(t, pub.Publish(r.queue, late, soon))
			require.Equal(t, soon.UUID, await(t, arrivals).msg.UUID)
			got := await(t, arrivals)
			require.Equal(t, late.UUID, got.msg.UUID)
			require.Equal(t, "later", string(got.msg.Payload))
			require.Equal(t, "reminder", got.msg.Metadata.Get("kind"))
			require.Equal(t, 1, got.attempt)
			require.Equal(t, amqp.Persistent, got.raw.DeliveryMode)
			require.GreaterOrEqual(t, got.at.Sub(began), 3*time.Second-grace)
			require.LessOrEqual(t, got.at.Sub(began), 3*time.Second+ceiling)
		})
	}
}

// The broker is restarted while the messages wait.
func TestDelayedMessageSurvivesARestart(t *testing.T) {
	t.Parallel()
	node := testbroker.Private(t, quickDeadLettering)
	delays := backoff.List{3 * time.Second}
	type service struct {
		*rig
		pub      *topology.Publisher
		arrivals chan arrival
	}
	services := map[string]service{}
	for _, name := range []string{"quorum", "attempt quorum", "shared quorum", "levels quorum", "returning quorum"} {
		s := service{arrivals: make(chan arrival, 10)}
		s.rig = newRig(t, rigConfig{
			url: node.URL(), queue: strings.ReplaceAll(name, " ", "-"), strategy: strategies[name](t), policy: delays,
			config: quorumQueue, handler: collect(s.arrivals),
		})
		s.pub = newPublisher(t, s.client, node.URL(), topology.WithDelays(delays...))
		require.NoError(t, s.pub.Publish(s.queue, delayedBy(0)), "so that the delayed ones are published fast")
		await(t, s.arrivals)
		services[name] = s
	}
	began := time.Now()
	for _, s := range services {
		require.NoError(t, s.pub.Publish(s.queue, delayedBy(3*time.Second)))
	}
	node.Stop(t)
	node.Start(t)
	for name, s := range services {
		got := await(t, s.arrivals)
		require.Equal(t, "later", string(got.msg.Payload), name)
		require.GreaterOrEqual(t, got.at.Sub(began), 3*time.Second-grace, name)
		testbroker.WaitFor(t, "publishing works again with "+name, patience, func() bool { return s.pub.Publish(s.queue, delayedBy(0)) == nil })
		await(t, s.arrivals)
	}
}

// Levels holds any delay at once: what is due in forty days is in a wait queue, to
// be seen, and comes back on no round.
func TestDelayOfFortyDaysIsVisibleOnLevels(t *testing.T) {
	t.Parallel()
	url, queue := testbroker.URL(t), testbroker.Queue(t)
	strategy := topology.Levels{Prefix: testbroker.Queue(t)}
	removePlan(t, url, strategy, queue, nil)
	client, plan := operator(t, url, queue, strategy, unlisted)
	provision(t, url, client, queue, unlisted)
	pub := newPublisher(t, client, url)
	const delay = 40 * 24 * time.Hour
	require.NoError(t, pub.Publish(queue, delayedBy(delay)))
	require.Equal(t, 1, waiting(t, url, plan))
	route, err := plan.Route(topology.Retry{Delay: delay})
	require.NoError(t, err)
	require.GreaterOrEqual(t, route.Delay, delay)
	require.LessOrEqual(t, route.Delay, delay+delay/100)
	report, err := client.Inspect(t.Context(), plan)
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
	arrivals := make(chan arrival, 10)
	strategy := topology.PerQueue{WaitSteps: []time.Duration{time.Second}}
	r := newRig(t, rigConfig{url: url, strategy: strategy, policy: backoff.List{time.Second}, handler: collect(arrivals)})
	pub := newPublisher(t, r.client, url)
	began := time.Now()
	require.NoError(t, pub.Publish(r.queue, delayedBy(40*24*time.Hour), delayedBy(2500*time.Millisecond)))
	got := await(t, arrivals)
	require.Equal(t, 1, got.attempt)
	require.GreaterOrEqual(t, got.at.Sub(began), 2500*time.Millisecond-50*time.Millisecond-grace)
	seen := middleware.StateOf(got.msg.Context()).FirstSeen
	require.GreaterOrEqual(t, seen.Sub(began), 2500*time.Millisecond-50*time.Millisecond-grace, "first seen when it was due")

	// The one of forty days is there to be seen.
	r.stop()
	testbroker.WaitFor(t, "the message of forty days", patience, func() bool {
		return testbroker.Depth(t, url, r.plan.WaitSteps[0].RoutingKey)+testbroker.Depth(t, url, r.queue) == 1
	})
	waiting := take(t, url, r.queue)
	due, err := time.Parse(time.RFC3339Nano, waiting.Headers[header.NotBefore].(string))
	require.NoError(t, err)
	require.WithinDuration(t, began.Add(40*24*time.Hour), due, ceiling)
}

// Watermill's DelayOnError, with PoisonQueue to publish it again: every failure
// doubles the delay.
func TestDelayOnError(t *testing.T) {
	t.Parallel()
	url := testbroker.URL(t)
	queue := testbroker.Queue(t)
	var calls timeline
	done := make(chan struct{})
	delays := backoff.List{time.Second, 2 * time.Second}
	client, err := topology.Open(t.Context(), connection(url), topology.PerQueue{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	pub := newPublisher(t, client, url, topology.WithDelays(delays...))
	poison, err := wmiddleware.PoisonQueue(pub, queue)
	require.NoError(t, err)
	onError := &wmiddleware.DelayOnError{InitialInterval: time.Second, MaxInterval: time.Minute, Multiplier: 2}
	r := newRig(t, rigConfig{
		url: url, queue: queue, policy: delays, outer: nil,
		handler: poison(onError.Middleware(func(msg *message.Message) ([]*message.Message, error) {
			if calls.add() < 3 {
				return nil, errFailed
			}
			close(done)
			return nil, nil
		})),
	})
	require.NoError(t, pub.Publish(r.queue, message.NewMessage("id", []byte("again"))))
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatal("not handled")
	}
	calls.requireGaps(t, time.Second, 2*time.Second)
}

func TestPublisherReportsWhatIsNotTaken(t *testing.T) {
	t.Parallel()
	url := testbroker.URL(t)
	client, err := topology.Open(t.Context(), connection(url), topology.PerQueue{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	pub := newPublisher(t, client, url)
	missing := testbroker.Queue(t)
	plain := func() *message.Message { return message.NewMessage("id", nil) }
	require.ErrorContains(t, pub.Publish(missing, plain()), "no queue for")
	require.ErrorContains(t, pub.Publish(missing, delayedBy(time.Second)), "subscribe to it first")
	require.Equal(t, -1, testbroker.Depth(t, url, missing+".wait.1s"), "nothing was declared")

	r := newRig(t, rigConfig{url: url, policy: backoff.List{time.Second}, handler: collect(make(chan arrival, 10))})
	garbage := plain()
	garbage.Metadata.Set(delay.DelayedForKey, "soon")
	require.ErrorContains(t, pub.Publish(r.queue, garbage), `"_watermill_delayed_for" is no duration`)
	wide := delayedBy(time.Second)
	wide.Metadata.Set("wide", strings.Repeat("x", 130_000))
	require.ErrorIs(t, pub.Publish(r.queue, wide), topology.ErrTooLarge)

	cfg := queueConfig(url)
	cfg.Marshaler = wamqp.DefaultMarshaler{PostprocessPublishing: func(p amqp.Publishing) amqp.Publishing {
		p.Expiration = "500"
		return p
	}}
	expiring, err := client.NewPublisher(cfg)
	require.NoError(t, err)
	require.ErrorContains(t, expiring.Publish(r.queue, delayedBy(time.Second)), "before its wait queue gives it back")
	require.NoError(t, expiring.Publish(r.queue, plain()))

	exchange := wamqp.NewDurablePubSubConfig(url, nil)
	events, err := client.NewPublisher(exchange)
	require.NoError(t, err)
	topic := testbroker.Queue(t)
	t.Cleanup(func() { _ = testbroker.Channel(t, url).ExchangeDelete(topic, false, false) })
	require.ErrorContains(t, events.Publish(topic, delayedBy(time.Second)), "returns to one queue")
	require.ErrorContains(t, events.Publish(topic, plain()), "no queue for", "the exchange is declared, and nobody is bound")

	require.NoError(t, pub.Close())
	require.ErrorIs(t, pub.Publish(r.queue, plain()), topology.ErrClosed)
	_, err = client.NewPublisher(wamqp.Config{Publish: wamqp.PublishConfig{Immediate: true}}, topology.WithDelays(0))
	for _, want := range []string{"Marshaler is nil", "Exchange.GenerateName is nil", "Immediate", "WithDelays: 0s is not positive"} {
		require.ErrorContains(t, err, want)
	}
	require.NoError(t, client.Close())
	require.ErrorIs(t, events.Publish(topic, plain()), topology.ErrClosed)
	_, err = client.NewPublisher(cfg)
	require.ErrorIs(t, err, topology.ErrClosed)
}
