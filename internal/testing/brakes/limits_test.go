package brakes_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/budget"
	"github.com/millpond-go/millpond/middleware/outage"
	"github.com/millpond-go/millpond/topology"
)

// Given a user who may not declare the queues of a brake, when messages fail, then the budget works
// as without Brake and says so once. When the user may, the fleet is there.
func TestABrakeThatIsRefusedStopsNothing(t *testing.T) {
	t.Parallel()
	node := testbroker.Private(t)
	grant := testbroker.Grant{
		VHost: "/", User: "narrow", Configure: `^orders`, Write: ".*", Read: ".*",
	}
	node.Grant(t, grant)
	f := newFleet(t, plan{url: node.URLOf(grant.User), queue: "orders", admin: node.URL()})
	in := f.add()
	f.setOut(true)
	f.send(20)
	in.await("Retry budget is closed")
	require.False(t, in.budget.State().Stopped)
	require.True(t, in.budget.Closed())
	require.Equal(t, 1, in.logs.Said("The instances of the brake cannot reach each other"))
	require.Equal(t, 1, in.logs.Said("ACCESS_REFUSED"), "it says so once")

	grant.Configure = ".*"
	node.Grant(t, grant)
	in.await("The instances of the brake reach each other again")
	f.send(20)
	f.awaitStopped(true)
	f.setOut(false)
	f.awaitStopped(false)
	rig.WaitFor(t, "every message to be handled, or dead as without Brake", func() bool {
		return f.handled()+testbroker.Depth(t, node.URL(), "orders.dlq") == 40
	})
}

// Given instances that believe two users, because theirs is being changed, when a third one stops
// or starts their brake, then nothing happens and the operator hears it. Among each other, and by
// the hand of one of the two, they stop and start. An instance of the third one does not join.
func TestAFleetBelievesItsControlUsers(t *testing.T) {
	t.Parallel()
	node := testbroker.Private(t)
	node.Grant(t, testbroker.Everything("/", "mallory"))
	node.Grant(t, testbroker.Everything("/", "anna"))
	f := newFleet(t, plan{
		url: node.URL(), queue: "orders",
		options: []topology.Option{topology.WithControlUsers("anna", "guest")},
	})
	f.add()
	f.add(func(p *plan) { p.url = node.URLOf("anna") }) // its user has changed
	_, err := topology.Open(t.Context(), rig.ConnectionConfig(f.url), topology.PerQueue{},
		topology.WithControlUsers())
	require.ErrorContains(t, err, "name at least one user")
	unlisted := plan{url: node.URLOf("mallory"), queue: "others", options: f.options}
	newFleet(t, unlisted).add().await("is none of WithControlUsers")
	mallory := rig.OpenOperator(t, unlisted.url)
	_, err = mallory.StopBrake(t.Context(), f.name, "mallory", "", time.Hour)
	require.ErrorContains(t, err, `ignores the user "mallory"`)
	f.instances[0].await("A message about the brake is ignored")
	f.send(10)
	f.awaitHandled()

	f.setOut(true)
	f.send(20)
	f.awaitStopped(true)
	f.setOut(false)
	f.awaitStopped(false)
	f.awaitHandled()
	operator := rig.OpenOperator(t, node.URL())
	_, err = operator.StopBrake(t.Context(), f.name, "bert", "", time.Hour)
	require.NoError(t, err)
	f.awaitStopped(true)
	err = mallory.StartBrake(t.Context(), f.name, "mallory")
	require.ErrorContains(t, err, `ignores the user "mallory"`)
	f.awaitStopped(true)
	require.NoError(t, operator.StartBrake(t.Context(), f.name, "bert"))
	f.awaitStopped(false)
}

