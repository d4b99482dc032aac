package e2e_test

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
)

// Given a message whose headers tell more failures than the policy allows, then it is
// dead-lettered without a call of the handler. An invalid count or another queue's counts zero.
func TestForgedCountsAreGuarded(t *testing.T) {
	t.Parallel()
	attempts := make(chan int, 10)
	r := rig.Start(t, rig.Config{
		Policy: backoff.List{time.Second}, Handler: rig.FailUntil(0, attempts),
	})
	for _, forged := range []string{"2", "99999999999999999999"} {
		r.Publish(amqp.Publishing{Headers: amqp.Table{header.Queue: r.Queue, header.Failures: forged}})
		require.Equal(t, "exhausted", r.DeadLetter().Headers[header.DeadReason])
	}
	require.Empty(t, attempts)
	for _, headers := range []amqp.Table{
		{header.Queue: r.Queue, header.Failures: "-3"},
		{header.Queue: r.Queue, header.Failures: "many"},
		{header.Queue: "another", header.Failures: "99"},
		{header.Failures: int64(99)},
	} {
		r.Publish(amqp.Publishing{Headers: headers})
		require.Equal(t, 1, <-attempts)
	}
}

// A message with its own expiration is not retried past its deadline.
func TestOwnExpirationIsADeadline(t *testing.T) {
	t.Parallel()
	var calls rig.Timeline
	r := rig.Start(t, rig.Config{
		Policy: backoff.List{100 * time.Millisecond, 20 * time.Second}, Handle: calls.Fail,
	})
	r.Publish(amqp.Publishing{Expiration: "10000", Body: []byte("soon stale")})
	require.Equal(t, "deadline", r.DeadLetter().Headers[header.DeadReason])
	require.Equal(t, 2, calls.Count())
}

// Given a delay that is rounded up beyond a limit, then the message is dead-lettered at once.
// Messages waited in spite of the limit, and were handled too old or refused afterwards.
func TestLimitsGoByTheDelayThatIsGiven(t *testing.T) {
	t.Parallel()
	expiring := amqp.Publishing{Expiration: "30000"}
	snoozed := middleware.Snooze(rig.ErrFailed, 2*time.Second)
	for name, c := range map[string]struct {
		send    amqp.Publishing
		options []middleware.Option
		err     error
		reason  string
	}{
		"age": {
			options: []middleware.Option{middleware.WithMaxAge(30 * time.Second)},
			err:     rig.ErrFailed, reason: "max_age",
		},
		"deadline":         {send: expiring, err: rig.ErrFailed, reason: "deadline"},
		"Snooze, deadline": {send: expiring, err: snoozed, reason: "deadline"},
		"Snooze, limit": {
			options: []middleware.Option{
				middleware.WithSnoozeLimit(30 * time.Second), middleware.WithMaxAttempts(1),
			},
			err: snoozed, reason: "exhausted",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var calls rig.Timeline
			r := rig.Start(t, rig.Config{
				Strategy: topology.PerQueue{WaitSteps: []time.Duration{time.Second, time.Minute}},
				Policy:   backoff.List{2 * time.Second}, UnknownPolicy: true, RetryOptions: c.options,
				Handle: func(*message.Message) error { calls.Add(); return c.err },
			})
			r.Publish(c.send)
			require.Equal(t, c.reason, r.DeadLetter().Headers[header.DeadReason])
			require.Equal(t, 1, calls.Count())
			require.Empty(t, r.Logs.EntriesOf(willBeRetried), "it did not wait")
			require.Empty(t, r.Logs.EntriesOf("Message set aside"), "it did not wait")
		})
	}
}
