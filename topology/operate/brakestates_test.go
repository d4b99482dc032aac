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

// A call that makes no sense is refused with all its problems, and declares nothing.
func TestBrakesRefuse(t *testing.T) {
	t.Parallel()
	o, ctx, name := rig.OpenOperator(t, testbroker.URL(t)), t.Context(), "refused "+rand.Text()
	_, err := o.StopBrake(ctx, name, "a\xff", strings.Repeat("x", 1001), 999*time.Millisecond)
	require.ErrorIs(t, err, operate.ErrInvalidOptions)
	rig.RequireTexts(t, err, "it must be 1s to 24h0m0s", "the operator has 2 bytes",
		"the cause has 1001 bytes")
	_, err = o.StopBrake(ctx, "", "anna", "", -time.Hour)
	rig.RequireTexts(t, err, "it is empty", "the limit is -1h0m0s")
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
	defer func() { // the queues of a brake are none of a plan, and keep no letters
		v, err := o.View(ctx, operate.ViewOptions{})
		require.NoError(t, err)
		require.True(t, v.Empty())
		require.Empty(t, v.Unclaimed)
		require.Empty(t, v.Unclear)
		require.Equal(t, []operate.Brake{
			{Name: "hung", Queues: []string{}},
			{Name: "open", Queues: []string{}},
			{Name: slash, Queues: []string{}},
		}, v.Brakes)
	}()

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
