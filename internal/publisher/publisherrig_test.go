package publisher_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/millpond-go/millpond/internal/link"
	"github.com/millpond-go/millpond/internal/publisher"
	"github.com/millpond-go/millpond/internal/testing/frame"
	"github.com/millpond-go/millpond/internal/testing/memnet"
	"github.com/millpond-go/millpond/internal/testing/peer"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

const (
	// patience bounds every wait on a condition.
	patience = 60 * time.Second
	// slack is the time that a busy machine may add to a bound.
	slack = 10 * time.Second
	// goodbye is how long a Close may wait for the broker.
	goodbye = 2 * time.Second
	// long is a timeout that no test waits for.
	long = 2 * time.Minute
	// soon is a timeout that a test waits for several times. A broker on a busy machine must open
	// a channel in that time.
	soon  = 2 * time.Second
	nonce = "test-nonce"
)

func TestMain(m *testing.M) {
	testbroker.Main(m, func() error { return goleak.Find() })
}

// rig is a publisher with its own connection, and the queue that it publishes to.
type rig struct {
	*publisher.Publisher
	t          testing.TB
	url, queue string            // of the broker, without the proxy
	proxy      *testbroker.Proxy // nil if the publisher talks to the broker itself
	client     *client
}

// onBroker publishes to a new queue of the shared broker.
func onBroker(t testing.TB, args amqp.Table) rig {
	t.Helper()
	url := testbroker.URL(t)
	return connect(t, url, declare(t, url, testbroker.Queue(t), args), long)
}

// behindProxy publishes to a queue of a peer.
func behindProxy(t testing.TB, timeout time.Duration) rig {
	t.Helper()
	r, s := onPeer(t, timeout, nil)
	declare(t, s.URL(), r.queue, nil)
	r.url = s.URL()
	return r
}

// onNode publishes to the queue "q" of a private broker, which it returns.
func onNode(t testing.TB, timeout time.Duration) (rig, *testbroker.Node) {
	t.Helper()
	node := testbroker.Private(t)
	return connect(t, node.URL(), declare(t, node.URL(), "q", nil), timeout), node
}

// onPeer publishes to a scripted broker, which it returns, through a proxy that knows frames.
func onPeer(t testing.TB, timeout time.Duration, script func(*peer.Publish)) (rig, *peer.Server) {
	t.Helper()
	s := peer.Start(t, script)
	proxy := testbroker.NewProxy(t, s.URL())
	proxy.Tap(func(testbroker.Seen) testbroker.Fault { return testbroker.Fault{} })
	r := connect(t, proxy.URL(), "any", timeout)
	r.proxy = proxy
	return r, s
}

// connect returns a rig whose publisher is closed at the end of the test.
func connect(t testing.TB, url, queue string, timeout time.Duration) rig {
	t.Helper()
	c := &client{}
	p := open(t, url, timeout, &amqp.Config{Dial: c.dial})
	return rig{Publisher: p, t: t, url: url, queue: queue, client: c}
}

func open(
	t testing.TB, url string, timeout time.Duration, config *amqp.Config,
) *publisher.Publisher {
	t.Helper()
	const ms = time.Millisecond
	l, err := link.Open(t.Context(), link.Config{
		URL: url, Name: "millpond test", AMQP: config,
		ConnectTimeout: 5 * time.Second, WriteTimeout: long,
		Reconnect: link.Backoff{Initial: 20 * ms, Max: 200 * ms, Multiplier: 2},
		Logger:    watermill.NopLogger{},
	})
	require.NoError(t, err)
	p := publisher.New(l, publisher.Config{Timeout: timeout, NonceHeader: nonce})
	t.Cleanup(p.Close)
	return p
}

// declare declares a queue and returns its name.
func declare(t testing.TB, url, queue string, args amqp.Table) string {
	t.Helper()
	_, err := testbroker.Channel(t, url).QueueDeclare(queue, true, false, false, false, args)
	require.NoError(t, err)
	return queue
}

// say publishes a body to the rig's queue.
func (r rig) say(body string) error { return r.sayTo(r.t.Context(), r.queue, body) }

func (r rig) sayWithin(limit time.Duration, body string) error {
	ctx, cancel := context.WithTimeout(r.t.Context(), limit)
	defer cancel()
	return r.sayTo(ctx, r.queue, body)
}

func (r rig) sayTo(ctx context.Context, queue, body string) error {
	return r.Publish(ctx, "", queue, amqp.Publishing{
		Headers: amqp.Table{}, DeliveryMode: amqp.Persistent, Body: []byte(body),
	})
}

// begin publishes n times in the background, one body for all.
func (r rig) begin(n int, body string) (results chan error) {
	results = make(chan error, n)
	for range n {
		go func() { results <- r.say(body) }()
	}
	return results
}

// recovers waits until publishing works, without any help.
func (r rig) recovers() {
	r.t.Helper()
	await(r.t, "publishing to work again", func() bool { return r.say("again") == nil })
}

// cutOff ends the connection and refuses new ones.
func (r rig) cutOff() {
	r.t.Helper()
	r.proxy.Refuse(true)
	r.proxy.Cut()
	r.unhealthy()
}

// unhealthy waits until Healthy returns an error.
func (r rig) unhealthy() {
	r.t.Helper()
	await(r.t, "unhealthy", func() bool { return r.Healthy() != nil })
}

// get takes a message out of the rig's queue.
func (r rig) get() amqp.Delivery {
	r.t.Helper()
	msg, ok, err := testbroker.Channel(r.t, r.url).Get(r.queue, true)
	require.NoError(r.t, err)
	require.True(r.t, ok, "no message in the queue")
	return msg
}

