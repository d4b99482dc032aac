package fleet_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	outage "github.com/millpond-go/millpond/internal/brake"
	"github.com/millpond-go/millpond/internal/fleet"
	"github.com/millpond-go/millpond/internal/link"
	"github.com/millpond-go/millpond/internal/testing/memnet"
	"github.com/millpond-go/millpond/internal/testing/peer"
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

func joinAs(l *link.Link, name, instance string) *joining {
	j := &joining{left: make(chan struct{})}
	j.brake = outage.New(outage.Config{
		Name: name, Pause: func(int) time.Duration { return 50 * time.Millisecond },
		Successes: 1, Ramp: time.Second, Started: func() {},
	})
	j.member = fleet.NewMember(fleet.Config{
		Brake: j.brake, Link: l, Instance: instance, Logger: watermill.NopLogger{},
		Tell: func(header.BrakeState, bool) {},
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
	b.stop(b.planned())
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
	b.stop(b.downtime())
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
	b.stop(b.downtime())
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
	b.stop(b.downtime())
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

// Given a stopped brake whose token cannot be renewed because the broker writes nothing during an
// alarm, then the brake stays stopped, and is probed when the alarm is over.
func TestAStoppedBrakeOutlastsAnAlarm(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var alarm atomic.Bool
		s := peer.Start(t, func(p *peer.Publish) {
			switch {
			case alarm.Load():
			case p.Exchange == fleet.Prefix+"payments":
				p.FanOut(p.Exchange + ".")
			default:
				p.Accept()
			}
		})
		j := joinAs(connect(t, s.URL()), "payments", "shop@host/7")
		t.Cleanup(func() { j.leave(); <-j.left })
		time.Sleep(time.Second)
		require.True(t, j.brake.Trip("out"))
		time.Sleep(time.Second)
		require.Equal(t, "shop@host/7", j.brake.State().Prober)
		since := j.brake.State().Since
		alarm.Store(true)
		for range 1000 {
			time.Sleep(100 * time.Millisecond)
			require.True(t, j.brake.Stopped())
		}
		alarm.Store(false)
		time.Sleep(20 * time.Second)
		require.Equal(t, "shop@host/7", j.brake.State().Prober)
		require.Equal(t, since, j.brake.State().Since)
	})
}

// alone lets f act on a member in virtual time, with the channel of another client.
func alone(t *testing.T, f func(j *joining, ch *amqp.Channel)) {
	t.Helper()
	const exchange = fleet.Prefix + "payments"
	synctest.Test(t, func(t *testing.T) {
		s := peer.Start(t, func(p *peer.Publish) {
			if p.Exchange == exchange {
				p.FanOut(exchange + ".")
			} else {
				p.Accept()
			}
		})
		j := joinAs(connect(t, s.URL()), "payments", "shop@host/7")
		time.Sleep(time.Second)
		require.True(t, j.brake.Joined())
		t.Cleanup(func() { j.leave(); <-j.left })
		f(j, testbroker.Channel(t, s.URL()))
	})
}

// tell publishes news to all members.
func tell(t *testing.T, ch *amqp.Channel, kind, from, replyTo, body string) {
	t.Helper()
	require.NoError(t, ch.Publish(fleet.Prefix+"payments", "", false, false, amqp.Publishing{
		Type: kind, AppId: from, ReplyTo: replyTo, Body: []byte(body),
	}))
}

// Given a client that may publish to the exchange and read nothing, when it repeats that the brake
// is stopped, then no process stops: there is no token.
func TestAForgedStopStopsNoProcess(t *testing.T) {
	t.Parallel()
	alone(t, func(j *joining, ch *amqp.Channel) {
		for i := range 100 {
			const body = `{"stopped":true,"since":"2026-03-01T12:00:00Z","prober":"x"}`
			reply := []string{"", "orders", fleet.Prefix + "payments.0123456789abcdef"}[i%3]
			tell(t, ch, fleet.Stopped, "x", reply, body)
			tell(t, ch, fleet.Told, "x", reply, body)
			time.Sleep(time.Second)
			require.False(t, j.brake.Stopped(), "after %d s", i)
		}
	})
}

// hearing returns the news that the other client gets, in its queue.
func hearing(t *testing.T, ch *amqp.Channel, queue string) <-chan amqp.Delivery {
	t.Helper()
	_, err := ch.QueueDeclare(queue, false, false, false, false, nil)
	require.NoError(t, err)
	heard, err := ch.Consume(queue, "", true, false, false, false, nil)
	require.NoError(t, err)
	return heard
}

// questions counts the questions of the member that are there, to 2000.
func questions(heard <-chan amqp.Delivery) (n int) {
	for n < 2000 {
		select {
		case d := <-heard:
			if d.Type == fleet.Hello {
				n++
			}
		case <-time.After(100 * time.Millisecond):
			return n
		}
	}
	return n
}

// reply answers the next question of the member, and returns it.
func reply(t *testing.T, ch *amqp.Channel, heard <-chan amqp.Delivery, kind, body string) string {
	t.Helper()
	limit := time.After(30 * time.Second)
	for {
		select {
		case d := <-heard:
			if d.Type == fleet.Hello {
				require.NoError(t, ch.Publish("", d.ReplyTo, false, false, amqp.Publishing{
					Type: kind, AppId: "old", Body: []byte(body),
				}))
				return string(d.Body)
			}
		case <-limit:
			t.Fatal("the member has not asked")
		}
	}
}

// Given a process of an earlier version that probes, whose news name no queue to ask, then a member
// asks all, seldom, and believes the answer.
func TestAStopOfAnEarlierVersion(t *testing.T) {
	t.Parallel()
	alone(t, func(j *joining, ch *amqp.Channel) {
		const body = `{"stopped":true,"since":"2026-03-01T12:00:00Z","prober":"old"}`
		heard := hearing(t, ch, fleet.Prefix+"payments.old")
		for range 12 {
			tell(t, ch, fleet.Stopped, "old", "", body)
			time.Sleep(5 * time.Second)
		}
		asked := questions(heard)
		require.True(t, asked > 0 && asked <= 4, "%d questions", asked)
		time.Sleep(time.Minute)
		tell(t, ch, fleet.Stopped, "old", "", body)
		reply(t, ch, heard, fleet.Stopped, body)
		time.Sleep(time.Second)
		require.Equal(t, "old", j.brake.State().Prober)
	})
}

// Given forged news that name no queue, when a process of an earlier version then stops the brake,
// or starts and stops it again and again, then a member hears of it within seconds, and asks all no
// more often than before.
func TestATrueStopAfterForgedNews(t *testing.T) {
	t.Parallel()
	alone(t, func(j *joining, ch *amqp.Channel) {
		const body = `{"stopped":true,"since":"2026-03-01T12:00:00Z","prober":"old"}`
		heard := hearing(t, ch, fleet.Prefix+"payments.old")
		tell(t, ch, fleet.Stopped, "x", "", `{"stopped":true,"prober":"x"}`)
		require.Equal(t, 1, questions(heard))
		time.Sleep(6 * time.Second)
		tell(t, ch, fleet.Stopped, "old", "", body)
		reply(t, ch, heard, fleet.Stopped, body)
		time.Sleep(time.Second)
		require.True(t, j.brake.Stopped())
		for range 100 {
			tell(t, ch, fleet.Started, "x", "", `{"by":"x"}`)
			tell(t, ch, fleet.Stopped, "x", "", `{"stopped":true,"prober":"x"}`)
			time.Sleep(100 * time.Millisecond)
		}
		require.LessOrEqual(t, questions(heard), 3)
	})
}

// Given a client that says without end that the brake is stopped, and names a queue to ask, then a
// member asks a few times a second.
func TestAFloodOfStopsIsNoFloodOfQuestions(t *testing.T) {
	t.Parallel()
	alone(t, func(j *joining, ch *amqp.Channel) {
		queue := fleet.Prefix + "payments.0123456789abcdef"
		heard := hearing(t, ch, queue)
		for range 1000 {
			tell(t, ch, fleet.Stopped, "x", queue, `{"stopped":true,"prober":"x"}`)
		}
		time.Sleep(500 * time.Millisecond)
		asked := questions(heard)
		require.True(t, asked > 0 && asked <= 8, "%d questions", asked)
	})
}

// Given a brake whose name begins with the name of another, when news of the other one ask for an
// answer to its token queue, or are there, then it does not stop.
func TestNewsOfAnotherBrakeAreNoToken(t *testing.T) {
	t.Parallel()
	alone(t, func(j *joining, ch *amqp.Channel) {
		const body = `{"stopped":true,"since":"2026-03-01T12:00:00Z","prober":"x"}`
		other := fleet.Prefix + "payments.eu"
		_, err := ch.QueueDeclare(other, false, false, false, false, nil)
		require.NoError(t, err)
		tell(t, ch, fleet.Stopped, "x", other, body)
		tell(t, ch, fleet.Hello, "x", other, body)
		require.NoError(t, ch.Publish("", fleet.Prefix+"payments", false, false, amqp.Publishing{
			Type: fleet.Hello, AppId: "x", Body: []byte(body),
		}))
		time.Sleep(time.Second)
		require.False(t, j.brake.Stopped())
		for range 2 { // the exchange of this test sends them there, too
			d, got, err := ch.Get(other, true)
			require.NoError(t, err)
			require.True(t, got)
			require.NotEmpty(t, d.Exchange, "an answer")
		}
		_, got, err := ch.Get(other, true)
		require.NoError(t, err)
		require.False(t, got)
	})
}

// Given rates in news whose sum is no number, when the brake trips and starts, then the member
// does.
func TestForgedRatesEndNoSession(t *testing.T) {
	t.Parallel()
	alone(t, func(j *joining, ch *amqp.Channel) {
		require.True(t, j.brake.Trip("too many fail"))
		time.Sleep(1100 * time.Millisecond)
		for i := range 5 {
			tell(t, ch, fleet.Rate, fmt.Sprint("x", i), "", `{"rate":1.7e308,"members":-7}`)
		}
		for range 20 {
			time.Sleep(time.Second)
			require.True(t, j.brake.Joined())
			require.Equal(t, "shop@host/7", j.brake.State().Prober)
		}
		tell(t, ch, fleet.Start, "x", "", `{"by":"anna"}`)
		time.Sleep(time.Second)
		state := j.brake.State()
		require.False(t, state.Stopped)
		require.LessOrEqual(t, state.Rate, 1e9)
	})
}

// Given a stopped brake, when its queue is deleted by hand, then the process that has probed puts
// its token back at once, and probes. The same is true if it gives the token back at that moment.
func TestATokenThatWasDeletedIsPutBack(t *testing.T) {
	t.Parallel()
	for _, pause := range []time.Duration{time.Second, 1100 * time.Millisecond} {
		alone(t, func(j *joining, ch *amqp.Channel) {
			require.True(t, j.brake.Trip("too many fail"))
			time.Sleep(pause)
			require.True(t, j.brake.Stopped())
			_, err := ch.QueueDelete(fleet.Prefix+"payments", false, false, false)
			require.NoError(t, err)
			time.Sleep(2100 * time.Millisecond)
			require.Equal(t, "shop@host/7", j.brake.State().Prober)
			require.Equal(t, "too many fail", j.brake.State().Cause)
		})
	}
}

// Given a stopped brake whose queue is deleted, when an operator starts it before the process that
// has probed is back, then that process hears it, and puts no token back.
func TestATokenThatWasDeletedComesBackIntoNoStartedBrake(t *testing.T) {
	t.Parallel()
	alone(t, func(j *joining, ch *amqp.Channel) {
		require.True(t, j.brake.Trip("too many fail"))
		time.Sleep(time.Second)
		heard := hearing(t, ch, fleet.Prefix+"payments.other")
		_, err := ch.QueueDelete(fleet.Prefix+"payments", false, false, false)
		require.NoError(t, err)
		since, err := time.Now().Add(time.Millisecond).UTC().MarshalText()
		require.NoError(t, err)
		asked := reply(t, ch, heard, fleet.Started, fmt.Sprintf(`{"by":"anna","since":%q}`, since))
		require.Contains(t, asked, `"stopped":true`)
		for range 20 {
			time.Sleep(time.Second)
			state := j.brake.State()
			require.False(t, state.Stopped)
			require.Equal(t, "anna", state.By)
		}
	})
}

// Every value of a state that any client may have published has a bound.
func TestReadBounds(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 2000)
	state, ok := fleet.Read("payments", amqp.Delivery{Body: fmt.Appendf(nil, `{"by":%q,"cause":%q,`+
		`"prober":%q,"rate":-1,"members":-1,"since":"9999-12-31T23:59:59Z",`+
		`"until":"9999-12-31T23:59:59Z","unknown":true}`, long, long, long)})
	require.True(t, ok)
	for _, text := range []string{state.By, state.Cause, state.Prober} {
		require.LessOrEqual(t, len(text), 512)
	}
	require.Zero(t, state.Rate)
	require.Zero(t, state.Members)
	require.False(t, state.Unknown)
	require.Less(t, time.Until(state.Since), 2*time.Minute)
	require.Less(t, time.Until(state.Until), 25*time.Hour)
	state, _ = fleet.Read("payments",
		amqp.Delivery{Body: []byte(`{"rate":1.7e308,"members":99999999}`)})
	require.Equal(t, header.BrakeState{Name: "payments", Rate: 1e9, Members: 10_000}, state)
	_, ok = fleet.Read("payments", amqp.Delivery{
		Body: fmt.Appendf(nil, `{"cause":%q}`, strings.Repeat("x", 8<<20)),
	})
	require.False(t, ok)
}

// Given a process that has the token and hangs, when an operator looks and starts the brake, then
// the state is not known, and the other processes start.
func TestAStartActsWithoutAToken(t *testing.T) {
	t.Parallel()
	b := newBrake(t)
	prober, proxy := b.member("prober")
	other, _ := b.member("other")
	b.stop(b.downtime())
	rig.WaitFor(t, "both to stop", func() bool {
		return prober.brake.State().Prober == "prober" && other.brake.Stopped()
	})
	proxy.Freeze(true)
	state := b.ask()
	require.True(t, state.Unknown && state.Stopped, "%+v", state)
	require.Equal(t, "anna", state.By)
	require.NoError(t, b.start())
	rig.WaitFor(t, "the other one to start", func() bool { return !other.brake.Stopped() })
}
