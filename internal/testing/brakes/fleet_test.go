package brakes_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/budget"
	"github.com/millpond-go/millpond/middleware/outage"
	"github.com/millpond-go/millpond/topology"
)

func TestMain(m *testing.M) {
	testbroker.Main(m, func() error { return goleak.Find() })
}

// downstream is the service that all instances call. It is out while it is told to be.
type downstream struct {
	mu    sync.Mutex
	out   bool
	calls []time.Time
	done  map[string]bool // messages whose call succeeded
}

// call calls the downstream with a message.
func (d *downstream) call(msg *message.Message) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls = append(d.calls, time.Now())
	if d.out {
		return errors.New("the downstream answers 503")
	}
	d.done[string(msg.Payload)] = true
	return nil
}

func (d *downstream) setOut(out bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.out = out
}

// handled counts the messages that were handled.
func (d *downstream) handled() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.done)
}

// since returns the calls since a time.
func (d *downstream) since(then time.Time) []time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(d.calls), func(at time.Time) bool { return !at.After(then) })
}

// instance is a part of the test's process that stands for a process of the fleet.
type instance struct {
	t      *testing.T
	name   string
	budget *budget.Budget
	logs   *rig.Logs
	events *events
	stop   func()
}

// plan says how the instances of a test work.
type plan struct {
	url         string // of the connection; default: the shared broker
	admin       string // may delete everything; default: url
	queue       string
	name        string // of the brake
	concurrency int
	retries     int // after a second each; default: 3
	budget      func(*budget.Config)
	brake       func(*outage.Brake)
	strategy    topology.Strategy
	arguments   amqp.Table // of the queue; default: a quorum queue
	options     []topology.Option
	handle      func(*message.Message) error // default: calls the downstream
}

// events are the stops and starts that an observer was told.
type events struct {
	mu      sync.Mutex
	all     []middleware.Event
	handled func() // is told of each message; may be nil
}

func (e *events) Observe(_ context.Context, event middleware.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if event.Kind == middleware.EventHandled && e.handled != nil {
		e.handled()
	}
	if event.Brake != nil || event.Kind == middleware.EventRetried {
		e.all = append(e.all, event)
	}
}

func (e *events) of(kind middleware.EventKind) (found []middleware.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, event := range e.all {
		if event.Kind == kind {
			found = append(found, event)
		}
	}
	return found
}

// await waits for a line in the log.
func (in *instance) await(text string) {
	in.t.Helper()
	rig.WaitFor(in.t, fmt.Sprintf("%s: %q in the log", in.name, text), func() bool {
		return in.logs.Said(text) > 0
	})
}

// fleet is a downstream and the instances that call it.
type fleet struct {
	t *testing.T
	*downstream
	plan
	instances []*instance
	sent      int
}

func newFleet(t *testing.T, p plan) *fleet {
	t.Helper()
	if p.url == "" {
		p.url = testbroker.URL(t)
	}
	if p.queue == "" {
		p.queue = testbroker.Queue(t)
	}
	if p.name == "" {
		p.name = p.queue
	}
	if p.arguments == nil {
		p.arguments = amqp.Table{"x-queue-type": "quorum"}
	}
	if p.admin == "" {
		p.admin = p.url
	}
	f := &fleet{t: t, downstream: &downstream{done: map[string]bool{}}, plan: p}
	rig.RemovePlan(t, p.admin, topology.PerQueue{}, p.queue, []time.Duration{time.Second})
	f.removeBrake(p.name)
	return f
}

// removeBrake removes the parts of a brake at the end of the test.
func (f *fleet) removeBrake(name string) {
	f.t.Cleanup(func() {
		ch := testbroker.Channel(f.t, f.admin)
		_, err := ch.QueueDelete("millpond.brake."+name, false, false, false)
		require.NoError(f.t, err)
		require.NoError(f.t, ch.ExchangeDelete("millpond.brake."+name, false, false))
	})
}

// add starts an instance, and returns when it consumes.
func (f *fleet) add(change ...func(*plan)) *instance {
	f.t.Helper()
	p := f.plan
	p.strategy, p.handle = topology.PerQueue{}, f.call
	if f.plan.strategy != nil {
		p.strategy = f.plan.strategy
	}
	if f.plan.handle != nil {
		p.handle = f.plan.handle
	}
	for _, c := range change {
		c(&p)
	}
	brake := outage.Brake{
		Name: p.name, Ramp: 500 * time.Millisecond,
		Probe: backoff.Exponential{
			Initial: 100 * time.Millisecond, Factor: 2, Max: 400 * time.Millisecond,
		},
	}
	if p.brake != nil {
		p.brake(&brake)
	}
	cfg := budget.Config{Share: 0.5, Minimum: 4, Delay: time.Second, Brake: brake}
	if p.budget != nil {
		p.budget(&cfg)
	}
	budget, err := budget.New(cfg)
	require.NoError(f.t, err)
	in := &instance{
		t: f.t, name: fmt.Sprintf("instance-%d", len(f.instances)), budget: budget, logs: &rig.Logs{},
		events: &events{},
	}
	queue := rig.QueueConfig(p.url)
	queue.Queue.Arguments = p.arguments
	rig.QuickReconnect(&queue)
	client, err := topology.Open(context.Background(), queue.Connection, p.strategy,
		append([]topology.Option{
			topology.WithLogger(in.logs), topology.WithName(in.name), topology.WithObserver(in.events),
		}, p.options...)...)
	require.NoError(f.t, err)
	retry, err := middleware.NewDelayedRetry(client,
		backoff.Constant{Interval: time.Second, Retries: cmp.Or(p.retries, 3)},
		middleware.WithBudget(budget))
	require.NoError(f.t, err)
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: 8 * time.Second}, in.logs)
	require.NoError(f.t, err)
	router.AddMiddleware(retry.Middleware)
	sub, err := client.NewSubscriber(queue, retry,
		topology.WithConcurrency(max(1, p.concurrency)), topology.WithDrainTimeout(5*time.Second))
	require.NoError(f.t, err)
	router.AddConsumerHandler("handler", p.queue, sub, p.handle)
	ended := rig.Run(f.t, router)
	in.stop = sync.OnceFunc(func() {
		_ = router.Close()
		_ = client.Close()
		<-ended
	})
	f.t.Cleanup(func() {
		in.stop()
		if f.t.Failed() {
			f.t.Logf("---- %s", in.name)
			in.logs.Dump(f.t)
		}
	})
	f.instances = append(f.instances, in)
	return in
}

// send publishes n messages with different bodies.
func (f *fleet) send(n int) {
	f.t.Helper()
	messages := make([]amqp.Publishing, n)
	for i := range messages {
		f.sent++
		messages[i] = rig.Message(fmt.Sprint("message ", f.sent))
	}
	rig.Post(f.t, f.url, f.queue, messages...)
}

// awaitStopped waits until all instances are stopped, or none.
func (f *fleet) awaitStopped(stopped bool) {
	f.t.Helper()
	for _, in := range f.instances {
		rig.WaitFor(f.t, fmt.Sprintf("%s: stopped %v", in.name, stopped), func() bool {
			return in.budget.State().Stopped == stopped
		})
	}
}

// awaitHandled waits until every message was handled.
func (f *fleet) awaitHandled() {
	f.t.Helper()
	rig.WaitFor(f.t, fmt.Sprintf("%d messages to be handled", f.sent), func() bool {
		return f.handled() == f.sent
	})
}
