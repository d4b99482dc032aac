package e2e_test

import (
	"fmt"
	"slices"
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
	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
)

// Given a Publisher without WithDelays, when messages ask for three seconds, then they wait for
// five, and the log says so once. A delay that has a wait queue is not named.
func TestDelayedPublishThatIsRoundedUpIsNamed(t *testing.T) {
	t.Parallel()
	const ms, s = time.Millisecond, time.Second
	for name, c := range map[string]struct {
		strategy topology.Strategy
		delays   []time.Duration // of WithDelays
		asked    []time.Duration
		says     string
		warning  watermill.LogFields // nil: none
	}{
		"no WithDelays": {
			topology.PerQueue{},
			nil,
			[]time.Duration{s, 4 * s, 4 * s, 20 * s},
			"give the Publisher the delay with topology.WithDelays",
			watermill.LogFields{
				"asked": 4 * s, "delay": 5 * s, "delays_asked": []time.Duration{s, 4 * s},
			},
		},
		"WithDelays": {
			topology.PerQueue{},
			[]time.Duration{3 * s, 9 * s},
			[]time.Duration{3 * s, 2800 * ms, 9 * s, time.Minute},
			"", nil,
		},
		"levels": {
			topology.Levels{Prefix: testbroker.Queue(t), Resolution: s, Max: 30 * s},
			nil,
			[]time.Duration{3 * s, 1500 * ms},
			"give topology.Levels a smaller Resolution",
			watermill.LogFields{"asked": 1500 * ms, "delay": 2 * s, "resolution": s},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, queue, logs := testbroker.URL(t), testbroker.Queue(t), &rig.Logs{}
			rig.DeclareQueue(t, url, queue, nil)
			client := rig.OpenClient(t, url, c.strategy, topology.WithLogger(logs))
			pub := rig.NewPublisher(t, client, url, topology.WithDelays(c.delays...))
			for _, delay := range c.asked {
				require.NoError(t, pub.Publish(queue, rig.DelayedBy(delay)))
			}
			warnings := slices.DeleteFunc(logs.All(), func(e rig.LogEntry) bool {
				return !strings.HasPrefix(e.Msg, "Warning: a delay is rounded up by more than a tenth")
			})
			if c.warning == nil {
				require.Empty(t, warnings)
				return
			}
			require.Len(t, warnings, 1)
			require.Contains(t, warnings[0].Msg, c.says)
			for field, want := range c.warning.Add(watermill.LogFields{"queue": queue}) {
				require.Equal(t, want, warnings[0].Fields[field], field)
			}
		})
	}
}

// Given delayed messages that wait, when the broker is restarted, then they arrive, and publishing
// works again.
func TestDelayedMessageSurvivesARestart(t *testing.T) {
	t.Parallel()
	const delay = 3 * time.Second
	node := testbroker.Private(t, rig.QuickDeadLettering)
	type service struct {
		*rig.Service
		pub      *topology.Publisher
		arrivals chan rig.Arrival
	}
	services := map[string]service{}
	for _, name := range []string{
		"quorum", "attempt quorum", "shared quorum", "levels quorum", "returning quorum",
	} {
		s := service{arrivals: make(chan rig.Arrival, 10)}
		s.Service = rig.Start(t, rig.Config{
			URL: node.URL(), Queue: strings.ReplaceAll(name, " ", "-"), Strategy: rig.Strategies[name](t),
			Policy: backoff.List{delay}, Configure: rig.QuorumQueue, Handler: rig.Collect(s.arrivals),
		})
		s.pub = rig.NewPublisher(t, s.Client, node.URL(), topology.WithDelays(delay))
		// The first publish takes longer than the next ones.
		require.NoError(t, s.pub.Publish(s.Queue, rig.DelayedBy(0)))
		rig.Await(t, s.arrivals)
		services[name] = s
	}
	began := time.Now()
	for _, s := range services {
		require.NoError(t, s.pub.Publish(s.Queue, rig.DelayedBy(delay)))
	}
	node.Stop(t)
	node.Start(t)
	for name, s := range services {
		got := rig.Await(t, s.arrivals)
		require.Equal(t, "later", string(got.Msg.Payload), name)
		require.GreaterOrEqual(t, got.At.Sub(began), delay-rig.Grace, name)
		rig.WaitFor(t, "publishing to work again with "+name, func() bool {
			return s.pub.Publish(s.Queue, rig.DelayedBy(0)) == nil
		})
		rig.Await(t, s.arrivals)
	}
}

