package topology_test

import (
	"testing"
	"time"

	"github.com/millpond-go/millpond/internal/testing/rig"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
)

const roundedUp = "Warning: a delay is rounded up by more than a tenth to the next longer wait step; " +
	"give the Subscriber the policy with topology.ForPolicy, and a delay that an error asks for as a backoff.List beside it"

// Without ForPolicy the delays are those of the default wait steps. It was said nowhere, and the
// log had the delays that were asked for.
func TestSubscriberWithoutThePolicyIsNamed(t *testing.T) {
	t.Parallel()
	var calls rig.Timeline
	r := rig.Start(t, rig.Config{
		Strategy:      topology.PerQueue{WaitSteps: []time.Duration{100 * time.Millisecond, time.Second}},
		Policy:        backoff.List{100 * time.Millisecond, 300 * time.Millisecond, 400 * time.Millisecond},
		UnknownPolicy: true,
		Handler: func(*message.Message) ([]*message.Message, error) {
			calls.Add()
			return nil, rig.ErrFailed
		},
	})
	r.Publish(amqp.Publishing{Body: []byte("rounded")})
	r.DeadLetter()
	calls.RequireGaps(t, 100*time.Millisecond, time.Second, time.Second)

	var told [][]any
	for _, e := range r.Logs.EntriesOf("Message will be retried") {
		told = append(told, []any{e.Fields["delay"], e.Fields["asked"]})
	}
	require.Equal(t, [][]any{
		{100 * time.Millisecond, nil}, {time.Second, 300 * time.Millisecond}, {time.Second, 400 * time.Millisecond},
	}, told)
	warnings := r.Logs.EntriesOf(roundedUp)
	require.Len(t, warnings, 1, "once for each Subscribe")
	require.Equal(t, r.Queue, warnings[0].Fields["queue"])
	require.Equal(t, []time.Duration{100 * time.Millisecond, 300 * time.Millisecond}, warnings[0].Fields["delays_asked"])
	require.Equal(t, []time.Duration{100 * time.Millisecond, time.Second}, warnings[0].Fields["wait_steps"])
	require.Equal(t, []any{300 * time.Millisecond, time.Second}, []any{warnings[0].Fields["asked"], warnings[0].Fields["delay"]})
}

func TestSubscriberWithThePolicyIsNotNamed(t *testing.T) {
	t.Parallel()
	r := rig.Start(t, rig.Config{
		Policy: backoff.List{100 * time.Millisecond, 105 * time.Millisecond},
		Handler: func(msg *message.Message) ([]*message.Message, error) {
			if _, seen := middleware.FirstSeen(msg.Context()); !seen {
				return nil, middleware.Snooze(rig.ErrFailed, 0) // as short as possible
			}
			return nil, rig.ErrFailed
		},
	})
	r.Publish(amqp.Publishing{Body: []byte("exact")})
	r.DeadLetter()
	require.Empty(t, r.Logs.EntriesOf(roundedUp))
	for _, e := range r.Logs.EntriesOf("Message will be retried") {
		require.NotContains(t, e.Fields, "asked")
	}
}

func TestRoundingOfLevelsNamesTheResolution(t *testing.T) {
	t.Parallel()
	r := rig.Start(t, rig.Config{
		Strategy: rig.Levels(t, topology.Quorum),
		Policy:   backoff.List{110 * time.Millisecond, 120 * time.Millisecond},
		Handler:  func(*message.Message) ([]*message.Message, error) { return nil, rig.ErrFailed },
	})
	r.Publish(amqp.Publishing{Body: []byte("levels")})
	r.DeadLetter()
	require.Equal(t, 1, r.Logs.Said("give topology.Levels a smaller Resolution"))
	require.Empty(t, r.Logs.EntriesOf(roundedUp))
}

// With a delay that is rounded up to beyond a limit the message waited all the same:
// it was handled too old, or waited for nothing and was refused when it came back.
func TestLimitsGoByTheDelayThatIsGiven(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		send    amqp.Publishing
		options []middleware.Option
		err     error
		reason  string
	}{
		"age":      {amqp.Publishing{}, []middleware.Option{middleware.WithMaxAge(30 * time.Second)}, rig.ErrFailed, "max_age"},
		"deadline": {amqp.Publishing{Expiration: "30000"}, nil, rig.ErrFailed, "deadline"},
		"Snooze, deadline": {
			amqp.Publishing{Expiration: "30000"},
			nil,
			middleware.Snooze(rig.ErrFailed, 2*time.Second), "deadline",
		},
		"Snooze, limit": {
			amqp.Publishing{},
			[]middleware.Option{middleware.WithSnoozeLimit(30 * time.Second), middleware.WithMaxAttempts(1)},
			middleware.Snooze(rig.ErrFailed, 2*time.Second), "exhausted",
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var calls rig.Timeline
			r := rig.Start(t, rig.Config{
				Strategy: topology.PerQueue{WaitSteps: []time.Duration{time.Second, time.Minute}},
				Policy:   backoff.List{2 * time.Second}, UnknownPolicy: true, RetryOptions: c.options,
				Handler: func(*message.Message) ([]*message.Message, error) {
					calls.Add()
					return nil, c.err
				},
			})
			r.Publish(c.send)
			dead := r.DeadLetter()
			require.Equal(t, c.reason, dead.Headers[header.DeadReason])
			require.Equal(t, 1, calls.Count())
			require.Empty(t, r.Logs.EntriesOf("Message will be retried"), "it has not waited")
			require.Empty(t, r.Logs.EntriesOf("Message set aside"), "it has not waited")
		})
	}
}

// A plan whose delays are hours had no shorter step: what the router nacked, and what
// may have killed the process, was away for hours.
func TestNackedUnderAPolicyOfHoursComesBackInSeconds(t *testing.T) {
	t.Parallel()
	for name, strategy := range rig.Strategies {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var calls rig.Timeline
			back := make(chan struct{})
			r := rig.Start(t, rig.Config{
				Strategy: strategy(t),
				Policy:   backoff.List{6 * time.Hour},
				Outer: []message.HandlerMiddleware{func(h message.HandlerFunc) message.HandlerFunc {
					return func(msg *message.Message) ([]*message.Message, error) {
						if calls.Add() == 1 {
							return nil, rig.ErrFailed // outside: the router nacks
						}
						close(back)
						return h(msg)
					}
				}},
				Handler: func(*message.Message) ([]*message.Message, error) { return nil, nil },
			})
			r.Publish(amqp.Publishing{Body: []byte("nacked")})
			select {
			case <-back:
			case <-time.After(time.Minute):
				t.Fatal("still away after a minute")
			}
			calls.RequireGaps(t, time.Second)
		})
	}
}
