package fleet_test

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	outage "github.com/millpond-go/millpond/internal/brake"
	"github.com/millpond-go/millpond/internal/fleet"
	"github.com/millpond-go/millpond/internal/link"
	"github.com/millpond-go/millpond/internal/testing/memnet"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware/header"
)

// joining is a member that takes part until leave is called.
type joining struct {
	brake  *outage.Brake
	member *fleet.Member
	leave  context.CancelFunc
	left   chan struct{}
}

// connect opens a connection to url.
func connect(t *testing.T, url string) *link.Link {
	t.Helper()
	l, err := link.Open(t.Context(), link.Config{
		URL: url, Name: "millpond test", ConnectTimeout: 10 * time.Second,
		WriteTimeout: 10 * time.Second, Logger: watermill.NopLogger{},
		Reconnect: link.Backoff{Initial: time.Second, Max: time.Second, Multiplier: 1},
		AMQP:      &amqp.Config{Dial: memnet.Dial},
	})
	require.NoError(t, err)
	t.Cleanup(l.Close)
	return l
}

// join lets a member take part.
func join(l *link.Link, name string) *joining { return joinAs(l, name, "instance") }

func joinAs(l *link.Link, name, instance string, users ...string) *joining {
	j := &joining{left: make(chan struct{})}
	j.brake = outage.New(outage.Config{
		Name: name, Pause: func(int) time.Duration { return 50 * time.Millisecond },
		Successes: 1, Ramp: time.Second, Started: func() {},
	})
	j.member = fleet.NewMember(fleet.Config{
		Brake: j.brake, Link: l, Instance: instance, Logger: watermill.NopLogger{},
		Tell: func(header.BrakeState, bool) {}, ControlUsers: users,
	})
	ctx, cancel := context.WithCancel(context.Background())
	j.leave = cancel
	go func() {
		defer close(j.left)
		j.member.Run(ctx)
	}()
	return j
}

// Given a broker that answers too late when a member joins, when it answers again, then no consumer
// of the token is left that no goroutine reads: the token would stay there.
func TestALateAnswerLeavesNoConsumer(t *testing.T) {
	t.Parallel()
	b := newBrake(t)
	proxy := testbroker.NewProxy(t, testbroker.URL(t))
	l := connect(t, proxy.URL())
	proxy.Freeze(true)
	j := join(l, b.name)
	<-j.member.Ready() // it has given the first try up
	proxy.Freeze(false)
	rig.WaitFor(t, "the member to join", j.brake.Joined)
	_, err := fleet.StopByHand(t.Context(), b.conn, b.planned())
	require.NoError(t, err)
	rig.WaitFor(t, "the member to have the token", func() bool {
		return j.brake.State().Prober == "instance"
	})
	j.leave()
	<-j.left
}

// member lets a member take part through a proxy, until the end of the test.
func (b *brake) member(instance string) (*joining, *testbroker.Proxy) {
	proxy := testbroker.NewProxy(b.t, testbroker.URL(b.t))
	j := joinAs(connect(b.t, proxy.URL()), b.name, instance)
	b.t.Cleanup(func() {
		proxy.Freeze(false)
		j.leave()
		<-j.left
	})
	rig.WaitFor(b.t, instance+" to join", j.brake.Joined)
	return j, proxy
}

// downtime is a stop by an operator that begins now.
func (b *brake) downtime() header.BrakeState {
	state := b.planned()
	state.Since = time.Now().UTC()
	state.Until = state.Since.Add(time.Hour)
	return state
}

// Given a stopped brake whose prober hangs, so that the broker still takes it for alive, when
// another member loses its connection and a new one joins, then both are stopped.
func TestMembersStayStoppedWhileTheProberHangs(t *testing.T) {
	t.Parallel()
	b := newBrake(t)
	prober, proberProxy := b.member("prober")
	other, otherProxy := b.member("other")
	_, err := fleet.StopByHand(t.Context(), b.conn, b.downtime())
	require.NoError(t, err)
	rig.WaitFor(t, "the token to be taken", func() bool {
		return prober.brake.State().Prober == "prober" && other.brake.Stopped()
	})

	proberProxy.Freeze(true)
	connections := otherProxy.Connections()
	otherProxy.Cut()
	rig.WaitFor(t, "the other member to connect again", func() bool {
		return otherProxy.Connections() > connections
	})
	require.Never(t, func() bool { return !other.brake.Stopped() }, 9*time.Second, 50*time.Millisecond)
	fresh, _ := b.member("new")
	require.True(t, fresh.brake.Stopped(), "the other member has told it")
	require.Equal(t, "anna", fresh.brake.State().By)
}

// Given a member that is away when the brake starts, when it is back, then another member tells it.
func TestAMemberHearsOfAStartThatItHasMissed(t *testing.T) {
	t.Parallel()
	b := newBrake(t)
	_, _ = b.member("prober")
	away, proxy := b.member("away")
	_, err := fleet.StopByHand(t.Context(), b.conn, b.downtime())
	require.NoError(t, err)
	rig.WaitFor(t, "the member to stop", away.brake.Stopped)

	proxy.Refuse(true)
	proxy.Cut()
	require.NoError(t, fleet.StartByHand(t.Context(), b.conn, b.name, "bert"))
	require.True(t, away.brake.Stopped())
	proxy.Refuse(false)
	back := time.Now()
	rig.WaitFor(t, "the member to start", func() bool { return !away.brake.Stopped() })
	require.Less(t, time.Since(back), 3*rig.Ceiling)
	require.Equal(t, "bert", away.brake.State().By)
}

// Given a member that probes, when its connection is lost, then it does not show itself as the
// prober any more.
func TestALostProberDoesNotShowItself(t *testing.T) {
	t.Parallel()
	b := newBrake(t)
	prober, proxy := b.member("prober")
	_, err := fleet.StopByHand(t.Context(), b.conn, b.downtime())
	require.NoError(t, err)
	rig.WaitFor(t, "the token to be taken", func() bool {
		return prober.brake.State().Prober == "prober"
	})
	proxy.Refuse(true)
	proxy.Cut()
	testbroker.WaitFor(t, "the prober to be unknown", rig.Ceiling, func() bool {
		state := prober.brake.State()
		return state.Stopped && state.Prober == ""
	})
}

// Given a broker that reads nothing because of an alarm, then a member leaves nevertheless.
func TestAMemberLeavesDuringAnAlarm(t *testing.T) {
	t.Parallel()
	node := testbroker.Private(t)
	j := join(connect(t, node.URL()), "orders")
	rig.WaitFor(t, "the member to join", j.brake.Joined)
	node.Ctl(t, "set_vm_memory_high_watermark", "0.000001")
	defer node.Ctl(t, "set_vm_memory_high_watermark", "0.4")
	j.leave()
	select {
	case <-j.left:
	case <-time.After(rig.Ceiling):
		t.Fatal("the member waits for the end of the alarm")
	}
}
