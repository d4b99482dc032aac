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
	"github.com/millpond-go/millpond/internal/testing/peer"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
)

// Given a Publisher without WithDelays, when messages ask for three seconds, then they wait for
// five, and the log says so once. A delay that has a wait queue is not named.
func TestDelayedPublishThatIsRoundedUpIsNamed(t *testing.T) {
	t.Parallel()
	const ms, s = time.Millisecond, time.Second
	for name, c := range map[string]struct {
		strategy topology.Strategy // nil: PerQueue
		delays   []time.Duration   // of WithDelays
		asked    []time.Duration
		says     string
		warning  watermill.LogFields // nil: none
	}{
		"no WithDelays": {
			asked: []time.Duration{s, 4 * s, 4 * s, 20 * s},
			says:  "give the Publisher the delay with topology.WithDelays",
			warning: watermill.LogFields{
				"asked": 4 * s, "delay": 5 * s, "delays_asked": []time.Duration{s, 4 * s},
			},
		},
		"WithDelays": {
			delays: []time.Duration{3 * s, 9 * s},
			asked:  []time.Duration{3 * s, 2800 * ms, 9 * s, time.Minute},
		},
		"levels": {
			strategy: topology.Levels{Prefix: testbroker.Queue(t), Resolution: s, Max: 30 * s},
			asked:    []time.Duration{3 * s, 1500 * ms},
			says:     "give topology.Levels a smaller Resolution",
			warning:  watermill.LogFields{"asked": 1500 * ms, "delay": 2 * s, "resolution": s},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, queue, logs := testbroker.URL(t), testbroker.Queue(t), &rig.Logs{}
			rig.DeclareQueue(t, url, queue, nil)
			if c.strategy == nil {
				c.strategy = topology.PerQueue{}
			}
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

// Given a delay longer than every wait queue, when a message waits, then the subscriber sends it on
// new rounds, and it arrives when it is due, as a first attempt.
func TestDelayedMessageWaitsInRounds(t *testing.T) {
	t.Parallel()
	const delay, far = 2500 * time.Millisecond, 40 * 24 * time.Hour
	rig.Virtually(t, func(t *testing.T, broker *peer.Server) {
		arrivals := make(chan rig.Arrival, 10)
		r := rig.Start(t, rig.Config{
			URL: broker.URL(), Policy: backoff.List{time.Second}, Handler: rig.Collect(arrivals),
			Strategy: topology.PerQueue{WaitSteps: []time.Duration{time.Second}},
		})
		pub := rig.NewPublisher(t, r.Client, r.URL)
		began := time.Now()
		require.NoError(t, pub.Publish(r.Queue, rig.DelayedBy(far), rig.DelayedBy(delay)))
		got := rig.Await(t, arrivals)
		require.Equal(t, 1, got.Attempt)
		require.GreaterOrEqual(t, got.At.Sub(began), delay)
		seen := middleware.StateOf(got.Msg.Context()).FirstSeen
		require.GreaterOrEqual(t, seen.Sub(began), delay, "first seen when it was due")

		// The message of forty days can be seen.
		r.Stop()
		rig.AwaitDepth(t, r.URL, r.Queue, 1)
		waiting := rig.Take(t, r.URL, r.Queue)
		due, err := time.Parse(time.RFC3339Nano, waiting.Headers[keys.NotBefore].(string))
		require.NoError(t, err)
		require.Equal(t, far, due.Sub(began))
	})
}

// Given Watermill's DelayOnError with a PoisonQueue that publishes again, when the handler fails,
// then every failure doubles the delay.
func TestDelayOnError(t *testing.T) {
	t.Parallel()
	rig.Virtually(t, func(t *testing.T, broker *peer.Server) {
		var again message.HandlerFunc
		var calls rig.Timeline
		onError := &wmiddleware.DelayOnError{
			InitialInterval: time.Second, MaxInterval: time.Minute, Multiplier: 2,
		}
		r := rig.Start(t, rig.Config{
			URL: broker.URL(), Policy: backoff.List{time.Second, 2 * time.Second},
			Handler: func(msg *message.Message) ([]*message.Message, error) { return again(msg) },
		})
		pub := rig.NewPublisher(t, r.Client, r.URL, topology.WithDelays(time.Second, 2*time.Second))
		poison, err := wmiddleware.PoisonQueue(pub, r.Queue)
		require.NoError(t, err)
		handle := func(msg *message.Message) ([]*message.Message, error) {
			return nil, calls.FailUntil(3)(msg)
		}
		again = rig.Inside(handle, poison, onError.Middleware)
		require.NoError(t, pub.Publish(r.Queue, message.NewMessage("id", []byte("again"))))
		calls.AwaitPassed(t, r.Queue+".wait.1s", r.Queue+".wait.2s")
		calls.RequireGaps(t, r.Plan, time.Second, 2*time.Second)
	})
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
	require.ErrorIs(t, pub.Publish(missing, plain()), topology.ErrUnroutable)
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
	require.ErrorIs(t, events.Publish(topic, plain()), topology.ErrUnroutable, "no queue is bound")

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

// Given a timestamp that is not the time of publishing, or outside the window, when the message
// fails, then the timestamp neither ends it at its first failure nor keeps it alive beyond its
// expiration: the message is dead once the next retry would come after its deadline.
func TestWrongTimestampDecidesNothing(t *testing.T) {
	t.Parallel()
	const tenMinutes, day = 10 * time.Minute, 24 * time.Hour
	type stamped struct {
		timestamp  time.Time
		expiration time.Duration
		from       string // the start of the expiration
	}
	wide := topology.WithTimestampWindow(72*time.Hour, 2*time.Hour)
	for name, c := range map[string]struct {
		option   topology.SubscriberOption
		messages func(now time.Time) map[string]stamped
	}{
		"default": {topology.WithConcurrency(1), func(now time.Time) map[string]stamped {
			return map[string]stamped{
				"just now":                        {now, tenMinutes, "timestamp"},
				"an hour old, valid for two":      {now.Add(-time.Hour), 2 * time.Hour, "timestamp"},
				"a day and an hour, valid for 3":  {now.Add(-25 * time.Hour), 3 * day, "arrival"},
				"zero":                            {time.Unix(0, 0), tenMinutes, "arrival"},
				"30 s ahead, a clock that is off": {now.Add(30 * time.Second), tenMinutes, "timestamp"},
				"an hour ahead":                   {now.Add(time.Hour), tenMinutes, "arrival"},
			}
		}},
		"none counts": {topology.WithTimestampWindow(0, 0), func(now time.Time) map[string]stamped {
			return map[string]stamped{"just now": {now, tenMinutes, "arrival"}}
		}},
		"wide": {wide, func(now time.Time) map[string]stamped {
			return map[string]stamped{
				"a day and an hour, valid for 3": {now.Add(-25 * time.Hour), 3 * day, "timestamp"},
				"an hour ahead":                  {now.Add(time.Hour), tenMinutes, "timestamp"},
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rig.Virtually(t, func(t *testing.T, broker *peer.Server) {
				began, calls := time.Now(), rig.NewCalls()
				r := rig.Start(t, rig.Config{
					URL: broker.URL(), Policy: backoff.List{100 * time.Millisecond, 240 * time.Hour},
					SubscriberOptions: []topology.SubscriberOption{c.option},
					Handle: func(msg *message.Message) error {
						raw, _ := topology.Received(msg.Context())
						defer calls.Enter(raw.MessageId)()
						return rig.ErrFailed
					},
				})
				for id, m := range c.messages(began) {
					expiration := fmt.Sprint(m.expiration.Milliseconds())
					r.Publish(amqp.Publishing{MessageId: id, Timestamp: m.timestamp, Expiration: expiration})
					dead := r.DeadLetter()
					rig.RequireDead(t, dead, "deadline", "2")
					require.Equal(t, 2, calls.Of(id), id)
					require.Equal(t, m.from, dead.Headers["millpond-dead-deadline-from"], id)
					text, _ := dead.Headers["millpond-dead-deadline"].(string)
					end, err := time.Parse(time.RFC3339Nano, text)
					require.NoError(t, err, id)
					if m.from == "timestamp" {
						require.True(t, m.timestamp.Add(m.expiration).Equal(end), "%s: %v", id, end)
					} else {
						require.WithinRange(t, end, began.Add(m.expiration), time.Now().Add(m.expiration), id)
					}
				}
				_, err := r.Client.NewSubscriberWithoutRetry(rig.QueueConfig(r.URL),
					topology.WithTimestampWindow(-1, 0))
				require.ErrorContains(t, err, "WithTimestampWindow: -1ns and 0s must not be negative")
			})
		})
	}
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