// Several queues may share one brake, and one Client may serve them all. A budget without a name
// serves one queue alone.
func TestQueuesShareABrake(t *testing.T) {
	t.Parallel()
	f := newFleet(t, plan{})
	other := testbroker.Queue(t)
	rig.RemovePlan(t, f.url, topology.PerQueue{}, other, []time.Duration{time.Second})
	f.add()
	second := f.add(func(p *plan) { p.queue = other })
	f.setOut(true)
	f.send(10) // to the first queue alone
	f.awaitStopped(true)
	ch := testbroker.Channel(t, f.url)
	rig.WaitFor(t, "the other queue to have no consumer", func() bool {
		q, err := ch.QueueDeclarePassive(other, true, false, false, false, nil)
		require.NoError(t, err)
		return q.Consumers == 0
	})
	require.Equal(t, f.name, second.budget.State().Name)
	f.setOut(false)
	f.awaitStopped(false)
	f.awaitHandled()

	budget, err := budget.New(budget.Config{
		Share: 0.5, Delay: time.Second, Brake: outage.Brake{},
	})
	require.NoError(t, err)
	client := rig.OpenClient(t, f.url, topology.PerQueue{})
	retry, err := middleware.NewDelayedRetry(client, backoff.List{time.Second},
		middleware.WithBudget(budget))
	require.NoError(t, err)
	sub, err := client.NewSubscriber(rig.QueueConfig(f.url), retry)
	require.NoError(t, err)
	one, two := testbroker.Queue(t), testbroker.Queue(t)
	for _, queue := range []string{one, two} {
		rig.RemovePlan(t, f.url, topology.PerQueue{}, queue, []time.Duration{time.Second})
	}
	f.removeBrake(one)
	_, err = sub.Subscribe(context.Background(), one)
	require.NoError(t, err)
	_, err = sub.Subscribe(context.Background(), two)
	rig.RequireTexts(t, err, "a Budget with Brake serves queue", two, "give its outage.Brake a Name")
}

// Given a budget with a key, when the messages of one customer fail, then they are set aside
// without an attempt, and the messages of other customers are handled.
func TestAKeyIsSetAside(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	broken := true
	handled := map[string]int{}
	f := newFleet(t, plan{
		budget: func(cfg *budget.Config) {
			cfg.Key = func(msg *message.Message) string {
				customer, _, _ := strings.Cut(string(msg.Payload), " ")
				return customer
			}
		},
		handle: func(msg *message.Message) error {
			mu.Lock()
			defer mu.Unlock()
			if broken && strings.HasPrefix(string(msg.Payload), "broken ") {
				return rig.ErrFailed
			}
			handled[string(msg.Payload)]++
			return nil
		},
	})
	count := func(customer string) (n int) {
		mu.Lock()
		defer mu.Unlock()
		for body := range handled {
			if strings.HasPrefix(body, customer) {
				n++
			}
		}
		return n
	}
	f.add()
	f.add()
	for i := range 30 {
		rig.Publish(t, f.url, "", f.queue, rig.Message(fmt.Sprint("broken ", i)))
		rig.Publish(t, f.url, "", f.queue, rig.Message(fmt.Sprint("sound ", i)))
	}
	rig.WaitFor(t, "the other customer's messages", func() bool { return count("sound") == 30 })
	rig.WaitFor(t, "the key to be stopped in both instances", func() bool {
		return f.instances[0].logs.Said("set aside: too many of them fail")+
			f.instances[1].logs.Said("set aside: too many of them fail") >= 1
	})
	require.False(t, f.instances[0].budget.State().Stopped)
	rig.WaitFor(t, "messages to be set aside", func() bool {
		return f.instances[0].logs.Said("too many deliveries with this key have failed") > 0 &&
			f.instances[1].logs.Said("too many deliveries with this key have failed") > 0
	})

	mu.Lock()
	broken = false
	mu.Unlock()
	rig.WaitFor(t, "the messages that were set aside", func() bool { return count("broken") == 30 })
	spent := 0
	for _, in := range f.instances {
		spent += len(in.events.of(middleware.EventRetried))
	}
	require.LessOrEqual(t, spent, 12, "attempts that the outage of one customer spent")
	require.Zero(t, testbroker.Depth(t, f.url, f.queue+".dlq"))
}

