package e2e_test

import (
	"encoding/json"
	"testing"
	"time"

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

// call is a call of a handler: the message, its attempt, and its delivery.
type call struct {
	body    string
	attempt int
	raw     amqp.Delivery
}

// calls returns a handler that sends each call to a channel. Before its first call the handler
// waits until begin is closed. The message "fails" fails at its first attempts.
func calls(to chan call, begin <-chan struct{}, failures int) func(*message.Message) error {
	return func(msg *message.Message) error {
		raw, _ := topology.Received(msg.Context())
		c := call{string(msg.Payload), middleware.Attempt(msg.Context()), raw}
		<-begin
		to <- c
		if c.body == "fails" && c.attempt <= failures {
			return rig.ErrFailed
		}
		return nil
	}
}

// Given two messages behind a message whose policy begins with 0, when it fails, then it comes
// back behind them, as attempt 2, and has passed no wait queue. With a Via it waits, because it
// must pass the exchange.
func TestFirstRetryWithoutADelay(t *testing.T) {
	t.Parallel()
	rig.OnEachStrategy(t, func(t *testing.T, strategy topology.Strategy) {
		shared, _ := strategy.(topology.Shared)
		made, begin := make(chan call, 10), make(chan struct{})
		r := rig.Start(t, rig.Config{
			Strategy: strategy, Policy: backoff.List{0, time.Second},
			Handle: calls(made, begin, 1),
		})
		r.Send("fails", "second", "third")
		close(begin)
		for _, body := range []string{"fails", "second", "third"} {
			first := rig.Await(t, made)
			require.Equal(t, body, first.body)
			require.Equal(t, 1, first.attempt)
		}
		again := rig.Await(t, made)
		require.Equal(t, "fails", again.body)
		require.Equal(t, 2, again.attempt)
		require.False(t, again.raw.Redelivered)
		if len(shared.Via) == 0 {
			require.NotContains(t, again.raw.Headers, "x-death", "it has waited")
			require.Empty(t, again.raw.Exchange)
		} else {
			require.Contains(t, again.raw.Headers, "x-death", "it has not waited")
		}
		r.RequireNothingLeft(0)
	})
}

// Given a handler that always fails, when its policy begins with 0, then each retry after the
// first waits, also if the policy says 0 again. The history has every delay.
func TestRetriesWithoutADelayNeverSpin(t *testing.T) {
	t.Parallel()
	always := backoff.PolicyFunc(func(backoff.Failure) (time.Duration, bool) { return 0, true })
	rig.Each(t, map[string]struct {
		policy  backoff.Policy
		gaps    []time.Duration
		history []string
	}{
		"a list": {
			backoff.List{0, time.Second}, []time.Duration{0, time.Second}, []string{"0s", "1s", ""},
		},
		"before a policy": {
			backoff.AtOnce{Policy: backoff.Constant{Interval: time.Second, Retries: 1}},
			[]time.Duration{0, time.Second},
			[]string{"0s", "1s", ""},
		},
		"a function that always says 0": {
			backoff.Limit{Policy: always, Retries: 3},
			[]time.Duration{0, time.Second, time.Second},
			[]string{"0s", "1ms", "1ms", ""},
		},
	}, func(t *testing.T, c struct {
		policy  backoff.Policy
		gaps    []time.Duration
		history []string
	},
	) {
		var timeline rig.Timeline
		r := rig.Start(t, rig.Config{Policy: c.policy, Handle: timeline.Fail})
		r.Send("fails")
		dead := r.DeadLetter()
		timeline.RequireGaps(t, r.Plan, c.gaps...)
		var history []header.AttemptError
		text, _ := dead.Headers[keys.DeadHistory].(string)
		require.NoError(t, json.Unmarshal([]byte(text), &history))
		var delays []string
		for _, entry := range history {
			delays = append(delays, entry.Delay)
		}
		require.Equal(t, c.history, delays)
		r.RequireNothingLeft(0)
	})
}

// Given a queue that a policy of the broker has made full, when a message fails and its retry
// has no delay, then it waits as shortly as possible, and is handled once there is room.
func TestFirstRetryToAFullQueueWaits(t *testing.T) {
	t.Parallel()
	node := testbroker.Private(t)
	made, begin := make(chan call, 10), make(chan struct{})
	r := rig.Start(t, rig.Config{
		URL: node.URL(), Policy: backoff.List{0, time.Second}, Handle: calls(made, begin, 1),
		// So that no message leaves the queue between the failure and the publish.
		SubscriberOptions: []topology.SubscriberOption{topology.WithPrefetch(1)},
	})
	r.Send("fails")
	rig.AwaitDepth(t, r.URL, r.Queue, 0)
	r.Send("second")
	node.Ctl(t, "set_policy", "full", "^"+r.Queue+"$",
		`{"max-length":1,"overflow":"reject-publish"}`, "--apply-to", "queues")
	full := testbroker.Channel(t, r.URL)
	require.NoError(t, full.Confirm(false))
	rig.WaitFor(t, "a queue that refuses", func() bool {
		confirm, err := full.PublishWithDeferredConfirm("", r.Queue, false, false, rig.Message("third"))
		require.NoError(t, err)
		return !confirm.Wait()
	})
	close(begin)
	seen := map[string]int{}
	for {
		c := rig.Await(t, made)
		if seen[c.body]++; c.attempt == 2 {
			require.Contains(t, c.raw.Headers, "x-death", "it has not waited")
			break
		}
	}
	require.Equal(t, 2, seen["fails"])
	r.RequireNothingLeft(0)
}
