package consumer

import (
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology/wait"
)

// Given a message that waits in rounds, then each round is asked for with the rest of the delay and
// the whole delay. The message is due when no rest is left, however short the rest is. The last
// round names no time, so that no clock can add another round.
func TestEachRoundIsAskedForWithTheWholeDelay(t *testing.T) {
	t.Parallel()
	for name, whole := range map[string]header.RetryState{
		"after a failure":                 {Failures: 2, Delay: 13 * time.Second},
		"after a snooze":                  {Snoozed: 13 * time.Second},
		"a snooze after a longer failure": {Failures: 1, Delay: time.Hour, Snoozed: 13 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var asked []wait.Retry
			waits := testWaits(Via{})
			waits.Steps = []time.Duration{5 * time.Second}
			waits.Route = func(r wait.Retry) (wait.Route, error) {
				asked = append(asked, r)
				return wait.Route{RoutingKey: "wait", Delay: 5 * time.Second, Hops: 1}, nil
			}
			d := fuzzedDelivery(t, waits, amqp.Delivery{RoutingKey: "orders"})
			now := time.Now()
			state := whole
			_, msg, err := d.waiting(now, 13*time.Second, &state)
			require.NoError(t, err)
			require.Equal(t, now.Add(13*time.Second), state.NotBefore)
			require.Contains(t, msg.Headers, keys.NotBefore)

			for _, left := range []time.Duration{8 * time.Second, time.Millisecond, -time.Second} {
				state.NotBefore = time.Now().Add(left)
				d.State = state
				if left < 0 {
					require.Zero(t, d.remaining())
					continue
				}
				require.LessOrEqual(t, d.remaining(), left)
				if left > time.Second {
					require.Greater(t, d.remaining(), left-time.Second)
				}
				again := state
				_, msg, err = d.waiting(time.Now(), left, &again)
				require.NoError(t, err)
				if left < 5*time.Second {
					require.NotContains(t, msg.Headers, keys.NotBefore, "the last round")
				}
			}
			require.Len(t, asked, 3)
			for i, rest := range []time.Duration{13 * time.Second, 8 * time.Second, time.Millisecond} {
				require.Equal(t, rest, asked[i].Delay)
				require.Equal(t, 13*time.Second, asked[i].Asked)
			}
		})
	}
}

// A rest under a hundredth of the delay was left out: the message was early.
func TestAShortRestIsNotLeftOut(t *testing.T) {
	t.Parallel()
	d := fuzzedDelivery(t, testWaits(Via{}), amqp.Delivery{RoutingKey: "orders"})
	d.State = header.RetryState{Delay: time.Hour, NotBefore: time.Now().Add(20 * time.Second)}
	require.Positive(t, d.remaining(), "less than a hundredth of the delay is left")
}
