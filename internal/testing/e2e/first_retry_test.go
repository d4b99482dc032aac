package e2e_test

import (
	"encoding/json"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/internal/testing/peer"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
)

// Given two messages behind a message whose policy begins with 0, when it fails, then it comes
// back behind them, as attempt 2, and has passed no wait queue: their order is not kept. With a Via
// it waits, because it must pass the exchange.
func TestFirstRetryWithoutADelay(t *testing.T) {
	t.Parallel()
	rig.OnEachStrategy(t, func(t *testing.T, strategy topology.Strategy) {
		shared, _ := strategy.(topology.Shared)
		made, begin := make(chan rig.Arrival, 10), make(chan struct{})
		r := rig.Start(t, rig.Config{
			Strategy: strategy, Policy: backoff.List{0, time.Second},
			Handler: func(msg *message.Message) ([]*message.Message, error) {
				<-begin
				_, _ = rig.Collect(made)(msg)
				if string(msg.Payload) == "fails" {
					return nil, rig.FailFirst(msg)
				}
				return nil, nil
			},
		})
		r.Send("fails", "second", "third")
		close(begin)
		for _, body := range []string{"fails", "second", "third"} {
			first := rig.Await(t, made)
			require.Equal(t, body, string(first.Raw.Body))
			require.Equal(t, 1, first.Attempt)
		}
		again := rig.Await(t, made)
		require.Equal(t, "fails", string(again.Raw.Body))
		require.Equal(t, 2, again.Attempt)
		require.False(t, again.Raw.Redelivered)
		if len(shared.Via) == 0 {
			require.NotContains(t, again.Raw.Headers, "x-death", "it has waited")
			require.Empty(t, again.Raw.Exchange)
		} else {
			require.Contains(t, again.Raw.Headers, "x-death", "it has not waited")
		}
		r.RequireNothingLeft(0)
	}, "quorum", "levels classic", "returning quorum")
}

// Given a handler that always fails, when its policy begins with 0, then each retry after the first
// waits, also if the policy says 0 again. The history has every delay. Where the queue refuses the
// copy of the first retry, because it is full, the message waits as shortly as possible.
func TestRetriesWithoutADelayNeverSpin(t *testing.T) {
	t.Parallel()
	always := backoff.PolicyFunc(func(backoff.Failure) (time.Duration, bool) { return 0, true })
	const s = time.Second
	type testCase struct {
		policy  backoff.Policy
		gaps    []time.Duration
		history []string
		refused int // the number of the publish that the queue refuses
	}
	rig.Each(t, map[string]testCase{
		"a list": {
			policy: backoff.List{0, s},
			gaps:   []time.Duration{0, s}, history: []string{"0s", "1s", ""},
		},
		"before a policy": {
			policy: backoff.AtOnce{Policy: backoff.Constant{Interval: s, Retries: 1}},
			gaps:   []time.Duration{0, s}, history: []string{"0s", "1s", ""},
		},
		"a function that always says 0": {
			policy: backoff.Limit{Policy: always, Retries: 3},
			gaps:   []time.Duration{0, s, s}, history: []string{"0s", "1ms", "1ms", ""},
		},
		"a full queue": {
			policy: backoff.List{0, s}, refused: 2,
			gaps: []time.Duration{s, s}, history: []string{"0s", "1s", ""},
		},
	}, func(t *testing.T, c testCase) {
		synctest.Test(t, func(t *testing.T) {
			broker := peer.Start(t, func(p *peer.Publish) {
				if p.Number == c.refused {
					p.Nack(p.Tag, false)
				} else {
					rig.WaitQueues(p)
				}
			})
			var timeline rig.Timeline
			r := rig.Start(t, rig.Config{URL: broker.URL(), Policy: c.policy, Handle: timeline.Fail})
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
	})
}
