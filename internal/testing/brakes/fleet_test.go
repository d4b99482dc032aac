package brakes_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
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
	if os.Getenv(processQueue) != "" {
		serveProcess()
		return
	}
	testbroker.Main(m, func() error { return goleak.Find() })
}

// call is one call of the downstream.
type call struct {
	at       time.Time
	instance string
	body     string
	ok       bool
	prober   string // the watched instance that probed at that time; "" for none
}

// downstream is the service that all instances call. It is out while it is told to be.
type downstream struct {
	address string

	mu    sync.Mutex
	out   bool
	calls []call
	done  map[string]int // calls that succeeded, by body
	watch []*instance
}

func newDownstream(t *testing.T) *downstream {
	d := &downstream{done: map[string]int{}}
	server := httptest.NewServer(d)
	t.Cleanup(server.Close)
	d.address = server.URL
	return d
}

func (d *downstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	d.mu.Lock()
	c := call{time.Now(), r.Header.Get("Instance"), string(body), !d.out, d.probing()}
	d.calls = append(d.calls, c)
	if c.ok {
		d.done[c.body]++
	}
	d.mu.Unlock()
	if !c.ok {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
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
func (d *downstream) since(then time.Time) (calls []call) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range d.calls {
		if c.at.After(then) {
			calls = append(calls, c)
		}
	}
	return calls
}

// probing returns the watched instance that is the prober and says so; "" for none.
func (d *downstream) probing() string {
	for _, in := range d.watch {
		if in.sees(in.name) {
			return in.name
		}
	}
	return ""
}

// watching takes the instances to watch, and returns the one of them that probes.
func (d *downstream) watching(in ...*instance) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.watch = in
	return d.probing()
}

// instance is one process of the fleet, or a part of the test's process.
type instance struct {
	t      *testing.T
	name   string
	budget *budget.Budget
	logs   *rig.Logs
	events *events
	stop   func()
}

// sees reports whether an instance knows the one with a name as the prober.
func (in *instance) sees(name string) bool {
	return strings.HasPrefix(in.budget.State().Prober, name+"@")
}

// plan says how the instances of a test work.
type plan struct {
	url         string // of the connection; default: the shared broker
	admin       string // may delete everything; default: url
	queue       string
	name        string // of the brake
	concurrency int
	budget      func(*budget.Config)
	brake       func(*outage.Brake)
	strategy    topology.Strategy
	arguments   amqp.Table // of the queue; default: a quorum queue
	heartbeat   time.Duration
	options     []topology.Option
	retry       []middleware.Option
	only        []middleware.Selector        // of the budget
	handle      func(*message.Message) error // default: calls the downstream
}

// start starts an instance that calls the downstream with each message.
func (p plan) start(name, downstream string) (*instance, error) {
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
	if err != nil {
		return nil, err
	}
	in := &instance{name: name, budget: budget, logs: &rig.Logs{}, events: &events{}}
	queue := rig.QueueConfig(p.url)
	queue.Queue.Arguments = p.arguments
	rig.QuickReconnect(&queue)
	if p.heartbeat > 0 {
		queue.Connection.AmqpConfig = &amqp.Config{Heartbeat: p.heartbeat}
	}
	if p.strategy == nil {
		p.strategy = topology.PerQueue{}
	}
	options := append([]topology.Option{
		topology.WithLogger(in.logs), topology.WithName(name), topology.WithObserver(in.events),
	}, p.options...)
	client, err := topology.Open(context.Background(), queue.Connection, p.strategy, options...)
	if err != nil {
		return nil, err
	}
	delays := backoff.List{time.Second, time.Second, time.Second}
	retry, err := middleware.NewDelayedRetry(client, delays,
		append([]middleware.Option{middleware.WithBudget(budget, p.only...)}, p.retry...)...)
	if err != nil {
		return nil, err
	}
	sub, err := client.NewSubscriber(queue, topology.For(retry),
		topology.WithConcurrency(max(1, p.concurrency)), topology.WithDrainTimeout(5*time.Second))
	if err != nil {
		return nil, err
	}
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: 8 * time.Second}, in.logs)
	if err != nil {
		return nil, err
	}
	router.AddMiddleware(retry.Middleware)
	router.AddConsumerHandler("handler", p.queue, sub, func(msg *message.Message) error {
		if p.handle != nil {
			return p.handle(msg)
		}
		return post(msg, downstream, name)
	})
	ended := make(chan error, 1)
	go func() { ended <- router.Run(context.Background()) }()
	<-router.Running()
	in.stop = sync.OnceFunc(func() {
		_ = router.Close()
		_ = client.Close()
		<-ended
	})
	return in, nil
}