// Given Levels, when a message is delayed by forty days, then it waits in a wait queue of days,
// where it can be seen, and comes back on no round.
func TestDelayOfFortyDaysIsVisibleOnLevels(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	url, queue := testbroker.URL(t), testbroker.Queue(t)
	strategy := topology.Levels{Prefix: testbroker.Queue(t)}
	rig.RemovePlan(t, url, strategy, queue, nil)
	plan := rig.Provision(t, url, strategy, queue, rig.Unlisted)
	pub := rig.NewPublisher(t, rig.OpenClient(t, url, strategy), url)
	require.NoError(t, pub.Publish(queue, rig.DelayedBy(40*day)))
	require.Equal(t, 1, rig.Waiting(t, url, plan))
	route, err := plan.Route(topology.Retry{Delay: 40 * day})
	require.NoError(t, err)
	require.GreaterOrEqual(t, route.Delay, 40*day)
	require.LessOrEqual(t, route.Delay, 40*day+40*day/100)
	ch := testbroker.Channel(t, url)
	for _, q := range plan.Queues {
		if rig.Ready(t, ch, q.Name) == 1 {
			require.LessOrEqual(t, q.Delay, route.Delay)
			require.Greater(t, q.Delay, 10*day, "in a wait queue of days, not in rounds")
			return
		}
	}
	t.Fatal("no wait queue has it")
}

// Given a delay longer than every wait queue, when a message waits, then the subscriber sends it on
// new rounds, and it arrives when it is due, as a first attempt.
func TestDelayedMessageWaitsInRounds(t *testing.T) {
	t.Parallel()
	const delay, far = 2500 * time.Millisecond, 40 * 24 * time.Hour
	const least = delay - rig.Grace
	arrivals := make(chan rig.Arrival, 10)
	strategy := topology.PerQueue{WaitSteps: []time.Duration{time.Second}}
	r := rig.Start(t, rig.Config{
		Strategy: strategy, Policy: backoff.List{time.Second}, Handler: rig.Collect(arrivals),
	})
	pub := rig.NewPublisher(t, r.Client, r.URL)
	began := time.Now()
	require.NoError(t, pub.Publish(r.Queue, rig.DelayedBy(far), rig.DelayedBy(delay)))
	got := rig.Await(t, arrivals)
	require.Equal(t, 1, got.Attempt)
	require.GreaterOrEqual(t, got.At.Sub(began), least)
	seen := middleware.StateOf(got.Msg.Context()).FirstSeen
	require.GreaterOrEqual(t, seen.Sub(began), least, "first seen when it was due")

	// The message of forty days can be seen.
	r.Stop()
	rig.WaitFor(t, "the message of forty days", func() bool { return r.Waiting()+r.Depth("") == 1 })
	waiting := rig.Take(t, r.URL, r.Queue)
	due, err := time.Parse(time.RFC3339Nano, waiting.Headers[keys.NotBefore].(string))
	require.NoError(t, err)
	require.WithinRange(t, due, began.Add(far).Add(-rig.Grace), time.Now().Add(far))
}

