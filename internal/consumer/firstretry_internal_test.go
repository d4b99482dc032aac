package consumer

import (
	"errors"
	"fmt"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/publisher"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology/wait"
)

// Only the first publish after the first failure goes straight to the queue.
func TestWhichCopyComesAtOnce(t *testing.T) {
	t.Parallel()
	type testCase struct {
		delay          time.Duration
		failed, before int // failures with this one, and before it
		set            func(d *delivery)
		want           bool
	}
	tried := func(d *delivery) { d.triedAtOnce = true }
	outage := func(d *delivery) { d.sub.outage.active.Store(true) }
	via := func(d *delivery) { d.sub.cfg.Waits.Via.Through = []string{"back"} }
	for name, c := range map[string]testCase{
		"the first failure":          {failed: 1, want: true},
		"the first, with a delay":    {delay: time.Millisecond, failed: 1},
		"the second":                 {failed: 2, before: 1},
		"the second, counted as one": {failed: 1, before: 1},
		"a snooze":                   {},
		"a snooze after a failure":   {failed: 1, before: 1},
		"a second publish":           {failed: 1, set: tried},
		"during an outage":           {failed: 1, set: outage},
		"through an exchange":        {failed: 1, set: via},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sub := &Subscription{cfg: Config{Waits: Waits{
				Route: func(wait.Retry) (wait.Route, error) {
					return wait.Route{RoutingKey: "wait", Delay: time.Second}, nil
				},
			}}}
			d := &delivery{sub: sub}
			d.Queue, d.State.Failures = "orders", c.before
			if c.set != nil {
				c.set(d)
			}
			state := header.RetryState{Failures: c.failed}
			require.Equal(t, c.want, d.comesAtOnce(c.delay, &state))
			first, err := d.route(c.delay, &state)
			require.NoError(t, err)
			require.Equal(t, c.want, isAtOnce(&first))
			require.Equal(t, c.want, d.isOwn(&first))
			second, err := d.route(c.delay, &state)
			require.NoError(t, err)
			require.Equal(t, "wait", second.RoutingKey)
		})
	}
}

func TestWhichErrorsDeclineAMessage(t *testing.T) {
	t.Parallel()
	for _, err := range []error{
		publisher.ErrRefused, &publisher.ReturnedError{},
		fmt.Errorf("unknown: %w", &amqp.Error{Code: amqp.AccessRefused}),
	} {
		require.True(t, isDeclined(fmt.Errorf("publish: %w", err)), "%v", err)
	}
	for _, err := range []error{
		nil, publisher.ErrNotSent, publisher.ErrUnknown, errors.New("other"),
		&amqp.Error{Code: amqp.NotFound},
	} {
		require.False(t, isDeclined(err), "%v", err)
	}
}