var transport = &http.Transport{DisableKeepAlives: true}

// post calls the downstream with a message.
func post(msg *message.Message, url, name string) error {
	ctx, cancel := context.WithTimeout(msg.Context(), 20*time.Second)
	defer cancel()
	body := strings.NewReader(string(msg.Payload))
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, body)
	if err != nil {
		return err
	}
	r.Header.Set("Instance", name)
	answer, err := (&http.Client{Transport: transport}).Do(r)
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("the downstream answers %s", answer.Status)
	}
	return nil
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

// counter counts from many goroutines.
type counter struct{ n atomic.Int64 }

func (c *counter) add()       { c.n.Add(1) }
func (c *counter) count() int { return int(c.n.Load()) }

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
	f := &fleet{t: t, downstream: newDownstream(t), plan: p}
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

// add starts an instance in the test's process.
func (f *fleet) add(change ...func(*plan)) *instance {
	f.t.Helper()
	p := f.plan
	for _, c := range change {
		c(&p)
	}
	in, err := p.start(fmt.Sprintf("instance-%d", len(f.instances)), f.address)
	require.NoError(f.t, err)
	in.t = f.t
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
	ch := testbroker.Channel(f.t, f.url)
	require.NoError(f.t, ch.Confirm(false))
	for range n {
		f.sent++
		confirm, err := ch.PublishWithDeferredConfirm("", f.queue, true, false,
			rig.Message(fmt.Sprint("message ", f.sent)))
		require.NoError(f.t, err)
		require.True(f.t, confirm.Wait())
	}
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

// quickHeartbeat lets the broker notice within seconds that a process is frozen or cut off.
const quickHeartbeat = 3 * time.Second

const (
	processQueue  = "MILLPOND_TEST_BRAKE_QUEUE"
	processURL    = "MILLPOND_TEST_BRAKE_URL"
	processTarget = "MILLPOND_TEST_BRAKE_DOWNSTREAM"
	processName   = "MILLPOND_TEST_BRAKE_INSTANCE"
	processType   = "MILLPOND_TEST_BRAKE_QUEUE_TYPE"
)

// serveProcess is an instance that is this whole process, until the process ends.
func serveProcess() {
	p := plan{
		url: os.Getenv(processURL), queue: os.Getenv(processQueue), name: os.Getenv(processQueue),
		arguments: amqp.Table{"x-queue-type": os.Getenv(processType)}, heartbeat: quickHeartbeat,
	}
	in, err := p.start(os.Getenv(processName), os.Getenv(processTarget))
	if err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin) // until the parent ends
	in.stop()
}

// process is an instance in another process.
type process struct {
	name string
	cmd  *exec.Cmd
}

func (p *process) signal(s syscall.Signal) error { return p.cmd.Process.Signal(s) }

// addProcess starts an instance in another process, and waits until it consumes.
func (f *fleet) addProcess(name, url string) *process {
	f.t.Helper()
	p := &process{name: name, cmd: exec.Command(os.Args[0])}
	p.cmd.Env = append(os.Environ(), processQueue+"="+f.queue, processURL+"="+url,
		processTarget+"="+f.address, processName+"="+name,
		fmt.Sprint(processType, "=", f.arguments["x-queue-type"]))
	stdin, err := p.cmd.StdinPipe()
	require.NoError(f.t, err)
	stdout, err := p.cmd.StdoutPipe()
	require.NoError(f.t, err)
	p.cmd.Stderr = os.Stderr
	require.NoError(f.t, p.cmd.Start())
	f.t.Cleanup(func() {
		_ = p.cmd.Process.Signal(syscall.SIGCONT)
		_ = stdin.Close()
		late := time.AfterFunc(30*time.Second, func() { _ = p.cmd.Process.Kill() })
		defer late.Stop()
		_ = p.cmd.Wait()
	})
	line := make([]byte, 64)
	n, err := stdout.Read(line)
	require.NoError(f.t, err)
	require.Equal(f.t, "ready\n", string(line[:n]))
	go func() { _, _ = io.Copy(io.Discard, stdout) }()
	return p
}