// Given a quorum queue with a small delivery limit and a broker before 4.3, which counts each
// message that is given back, when a brake stops again and again, then no message reaches
// the limit.
func TestStopsSpendNoDeliveryLimit(t *testing.T) {
	t.Parallel()
	f := newFleet(t, plan{
		arguments: amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": 2},
		handle: func(msg *message.Message) error {
			select { // so that others are prefetched behind it
			case <-time.After(100 * time.Millisecond):
			case <-msg.Context().Done():
				return msg.Context().Err()
			}
			return nil
		},
	})
	in := f.add()
	operator := rig.OpenOperator(t, f.url)
	var handled atomic.Int64
	in.events.handled = func() { handled.Add(1) }
	f.send(60)
	for range 5 {
		_, err := operator.StopBrake(t.Context(), f.name, "anna", "a test", time.Hour)
		require.NoError(t, err)
		f.awaitStopped(true)
		require.NoError(t, operator.StartBrake(t.Context(), f.name, "anna"))
		f.awaitStopped(false)
		before := handled.Load()
		f.send(6) // the others may have been handled meanwhile
		rig.WaitFor(t, "messages to be handled", func() bool { return handled.Load() > before })
	}
	rig.WaitFor(t, "all messages to be handled", func() bool { return int(handled.Load()) >= f.sent })
	in.stop()
	require.Zero(t, testbroker.Depth(t, f.url, f.queue+".dlq"), "dead letters")
}

// Given a stopped brake, when the last Subscriber of a process closes and the process lives on,
// then its budget and its observers do not show the stop for ever.
func TestAStopEndsWithTheLastSubscriber(t *testing.T) {
	t.Parallel()
	f := newFleet(t, plan{})
	in := f.add()
	operator := rig.OpenOperator(t, f.url)
	_, err := operator.StopBrake(t.Context(), f.name, "anna", "a test", time.Hour)
	require.NoError(t, err)
	f.awaitStopped(true)
	in.stop()
	require.False(t, in.budget.State().Stopped)
	rig.WaitFor(t, "the observer to be told", func() bool {
		return len(in.events.of(middleware.EventBudgetOpened)) == 1
	})
	require.Zero(t, in.logs.Said("Consuming again"), "nothing consumes")
	require.NoError(t, operator.StartBrake(t.Context(), f.name, "anna"))
}

// Given a planned downtime, then no instance calls the downstream until its time limit. After that
// probes find out whether it is back.
func TestAStopByHandEndsByItself(t *testing.T) {
	t.Parallel()
	f := newFleet(t, plan{})
	f.add()
	f.add()
	operator := rig.OpenOperator(t, f.url)
	processes, err := operator.StopBrake(t.Context(), f.name, "anna", "the provider moves",
		4*time.Second)
	require.NoError(t, err)
	require.NotZero(t, processes)
	f.awaitStopped(true)
	until := f.instances[0].budget.State().Until
	f.send(10)
	rig.WaitFor(t, "a call", func() bool { return len(f.since(time.Time{})) > 0 })
	require.WithinRange(t, f.since(time.Time{})[0], until, until.Add(rig.Ceiling))
	f.awaitStopped(false)
	f.awaitHandled()
	require.Equal(t, 1, f.instances[1].logs.Said("Consuming is stopped by hand"))
	require.Equal(t, 1, f.instances[1].logs.Said("the provider moves"))

	// A restart of all instances changes nothing.
	_, err = operator.StopBrake(t.Context(), f.name, "anna", "again", time.Hour)
	require.NoError(t, err)
	f.awaitStopped(true)
	for _, in := range f.instances {
		in.stop()
	}
	f.instances = nil
	restarted := time.Now()
	f.add()
	f.awaitStopped(true)
	f.send(10)
	require.Empty(t, f.since(restarted))
	require.NoError(t, operator.StartBrake(t.Context(), f.name, "anna"))
	f.awaitHandled()
}
