package e2e_test

import (
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
)

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
	require.Equal(t, []string{"warning missing exchange " + missing}, sourceFindings(t, r.Client, r.Plan))
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
