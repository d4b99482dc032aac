package topology_test

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
)

// entriesOf returns the entries with a text, in their order.
func (c *capture) entriesOf(msg string) []entry {
	c.mu.Lock()
	defer c.mu.Unlock()
	var found []entry
	for _, e := range c.entries {
		if e.msg == msg {
			found = append(found, e)
		}
	}
	return found
}

const roundedUp = "Warning: a delay is rounded up by more than a tenth to the next longer wait step; " +
	"give the Subscriber the policy with topology.ForPolicy, and a delay that an error asks for as a backoff.List beside it"

// Without ForPolicy the delays are those of the default wait steps. It was said nowhere, and the
// log had the delays that were asked for.
func TestSubscriberWithoutThePolicyIsNamed(t *testing.T) {
	t.Parallel()
	var calls timeline
	r := newRig(t, rigConfig{
		strategy:      topology.PerQueue{WaitSteps: []time.Duration{100 * time.Millisecond, time.Second}},
		policy:        backoff.List{100 * time.Millisecond, 300 * time.Millisecond, 400 * time.Millisecond},
		unknownPolicy: true,
		handler: func(*message.Message) ([]*message.Message, error) {
			calls.add()
			return nil, errFailed
		},
	})
	r.publish(amqp.Publishing{Body: []byte("rounded")})
	take(t, r.url, r.queue+".dlq")
	calls.requireGaps(t, 100*time.Millisecond, time.Second, time.Second)

	var told [][]any
	for _, e := range r.logs.entriesOf("Message will be retried") {
		told = append(told, []any{e.fields["delay"], e.fields["asked"]})
	}
	require.Equal(t, [][]any{
		{100 * time.Millisecond, nil}, {time.Second, 300 * time.Millisecond}, {time.Second, 400 * time.Millisecond},
	}, told)
	warnings := r.logs.entriesOf(roundedUp)
	require.Len(t, warnings, 1, "once for each Subscribe")
	require.Equal(t, r.queue, warnings[0].fields["queue"])
	require.Equal(t, []time.Duration{100 * time.Millisecond, 300 * time.Millisecond}, warnings[0].fields["delays_asked"])
	require.Equal(t, []time.Duration{100 * time.Millisecond, time.Second}, warnings[0].fields["wait_steps"])
	require.Equal(t, []any{300 * time.Millisecond, time.Second}, []any{warnings[0].fields["asked"], warnings[0].fields["delay"]})
}

func TestSubscriberWithThePolicyIsNotNamed(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigConfig{
		policy: backoff.List{100 * time.Millisecond, 105 * time.Millisecond},
		handler: func(msg *message.Message) ([]*message.Message, error) {
			if middleware.StateOf(msg.Context()).FirstSeen.IsZero() {
				return nil, middleware.Snooze(errFailed, 0) // as short as possible
			}
			return nil, errFailed
		},
	})
	r.publish(amqp.Publishing{Body: []byte("exact")})
	take(t, r.url, r.queue+".dlq")
	require.Empty(t, r.logs.entriesOf(roundedUp))
	for _, e := range r.logs.entriesOf("Message will be retried") {
		require.NotContains(t, e.fields, "asked")
	}
}

func TestRoundingOfLevelsNamesTheResolution(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigConfig{
		strategy: levels(t, topology.Quorum),
		policy:   backoff.List{110 * time.Millisecond, 120 * time.Millisecond},
		handler:  func(*message.Message) ([]*message.Message, error) { return nil, errFailed },
	})
	r.publish(amqp.Publishing{Body: []byte("levels")})
	take(t, r.url, r.queue+".dlq")
	require.Equal(t, 1, r.logs.said("give topology.Levels a smaller Resolution"))
	require.Empty(t, r.logs.entriesOf(roundedUp))
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
		"age":      {amqp.Publishing{}, []middleware.Option{middleware.WithMaxAge(30 * time.Second)}, errFailed, "max_age"},
		"deadline": {amqp.Publishing{Expiration: "30000"}, nil, errFailed, "deadline"},
		"Snooze, deadline": {amqp.Publishing{Expiration: "30000"}, nil,
			middleware.Snooze(errFailed, 2*time.Second), "deadline"},
		"Snooze, limit": {amqp.Publishing{},
			[]middleware.Option{middleware.WithSnoozeLimit(30 * time.Second), middleware.WithMaxAttempts(1)},
			middleware.Snooze(errFailed, 2*time.Second), "exhausted"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var calls timeline
			r := newRig(t, rigConfig{
				strategy: topology.PerQueue{WaitSteps: []time.Duration{time.Second, time.Minute}},
				policy:   backoff.List{2 * time.Second}, unknownPolicy: true, options: c.options,
				handler: func(*message.Message) ([]*message.Message, error) {
					calls.add()
					return nil, c.err
				},
			})
			r.publish(c.send)
			dead := take(t, r.url, r.queue+".dlq")
			require.Equal(t, c.reason, dead.Headers[header.DeadReason])
			require.Equal(t, 1, calls.count())
			require.Empty(t, r.logs.entriesOf("Message will be retried"), "it has not waited")
			require.Empty(t, r.logs.entriesOf("Message snoozed"), "it has not waited")
		})
	}
}

// A plan whose delays are hours had no shorter step: what the router nacked, and what
// may have killed the process, was away for hours.
func TestNackedUnderAPolicyOfHoursComesBackInSeconds(t *testing.T) {
	t.Parallel()
	for name, strategy := range strategies {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var calls timeline
			back := make(chan struct{})
			r := newRig(t, rigConfig{
				strategy: strategy(t),
				policy:   backoff.List{6 * time.Hour},
				outer: []message.HandlerMiddleware{func(h message.HandlerFunc) message.HandlerFunc {
					return func(msg *message.Message) ([]*message.Message, error) {
						if calls.add() == 1 {
							return nil, errFailed // outside: the router nacks
						}
						close(back)
						return h(msg)
					}
				}},
				handler: func(*message.Message) ([]*message.Message, error) { return nil, nil },
			})
			r.publish(amqp.Publishing{Body: []byte("nacked")})
			select {
			case <-back:
			case <-time.After(time.Minute):
				t.Fatal("still away after a minute")
			}
			calls.requireGaps(t, time.Second)
		})
	}
}
