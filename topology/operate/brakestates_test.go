package operate_test

import (
	"crypto/rand"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/fleet"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology/operate"
)

// Every call that makes no sense is refused with all its problems, and declares nothing.
func TestBrakesRefuse(t *testing.T) {
	t.Parallel()
	url, ctx := testbroker.URL(t), t.Context()
	o := rig.OpenOperator(t, url)
	_, err := o.Brakes(ctx)
	require.ErrorContains(t, err, "only the management API shows the names of brakes")
	_, err = o.Brake(ctx, "a\nb")
	require.ErrorIs(t, err, operate.ErrInvalidOptions)
	require.ErrorContains(t, err, "U+000A is not printable")
	name := "refused " + rand.Text()
	for _, limit := range []time.Duration{-time.Hour, 0, 999 * time.Millisecond, 25 * time.Hour} {
		_, err = o.StopBrake(ctx, name, "anna", "", limit)
		require.ErrorIs(t, err, operate.ErrInvalidOptions, limit)
		require.ErrorContains(t, err, "it must be 1s to 24h0m0s", limit)
	}
	_, err = o.StopBrake(ctx, "", "a\xff", strings.Repeat("x", 1001), 0)
	require.ErrorIs(t, err, operate.ErrInvalidOptions)
	for _, problem := range []string{
		"it is empty", "the limit is 0s", "the operator has 2 bytes", "the cause has 1001 bytes",
	} {
		require.ErrorContains(t, err, problem)
	}
	require.ErrorIs(t, o.StartBrake(ctx, "", "anna"), operate.ErrInvalidOptions)
	require.ErrorIs(t, o.StartBrake(ctx, name, "anna"), operate.ErrNoBrake)
	_, err = o.Brake(ctx, name)
	require.ErrorIs(t, err, operate.ErrNoBrake)
}

// Given brakes that are stopped and open, then Brakes shows all of them by name. A process that has
// the token of a brake and hangs does not hide that the brake is stopped.
func TestBrakesOfAVhost(t *testing.T) {
	t.Parallel()
	node, api := testbroker.Managed(t, "")
	url, ctx := node.URL(), t.Context()
	o := rig.OpenOperator(t, url, operate.WithManagement(api))
	none, err := o.Brakes(ctx)
	require.NoError(t, err)
	require.Empty(t, none)

	const slash = "shop/Zahlungen, täglich"
	before := time.Now()
	for _, name := range []string{"open", slash} {
		shared, err := o.StopBrake(ctx, name, "anna", "the provider moves", time.Hour)
		require.NoError(t, err)
		require.False(t, shared)
	}
	require.NoError(t, o.StartBrake(ctx, "open", "bert"))
	require.ErrorIs(t, o.StartBrake(ctx, "open", "bert"), operate.ErrBrakeOpen)

	ch := testbroker.Channel(t, url)
	require.NoError(t, fleet.Declare(ch, "hung"))
	tokens, err := ch.Consume(fleet.Prefix+"hung", "", false, false, false, false, nil)
	require.NoError(t, err)
	shared, err := o.StopBrake(ctx, "hung", "anna", "", time.Hour)
	require.NoError(t, err)
	require.True(t, shared)
	<-tokens
	// An exchange without a queue is no brake that could be stopped.
	require.NoError(t, ch.ExchangeDeclare(
		fleet.Prefix+"rest", amqp.ExchangeFanout, true, false, false, false, nil))

	var states []header.BrakeState
	testbroker.WaitFor(t, "the management API to count", 30*time.Second, func() bool {
		states, err = o.Brakes(ctx)
		require.NoError(t, err)
		require.Len(t, states, 4)
		return states[0].Stopped
	})
	require.Equal(t, header.BrakeState{Name: "hung", Stopped: true}, states[0])
	require.Equal(t, header.BrakeState{Name: "open"}, states[1])
	require.Equal(t, header.BrakeState{Name: "rest"}, states[2])
	stop := states[3]
	require.WithinRange(t, stop.Since, before.Truncate(time.Millisecond), time.Now())
	require.Equal(t, header.BrakeState{
		Name: slash, Stopped: true, Manual: true, By: "anna", Cause: "the provider moves",
		Since: stop.Since, Until: stop.Since.Add(time.Hour),
	}, stop)
}