// Given Watermill's DelayOnError with a PoisonQueue that publishes again, when the handler fails,
// then every failure doubles the delay.
func TestDelayOnError(t *testing.T) {
	t.Parallel()
	url, queue := testbroker.URL(t), testbroker.Queue(t)
	var calls rig.Timeline
	done := make(chan struct{})
	delays := backoff.List{time.Second, 2 * time.Second}
	client := rig.OpenClient(t, url, topology.PerQueue{})
	pub := rig.NewPublisher(t, client, url, topology.WithDelays(delays...))
	poison, err := wmiddleware.PoisonQueue(pub, queue)
	require.NoError(t, err)
	onError := &wmiddleware.DelayOnError{
		InitialInterval: time.Second, MaxInterval: time.Minute, Multiplier: 2,
	}
	r := rig.Start(t, rig.Config{
		URL: url, Queue: queue, Policy: delays,
		Inner: []message.HandlerMiddleware{poison, onError.Middleware},
		Handle: func(msg *message.Message) error {
			if calls.Record(msg) < 3 {
				return rig.ErrFailed
			}
			close(done)
			return nil
		},
	})
	require.NoError(t, pub.Publish(queue, message.NewMessage("id", []byte("again"))))
	rig.Await(t, done)
	calls.RequireGaps(t, r.Plan, time.Second, 2*time.Second)
}

// publishingAs returns a marshaler that changes each publishing.
func publishingAs(change func(*amqp.Publishing)) wamqp.Marshaler {
	return wamqp.DefaultMarshaler{PostprocessPublishing: func(p amqp.Publishing) amqp.Publishing {
		change(&p)
		return p
	}}
}

// Given a publisher, when the broker cannot take a message or the message cannot keep its promise,
// then Publish returns an error and declares nothing.
func TestPublisherReportsUntakenMessages(t *testing.T) {
	t.Parallel()
	url, missing := testbroker.URL(t), testbroker.Queue(t)
	client := rig.OpenClient(t, url, topology.PerQueue{})
	pub := rig.NewPublisher(t, client, url)
	plain := func() *message.Message { return message.NewMessage("id", nil) }
	require.ErrorContains(t, pub.Publish(missing, plain()), "no queue for")
	require.ErrorContains(t, pub.Publish(missing, rig.DelayedBy(time.Second)), "subscribe to")
	require.Equal(t, -1, testbroker.Depth(t, url, missing+".wait.1s"), "nothing was declared")

	r := rig.Start(t, rig.Config{URL: url, Policy: backoff.List{time.Second}, Handle: rig.Succeed})
	garbage, wide := plain(), rig.DelayedBy(time.Second)
	garbage.Metadata.Set(delay.DelayedForKey, "soon")
	require.ErrorContains(t, pub.Publish(r.Queue, garbage), `"_watermill_delayed_for" is no duration`)
	wide.Metadata.Set("wide", strings.Repeat("x", 130_000))
	require.ErrorIs(t, pub.Publish(r.Queue, wide), topology.ErrTooLarge)

	cfg := rig.QueueConfig(url)
	cfg.Marshaler = publishingAs(func(p *amqp.Publishing) { p.Expiration = "500" })
	expiring, err := client.NewPublisher(cfg)
	require.NoError(t, err)
	require.ErrorContains(t, expiring.Publish(r.Queue, rig.DelayedBy(time.Second)),
		"before its wait queue gives it back")
	require.NoError(t, expiring.Publish(r.Queue, plain()))

	events, err := client.NewPublisher(wamqp.NewDurablePubSubConfig(url, nil))
	require.NoError(t, err)
	topic := testbroker.Queue(t)
	t.Cleanup(func() { _ = testbroker.Channel(t, url).ExchangeDelete(topic, false, false) })
	require.ErrorContains(t, events.Publish(topic, rig.DelayedBy(time.Second)), "to one queue")
	require.ErrorContains(t, events.Publish(topic, plain()), "no queue for", "no queue is bound")

	require.NoError(t, pub.Close())
	require.ErrorIs(t, pub.Publish(r.Queue, plain()), topology.ErrClosed)
	immediate := wamqp.Config{Publish: wamqp.PublishConfig{Immediate: true}}
	_, err = client.NewPublisher(immediate, topology.WithDelays(0))
	rig.RequireTexts(t, err, "Marshaler is nil", "Exchange.GenerateName is nil", "Immediate",
		"WithDelays: 0s is not positive")
	require.NoError(t, client.Close())
	require.ErrorIs(t, events.Publish(topic, plain()), topology.ErrClosed)
	_, err = client.NewPublisher(cfg)
	require.ErrorIs(t, err, topology.ErrClosed)
}

