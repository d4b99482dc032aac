package e2e_test

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
)

// viaEvents returns a configuration of a service whose queue gets order.# of a topic exchange,
// and whose retries come back through this exchange.
func viaEvents(url, events string, strategy topology.Strategy, delays ...time.Duration) rig.Config {
	return rig.Config{
		URL: url, Strategy: strategy, Policy: backoff.List(delays),
		Configure: rig.OnTopic(events, "order.#"),
	}
}

// Given an exchange to return through that does not exist, then Verify says so, and the queue
// gets its retries all the same.
func TestReturnThroughAMissingExchange(t *testing.T) {
	t.Parallel()
	missing := testbroker.Queue(t)
	var calls rig.Timeline
	r := rig.Start(t, rig.Config{
		Strategy: rig.SharedVia(t, missing), Policy: rig.Quickly(1), Handle: calls.Fail,
	})
	require.Equal(t, []string{"warning missing exchange " + missing},
		rig.BlindFindings(t, rig.OpenOperator(t, r.URL), r.Plan))
	r.Publish(amqp.Publishing{})
	r.DeadLetter()
	calls.RequireGaps(t, r.Plan, 100*time.Millisecond)
}

// A sibling gets a copy for each failure, and none for a message that is snoozed or goes on
// waiting. The queue gets its retries also when its binding to the exchange is gone.
func TestNothingButRetriesPassesTheExchange(t *testing.T) {
	t.Parallel()
	url, events := testbroker.URL(t), rig.TopicExchange(t)
	sibling := rig.BesideOn(t, url, events, "order.#")
	var calls rig.Timeline
	c := viaEvents(url, events, rig.SharedVia(t, events), 3*time.Second, 3*time.Second)
	c.Queue = testbroker.Queue(t)
	ch := testbroker.Channel(t, url)
	c.Handle = func(*message.Message) error {
		switch calls.Add() {
		case 1, 4:
			return middleware.Snooze(rig.ErrFailed, 100*time.Millisecond)
		case 2:
			// Two rounds, unless the first takes so long that no time is left. Then the retry
			// does not pass the exchange. On a busy machine it was 0.9 s late.
			return middleware.RetryAfter(rig.ErrFailed, 5900*time.Millisecond)
		case 3:
			if err := ch.QueueUnbind(c.Queue, "order.#", events, nil); err != nil {
				t.Error(err)
			}
			return rig.ErrFailed
		}
		return nil
	}
	r := rig.Start(t, c)
	rig.Publish(t, url, events, "order.created.eu", amqp.Publishing{})
	rig.WaitFor(t, "the fifth call", func() bool { return calls.Count() == 5 })
	r.Stop()
	require.Equal(t, 3, testbroker.Depth(t, url, sibling), "the message and its two retries")
	require.Equal(t, 0, r.Depth(".dlq"))
}
