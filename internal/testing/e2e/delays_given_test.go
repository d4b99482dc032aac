package e2e_test

import (
	"slices"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/peer"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
)

const (
	roundedUp = "Warning: a delay is rounded up by more than a tenth, because it has no wait step; " +
		"give the Subscriber the policy, list the delays of a policy of your own in its Delays, and " +
		"name a delay that an error asks for as a backoff.List in topology.ForPolicy"
	willBeRetried = "Message will be retried"
)

// A snooze spends no attempt, however often, and also if it is longer than every wait step, which
// is said once (C6). A Subscriber that knows the policy is not warned of delays.
func TestSnoozeSpendsNoAttempt(t *testing.T) {
	t.Parallel()
	rig.Virtually(t, func(t *testing.T, broker *peer.Server) {
		const delay = 1050 * time.Millisecond
		var calls rig.Timeline
		attempts := make(chan int, 10)
		r := rig.Start(t, rig.Config{
			URL: broker.URL(), Policy: backoff.List{delay},
			Handle: func(msg *message.Message) error {
				attempts <- middleware.Attempt(msg.Context())
				switch calls.Record(msg) {
				case 1, 2:
					return middleware.Snooze(rig.ErrFailed, 3*delay) // in rounds
				case 3:
					return middleware.Snooze(rig.ErrFailed, 0) // as short as possible
				}
				return rig.ErrFailed
			},
		})
		r.Send("later")
		require.Equal(t, "2", r.DeadLetter().Headers[header.DeadFailures])
		calls.RequireNotEarly(t, 3*delay, 3*delay, delay, delay)
		require.Equal(t, slices.Repeat([]string{r.Queue + ".wait.1.05s"}, 4), calls.Passed())
		rig.AwaitAttempts(t, attempts, 1, 1, 1, 1, 2)
		require.Equal(t, 1, r.Logs.Said("A delay is longer than every wait queue"))
		require.Contains(t, r.Logs.Text(), "delay:3.15s longest:1.05s")
		require.Empty(t, r.Logs.EntriesOf(roundedUp))
		for _, e := range r.Logs.EntriesOf(willBeRetried) {
			require.NotContains(t, e.Fields, "asked")
		}
	})
}

// Given a policy with a gap between two delays, then the log says at the start which delays come
// late, and an error that asks for such a delay waits for the longer step.
func TestPolicyWithAGapIsNamed(t *testing.T) {
	t.Parallel()
	rig.Virtually(t, func(t *testing.T, broker *peer.Server) {
		var calls rig.Timeline
		r := rig.Start(t, rig.Config{
			URL: broker.URL(), Policy: backoff.List{time.Second, 30 * time.Second},
			Handle: func(msg *message.Message) error {
				if calls.Record(msg) == 1 {
					return middleware.RetryAfter(rig.ErrFailed, 11*time.Second)
				}
				return nil
			},
		})
		lines := r.Logs.EntriesOf("Two wait steps lie more than twelve times apart, so a delay between " +
			"them, of a RetryAfter for example, may come late: name one between them, as a backoff.List " +
			"beside the policy in topology.ForPolicy, or use topology.Levels")
		require.Len(t, lines, 1)
		require.Equal(t, []string{"10s to 24s wait 30s"}, lines[0].Fields["late"])
		r.Send("late")
		calls.AwaitPassed(t, r.Queue+".wait.30s")
		require.Equal(t, 30*time.Second, r.Logs.EntriesOf(willBeRetried)[0].Fields["delay"])
	})
}

// Given a Subscriber without ForPolicy, then the delays are the default wait steps. The log tells
// both delays of each retry, and warns once for each Subscribe. Limits go by the delay that is
// given: eleven rounds of a second are too many, so 11 s wait a minute, beyond the deadline. Such a
// message is dead-lettered at once.
func TestSubscriberWithoutThePolicyIsNamed(t *testing.T) {
	t.Parallel()
	const ms, s = time.Millisecond, time.Second
	steps := []time.Duration{100 * ms, s, time.Minute}
	rig.Virtually(t, func(t *testing.T, broker *peer.Server) {
		var calls rig.Timeline
		r := rig.Start(t, rig.Config{
			URL: broker.URL(), Strategy: topology.PerQueue{WaitSteps: steps}, UnknownPolicy: true,
			Policy: backoff.List{100 * ms, 300 * ms, 400 * ms},
			Handle: func(msg *message.Message) error {
				switch string(msg.Payload) {
				case "expires":
					return middleware.RetryAfter(rig.ErrFailed, 11*s)
				case "expires, snoozed":
					return middleware.Snooze(rig.ErrFailed, 11*s)
				}
				return calls.Fail(msg)
			},
		})
		r.Send("rounded")
		r.DeadLetter()
		calls.RequireGaps(t, rig.PlanOf(t, topology.PerQueue{WaitSteps: steps}, r.Queue), 100*ms, s, s)

		var told [][]any
		for _, e := range r.Logs.EntriesOf(willBeRetried) {
			told = append(told, []any{e.Fields["delay"], e.Fields["asked"]})
		}
		require.Equal(t, [][]any{{100 * ms, nil}, {s, 300 * ms}, {s, 400 * ms}}, told)
		warnings := r.Logs.EntriesOf(roundedUp)
		require.Len(t, warnings, 1)
		for field, want := range map[string]any{
			"queue": r.Queue, "asked": 300 * ms, "delay": s,
			"delays_asked": []time.Duration{100 * ms, 300 * ms}, "wait_steps": steps,
		} {
			require.Equal(t, want, warnings[0].Fields[field], field)
		}

		for _, body := range []string{"expires", "expires, snoozed"} {
			r.Publish(amqp.Publishing{Body: []byte(body), Expiration: "30000"})
			rig.RequireDead(t, r.DeadLetter(), "deadline", "1")
		}
		require.Len(t, r.Logs.EntriesOf(willBeRetried), len(told), "they did not wait")
		require.Empty(t, r.Logs.EntriesOf("Message set aside"), "they did not wait")
	})
}