// stamped is a message with a timestamp and an expiration.
type stamped struct {
	timestamp  time.Time
	expiration time.Duration
	from       string // the start of the expiration
}

// requireDeadlines fails every message twice and requires that each is then dead, because the next
// retry would come after its deadline. Its deadline must count from the given start.
func requireDeadlines(
	t *testing.T, messages map[string]stamped, options ...topology.SubscriberOption,
) {
	t.Helper()
	began := time.Now()
	calls := rig.NewBusy()
	r := rig.Start(t, rig.Config{
		Policy: backoff.List{100 * time.Millisecond, 240 * time.Hour}, SubscriberOptions: options,
		Handle: func(msg *message.Message) error {
			raw, _ := topology.Received(msg.Context())
			defer calls.Enter(raw.MessageId)()
			return rig.ErrFailed
		},
	})
	for id, m := range messages {
		expiration := fmt.Sprint(m.expiration.Milliseconds())
		r.Publish(amqp.Publishing{MessageId: id, Timestamp: m.timestamp, Expiration: expiration})
	}
	for range messages {
		dead := r.DeadLetter()
		id := dead.MessageId
		m := messages[id]
		require.Equal(t, 2, calls.Of(id), "attempts of %q: %v", id, dead.Headers[header.DeadReason])
		require.Equal(t, "deadline", dead.Headers[header.DeadReason], id)
		require.Equal(t, m.from, dead.Headers["millpond-dead-deadline-from"], id)
		text, _ := dead.Headers["millpond-dead-deadline"].(string)
		end, err := time.Parse(time.RFC3339Nano, text)
		require.NoError(t, err, id)
		if m.from == "timestamp" {
			require.True(t, m.timestamp.Add(m.expiration).Equal(end), "%s: %v", id, end)
			continue
		}
		require.WithinRange(t, end, began.Add(m.expiration), time.Now().Add(m.expiration), id)
	}
}

// Given a timestamp that is not the time of publishing, when the message fails, then the timestamp
// neither ends it at its first failure nor keeps it alive beyond its expiration.
func TestWrongTimestampDecidesNothing(t *testing.T) {
	t.Parallel()
	const tenMinutes, day = 10 * time.Minute, 24 * time.Hour
	now := time.Now().Truncate(time.Second)
	requireDeadlines(t, map[string]stamped{
		"no timestamp":                    {time.Time{}, tenMinutes, "arrival"},
		"just now":                        {now, tenMinutes, "timestamp"},
		"an hour old, valid for 10 min":   {now.Add(-time.Hour), tenMinutes, "arrival"},
		"an hour old, valid for two":      {now.Add(-time.Hour), 2 * time.Hour, "timestamp"},
		"a day and an hour, valid for 3":  {now.Add(-25 * time.Hour), 3 * day, "arrival"},
		"zero":                            {time.Unix(0, 0), tenMinutes, "arrival"},
		"30 s ahead, a clock that is off": {now.Add(30 * time.Second), tenMinutes, "timestamp"},
		"an hour ahead":                   {now.Add(time.Hour), tenMinutes, "arrival"},
		"milliseconds for seconds":        {time.Unix(now.UnixMilli(), 0), tenMinutes, "arrival"},
		"before all time":                 {time.Unix(-1<<62, 0), tenMinutes, "arrival"},
		"after all time":                  {time.Unix(1<<62, 0), tenMinutes, "arrival"},
	})
}