// bodies takes all messages out of the rig's queue and counts them by body.
func (r rig) bodies() map[string]int {
	r.t.Helper()
	ch := testbroker.Channel(r.t, r.url)
	found := make(map[string]int)
	for {
		msg, ok, err := ch.Get(r.queue, true)
		require.NoError(r.t, err)
		if !ok {
			return found
		}
		found[string(msg.Body)]++
	}
}

// hasOnly checks that the rig's queue holds these bodies, once each.
func (r rig) hasOnly(bodies ...string) {
	r.t.Helper()
	want := make(map[string]int)
	for _, body := range bodies {
		want[body] = 1
	}
	assert.Equal(r.t, want, r.bodies())
}

// bind declares a fanout exchange that leads to the rig's queue, until the end of the test.
func (r rig) bind(exchange string) {
	r.t.Helper()
	ch := testbroker.Channel(r.t, r.url)
	require.NoError(r.t, ch.ExchangeDeclare(exchange, "fanout", false, false, false, false, nil))
	r.t.Cleanup(func() {
		_ = testbroker.Channel(r.t, r.url).ExchangeDelete(exchange, false, false)
	})
	require.NoError(r.t, ch.QueueBind(r.queue, "", exchange, false, nil))
}

// await waits until cond is true.
func await(t testing.TB, what string, cond func() bool) {
	t.Helper()
	testbroker.WaitFor(t, what, patience, cond)
}

// within fails the test if f takes longer than limit and slack.
func within(t testing.TB, limit time.Duration, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(limit + slack):
		t.Fatalf("%s takes longer than %v", what, limit+slack)
	}
}

// isAny fails the test if err is none of these.
func isAny(t testing.TB, err error, targets ...error) bool {
	t.Helper()
	for _, target := range targets {
		if errors.Is(err, target) {
			return true
		}
	}
	return assert.Fail(t, "another error", "%v", err)
}

// isReturned fails the test if err is no ReturnedError.
func isReturned(t testing.TB, err error) {
	t.Helper()
	var returned *publisher.ReturnedError
	assert.ErrorAs(t, err, &returned)
}

// call is the result of one publish.
type call struct {
	body string
	err  error
	took time.Duration
}

// errEnough ends a caller before it has made all its calls.
var errEnough = errors.New("enough")

// callers publishes from n goroutines, each with a number of calls, and returns all results.
func callers(n, each int, publish func(caller int, body string) error) []call {
	var (
		mu    sync.Mutex
		calls []call
		wait  sync.WaitGroup
	)
	for caller := range n {
		wait.Go(func() {
			for i := range each {
				body := fmt.Sprintf("%d/%d", caller, i)
				begun := time.Now()
				err := publish(caller, body)
				if errors.Is(err, errEnough) {
					return
				}
				done := call{body, err, time.Since(begun)}
				mu.Lock()
				calls = append(calls, done)
				mu.Unlock()
			}
		})
	}
	wait.Wait()
	return calls
}

// succeeded returns how many calls returned nil. It fails the test if the message of such a call
// is not in the queue once.
func (r rig) succeeded(calls []call) (succeeded int) {
	r.t.Helper()
	found := r.bodies()
	for _, c := range calls {
		if c.err != nil {
			continue
		}
		succeeded++
		assert.Equal(r.t, 1, found[c.body], "copies of %s, which returned nil", c.body)
	}
	return succeeded
}

// place is the connection and the channel of a basic.publish.
type place struct{ conn, channel int }

// client records where a publisher publishes, and can stop its writes.
type client struct {
	mu     sync.Mutex
	conns  []*conn
	places []place
}

func (c *client) dial(network, address string) (net.Conn, error) {
	inner, err := memnet.Dial(network, address)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	made := &conn{Conn: inner, client: c, number: len(c.conns) + 1, closed: make(chan struct{})}
	c.conns = append(c.conns, made)
	return made, nil
}

// published returns the places of all publishes so far.
func (c *client) published() []place {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]place(nil), c.places...)
}

// awaitPublished waits for the nth publish.
func (r rig) awaitPublished(n int) {
	r.t.Helper()
	await(r.t, fmt.Sprintf("publish %d", n), func() bool {
		return len(r.client.published()) >= n
	})
}

// connections returns how many connections were made so far.
func (c *client) connections() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.conns)
}

// stall blocks the writes of the present connections, as full buffers would. Reads go on.
func (c *client) stall() (resume func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	resumed := make(chan struct{})
	for _, conn := range c.conns {
		conn.stalled = resumed
	}
	return func() { close(resumed) }
}

// conn is a connection of a client.
type conn struct {
	net.Conn
	client  *client
	number  int
	rest    []byte        // the beginning of a frame
	stalled chan struct{} // nil if writes are not blocked
	closed  chan struct{}
	closing sync.Once
}

func (c *conn) Write(p []byte) (int, error) {
	c.client.mu.Lock()
	c.rest = append(c.rest, p...)
	for {
		whole, rest, isFrame := frame.Next(c.rest)
		if whole == nil {
			break
		}
		c.rest = rest
		if f := frame.Frame(whole); isFrame && f.Method() == frame.BasicPublish {
			c.client.places = append(c.client.places, place{c.number, int(f.Channel())})
		}
	}
	stalled := c.stalled
	c.client.mu.Unlock()
	if stalled != nil {
		select {
		case <-stalled:
		case <-c.closed:
		}
	}
	return c.Conn.Write(p)
}

func (c *conn) Close() error {
	c.closing.Do(func() { close(c.closed) })
	return c.Conn.Close()
}
