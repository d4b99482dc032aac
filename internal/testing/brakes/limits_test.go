package brakes_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
)

// Given 200 Subscribers in 20 processes' worth of Clients, when one of them trips the brake, then all
// stop within seconds.
func TestTwoHundredSubscribersStop(t *testing.T) {
	t.Parallel()
	const clients, each = 20, 10
	f := newFleet(t, plan{})
	budgets := make([]*middleware.Budget, clients)
	observers := make([]*events, clients)
	for i := range clients {
		cfg := middleware.BudgetConfig{
			Share: 0.5, Minimum: 4, Delay: time.Minute, Brake: true, Name: f.name,
			Probe: backoff.Constant{Interval: time.Minute},
		}
		var err error
		budgets[i], err = middleware.NewBudget(cfg)
		require.NoError(t, err)
		observers[i] = &events{}
		queue := rig.QueueConfig(f.url)
		queue.Queue.Arguments = f.arguments
		client := rig.OpenClient(t, f.url, topology.PerQueue{}, topology.WithObserver(observers[i]))
		retry, err := middleware.NewDelayedRetry(client, backoff.List{time.Second},
			middleware.WithBudget(budgets[i]))
		require.NoError(t, err)
		h := retry.Middleware(func(msg *message.Message) ([]*message.Message, error) {
			return nil, post(msg, f.address, fmt.Sprint(i))
		})
		for range each {
			sub, err := client.NewSubscriber(queue, topology.For(retry))
			require.NoError(t, err)
			messages, err := sub.Subscribe(context.Background(), f.queue)
			require.NoError(t, err)
			go func() {
				for msg := range messages {
					if _, err := h(msg); err != nil {
						msg.Nack()
					} else {
						msg.Ack()
					}
				}
			}()
		}
	}
	ch := testbroker.Channel(t, f.url)
	consumers := func() int {
		q, err := ch.QueueDeclarePassive(f.queue, true, false, false, false, nil)
		require.NoError(t, err)
		return q.Consumers
	}
	rig.WaitFor(t, "all consumers", func() bool { return consumers() == clients*each })
	f.setOut(true)
	f.send(40)
	rig.WaitFor(t, "no consumers", func() bool { return consumers() == 0 })
	gone := time.Now()

	first := time.Now()
	var late []time.Duration
	for _, o := range observers {
		for _, e := range o.of(middleware.EventBudgetClosed) {
			if e.At.Before(first) {
				first = e.At
			}
		}
	}
	for _, o := range observers {
		late = append(late, o.of(middleware.EventBudgetClosed)[0].At.Sub(first))
	}
	slices.Sort(late)
	t.Logf("the last Client heard of it after %v; no consumer was left after %v",
		late[len(late)-1], gone.Sub(first))
	require.Less(t, gone.Sub(first), rig.Ceiling)
}

// Given a user who may not declare the queues of a brake, when messages fail, then the budget works as
// without Brake and says so once.
func TestABrakeThatIsRefusedStopsNothing(t *testing.T) {
	t.Parallel()
	node, _ := testbroker.Managed(t, "")
	t.Skip("to do")
	_ = node
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

	budget, err := middleware.NewBudget(middleware.BudgetConfig{Share: 0.5, Delay: time.Second, Brake: true})
	require.NoError(t, err)
	client := rig.OpenClient(t, f.url, topology.PerQueue{})
	retry, err := middleware.NewDelayedRetry(client, backoff.List{time.Second}, middleware.WithBudget(budget))
	require.NoError(t, err)
	sub, err := client.NewSubscriber(rig.QueueConfig(f.url), topology.For(retry))
	require.NoError(t, err)
	one, two := testbroker.Queue(t), testbroker.Queue(t)
	for _, queue := range []string{one, two} {
		rig.RemovePlan(t, f.url, topology.PerQueue{}, queue, []time.Duration{time.Second})
	}
	f.removeBrake(one)
	_, err = sub.Subscribe(context.Background(), one)
	require.NoError(t, err)
	_, err = sub.Subscribe(context.Background(), two)
	rig.RequireTexts(t, err, "a Budget with Brake serves queue", two, "give its BudgetConfig a Name")
}

// Given a budget with a key, when the messages of one customer fail, then they are set aside, without
// an attempt, and those of other customers are handled.
func TestAKeyIsSetAside(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	broken := true
	handled := map[string]int{}
	f := newFleet(t, plan{
		budget: func(cfg *middleware.BudgetConfig) {
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

// Given two budgets, chosen by the error, when one downstream is out, then its brake alone stops.
func TestABudgetIsChosenByTheError(t *testing.T) {
	t.Parallel()
	f := newFleet(t, plan{})
	mail := f.name + ".mail"
	f.removeBrake(mail)
	budget, err := middleware.NewBudget(middleware.BudgetConfig{
		Share: 0.5, Minimum: 4, Delay: time.Second, Brake: true, Name: mail,
	})
	require.NoError(t, err)
	f.plan.only = []middleware.Selector{{Error: middleware.RetryableIf(func(err error) bool {
		return strings.Contains(err.Error(), "the downstream answers")
	})}}
	f.plan.retry = []middleware.Option{middleware.WithBudget(budget, middleware.Selector{
		Error: middleware.RetryableIf(func(err error) bool { return strings.Contains(err.Error(), "mail") }),
	})}
	f.add()
	f.setOut(true)
	f.send(20)
	f.awaitStopped(true)
	require.Equal(t, mail, budget.State().Name)
	require.False(t, budget.State().Stopped)
	f.setOut(false)
	f.awaitStopped(false)
	f.awaitHandled()
}