// Given a timestamp window, when a timestamp is outside, then the expiration counts from arrival.
func TestTimestampOutsideTheWindowIsIgnored(t *testing.T) {
	t.Parallel()
	const tenMinutes, day = 10 * time.Minute, 24 * time.Hour
	now := time.Now().Truncate(time.Second)
	t.Run("none counts", func(t *testing.T) {
		t.Parallel()
		requireDeadlines(t, map[string]stamped{
			"just now":      {now, tenMinutes, "arrival"},
			"a minute old":  {now.Add(-time.Minute), tenMinutes, "arrival"},
			"a minute late": {now.Add(time.Minute), tenMinutes, "arrival"},
		}, topology.WithTimestampWindow(0, 0))
	})
	t.Run("wide", func(t *testing.T) {
		t.Parallel()
		requireDeadlines(t, map[string]stamped{
			"a day and an hour, valid for 3": {now.Add(-25 * time.Hour), 3 * day, "timestamp"},
			"an hour old, valid for 10 min":  {now.Add(-time.Hour), tenMinutes, "arrival"},
			"an hour ahead":                  {now.Add(time.Hour), tenMinutes, "timestamp"},
			"zero":                           {time.Unix(0, 0), tenMinutes, "arrival"},
		}, topology.WithTimestampWindow(72*time.Hour, 2*time.Hour))
	})
	t.Run("negative", func(t *testing.T) {
		t.Parallel()
		url := testbroker.URL(t)
		client := rig.OpenClient(t, url, topology.PerQueue{})
		_, err := client.NewSubscriber(rig.QueueConfig(url), topology.WithTimestampWindow(-1, 0))
		require.ErrorContains(t, err, "WithTimestampWindow: -1ns and 0s must not be negative")
	})
}

// Given a message of a version that did not write the start of a deadline, when it fails, then the
// deadline is read as before, and no start is invented.
func TestDeadlineOfAnOlderVersionIsRead(t *testing.T) {
	t.Parallel()
	r := rig.Start(t, rig.Config{
		Policy: backoff.List{100 * time.Millisecond, time.Hour},
		Handle: rig.Fail,
	})
	end := time.Now().Add(10 * time.Minute).UTC().Format(time.RFC3339Nano)
	r.Publish(forged(r.Queue, "millpond-failures", "1", "millpond-deadline", end))
	dead := r.DeadLetter()
	require.Equal(t, "deadline", dead.Headers[header.DeadReason])
	require.Equal(t, end, dead.Headers["millpond-dead-deadline"])
	require.NotContains(t, dead.Headers, "millpond-dead-deadline-from")
}

// Given a delayed message with an expiration, when it is published, then its deadline counts from
// that moment, because the publisher knows it. The timestamp decides nothing.
func TestExpirationOfADelayedMessageCountsFromItsPublish(t *testing.T) {
	t.Parallel()
	arrivals := make(chan rig.Arrival, 1)
	r := rig.Start(t, rig.Config{Policy: backoff.List{time.Second}, Handler: rig.Collect(arrivals)})
	cfg := rig.QueueConfig(r.URL)
	cfg.Marshaler = publishingAs(func(p *amqp.Publishing) {
		p.Expiration, p.Timestamp = "600000", time.Now().Add(-time.Hour)
	})
	pub, err := r.Client.NewPublisher(cfg)
	require.NoError(t, err)
	began := time.Now()
	require.NoError(t, pub.Publish(r.Queue, rig.DelayedBy(time.Second)))
	raw := rig.Await(t, arrivals).Raw
	require.Equal(t, "publish", raw.Headers["millpond-deadline-from"])
	end, err := time.Parse(time.RFC3339Nano, raw.Headers["millpond-deadline"].(string))
	require.NoError(t, err)
	require.WithinRange(t, end, began.Add(10*time.Minute), time.Now().Add(10*time.Minute))
}
