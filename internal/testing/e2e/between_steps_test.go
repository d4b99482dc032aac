package e2e_test

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
)

const (
	betweenSteps = 7 * time.Second
	// latest is a quarter more, and the ceiling of a busy machine. The next longer of the default
	// wait steps is half a minute.
	latest    = betweenSteps + betweenSteps/4 + rig.Ceiling
	stepsFar  = "Two wait steps lie more than twelve times apart"
	allRounds = "A delay is longer than every wait queue"
)

// Given the default wait steps, when an error asks for 7 s, then the message comes back after 7 s
// and not after 30 s. The rounds cost no attempt.
func TestRetryAfterBetweenTwoWaitSteps(t *testing.T) {
	t.Parallel()
	rig.OnEachStrategy(t, func(t *testing.T, strategy topology.Strategy) {
		var calls rig.Timeline
		attempts := make(chan int, 10)
		r := rig.Start(t, rig.Config{
			Strategy: strategy, Policy: rig.UnlistedDelays(time.Second, time.Second),
			Handle: func(msg *message.Message) error {
				attempts <- middleware.Attempt(msg.Context())
				if calls.Add() == 1 {
					return middleware.RetryAfter(rig.ErrFailed, betweenSteps)
				}
				return nil
			},
		})
		r.Send("busy")
		rig.AwaitAttempts(t, attempts, 1, 2)
		rig.WaitFor(t, "the second call", func() bool { return calls.Count() == 2 })
		r.Stop()
		gap := calls.All()[1]
		require.GreaterOrEqual(t, gap, betweenSteps-rig.Grace)
		require.LessOrEqual(t, gap, latest)
		told := r.Logs.EntriesOf(willBeRetried)
		require.Len(t, told, 1)
		require.Equal(t, betweenSteps, told[0].Fields["delay"], "the log tells the delay given")
		require.Zero(t, r.Logs.Said(stepsFar))
		require.Zero(t, r.Logs.Said(allRounds))
		r.RequireNothingLeft(0)
	})
}

// Given a Publisher without WithDelays, when a message is delayed by 7 s, then it arrives after
// 7 s, as a first attempt.
func TestDelayedPublishBetweenTwoWaitSteps(t *testing.T) {
	t.Parallel()
	rig.OnEachStrategy(t, func(t *testing.T, strategy topology.Strategy) {
		arrivals := make(chan rig.Arrival, 10)
		r := rig.Start(t, rig.Config{
			Strategy: strategy, Policy: rig.UnlistedDelays(time.Second), Handler: rig.Collect(arrivals),
		})
		pub := rig.NewPublisher(t, r.Client, r.URL)
		began := time.Now()
		require.NoError(t, pub.Publish(r.Queue, rig.DelayedBy(betweenSteps)))
		got := rig.Await(t, arrivals)
		require.Equal(t, 1, got.Attempt)
		require.GreaterOrEqual(t, got.At.Sub(began), betweenSteps-rig.Grace)
		require.LessOrEqual(t, got.At.Sub(began), latest)
		r.Stop()
		r.RequireNothingLeft(0)
	})
}

// Given a policy with a gap between two delays, then the log says at the start which delays come
// late, and an error that asks for such a delay waits for the longer step.
func TestPolicyWithAGapIsNamed(t *testing.T) {
	t.Parallel()
	r := rig.Start(t, rig.Config{
		Policy: backoff.List{time.Second, 30 * time.Second},
		Handle: func(*message.Message) error {
			return middleware.RetryAfter(rig.ErrFailed, 11*time.Second)
		},
	})
	lines := r.Logs.EntriesOf(stepsFar + ", so a delay between them, of a RetryAfter for example, " +
		"may come late: name one between them, as a backoff.List beside the policy in " +
		"topology.ForPolicy, or use topology.Levels")
	require.Len(t, lines, 1)
	require.Equal(t, []string{"10s to 24s wait 30s"}, lines[0].Fields["late"])
	r.Send("late")
	rig.WaitFor(t, "the retry", func() bool { return len(r.Logs.EntriesOf(willBeRetried)) == 1 })
	require.Equal(t, 30*time.Second, r.Logs.EntriesOf(willBeRetried)[0].Fields["delay"])
	require.Equal(t, 1, r.Depth(".wait.30s"))
}
