package e2e_test

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/attached"
	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/internal/testing/frame"
	"github.com/millpond-go/millpond/internal/testing/peer"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
)

// stopDuring stops a service, and calls f when its router has begun to close.
func stopDuring(t *testing.T, r *rig.Service, f func()) {
	t.Helper()
	stopped := make(chan struct{})
	go func() { defer close(stopped); r.Stop() }()
	r.AwaitLine("Closing router")
	f()
	<-stopped
}

// Given deliveries on their way when a subscription ends, while the broker answers late, then the
// connection stays, which the Subscriber's other queues use.
func TestLateGoodbyeKeepsTheConnection(t *testing.T) {
	t.Parallel()
	url, queue := testbroker.URL(t), testbroker.Queue(t) // a peer bears a nack on a closed channel
	proxy := testbroker.NewProxy(t, url)
	client, logs := rig.OpenLogged(t, proxy.URL(), topology.PerQueue{})
	sub, err := client.NewSubscriberWithoutRetry(rig.QueueConfig(proxy.URL()),
		topology.ForPolicy(backoff.None{}))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	messages, err := sub.Subscribe(ctx, queue)
	require.NoError(t, err)
	rig.WaitFor(t, "the consumer", func() bool { return logs.Said("Consuming") == 1 })
	proxy.Freeze(true)
	rig.Fill(t, url, queue, 100)
	cancel()
	for range messages {
		t.Error("a message came")
	}
	proxy.Freeze(false)
	again, err := sub.Subscribe(t.Context(), queue)
	require.NoError(t, err)
	msg := <-again
	require.NotNil(t, msg)
	msg.Ack()
	require.NoError(t, client.Close())
	require.Zero(t, logs.Said("Connection to RabbitMQ lost"))
}

// Given a service that is deployed more often than its queue's delivery limit allows, each time
// with one message in progress and the others prefetched, then no restart counts. Every third time
// the service finishes its message, otherwise it gives the message back. No message is lost, and
// none is dead-lettered.
func TestAMonthOfNightlyDeploymentsCountsNothing(t *testing.T) {
	t.Parallel()
	for _, declared := range []string{"default", "3"} {
		t.Run("limit "+declared, func(t *testing.T) {
			t.Parallel()
			const messages = 20
			url, queue, done := testbroker.URL(t), testbroker.Queue(t), rig.NewCalls()
			version, _ := testbroker.Dial(t, url).Properties["version"].(string)
			arguments, limit := rig.DeliveryLimit(t, declared, version)
			rig.RemovePlan(t, url, topology.PerQueue{}, queue, []time.Duration{time.Second})
			rig.DeclareQueue(t, url, queue, arguments)
			rig.Fill(t, url, queue, messages)
			ready := func(suffix string) int { return testbroker.Depth(t, url, queue+suffix) }
			// A handler returns for a value of finish, or when its context ends. begun counts the calls.
			run := func(finish <-chan struct{}) (r *rig.Service, begun *rig.Timeline) {
				begun = &rig.Timeline{}
				return rig.Start(t, rig.Config{
					URL: url, Queue: queue, Keep: true, Policy: backoff.List{time.Second},
					Configure: func(cfg *wamqp.Config) {
						cfg.Queue.Arguments = arguments
						rig.Prefetch(2 * messages)(cfg)
					},
					SubscriberOptions: []topology.SubscriberOption{
						topology.WithDrainTimeout(100 * time.Millisecond),
					},
					Handle: func(msg *message.Message) error {
						begun.Add()
						select {
						case <-finish:
							done.Handle(string(msg.Payload))
							return nil
						case <-msg.Context().Done():
							return msg.Context().Err()
						}
					},
				}), begun
			}
			nights := 10
			if limit < 100 {
				nights = int(limit) + 5
			}
			for night := range nights {
				finish := make(chan struct{}, 1) // of no use to a handler that the drain has interrupted
				r, begun := run(finish)
				rig.WaitFor(t, "one in progress, the others prefetched", func() bool {
					return begun.Count() > 0 && ready("") == 0
				})
				if night%3 == 0 { // one message: the router takes others until it has closed the Subscriber
					stopDuring(t, r, func() { finish <- struct{}{} })
				} else {
					r.Stop()
				}
				// Some may wait meanwhile, and on a busy machine the drain may end between a handler and its
				// ack, so that its message is back, too.
				rig.WaitFor(t, "all messages to be back", func() bool {
					require.LessOrEqual(t, ready(".dlq"), 0, "dead letters after %d restarts", night+1)
					return ready("") >= messages-done.Count()
				})
			}
			finish := make(chan struct{})
			close(finish)
			r, _ := run(finish)
			rig.WaitFor(t, "all to be handled", func() bool { return done.Count() == messages })
			r.RequireNothingLeft(0)
			require.Zero(t, ready(".wait.1s"))
		})
	}
}

// sigterm is a case of SIGTERM, with which Watermill's SignalsHandler closes the router.
type sigterm struct {
	body                          string
	confirm, drain, closes, ahead bool // short timeouts; a copy is on its way behind the next handler
	cancels                       bool // SIGTERM cancels Run's context instead
	// at finds the frame before which the publishing connection is frozen.
	at func(testbroker.Seen) bool
	// unreachable: there is no connection to publish on when the handler fails.
	unreachable bool
	// before waits for the moment of the signal, after for the service's next step.
	before, after   func(w *worker)
	queued, waiting int // messages in the queue and in the wait queue afterwards
	unsure          int // copies that the broker may have got beside the waiting ones
	// both: the message behind it is handled, too. Default: no handler receives it.
	both   bool
	behind string // the message behind it, if both
}

// worker is a service whose handlers tell what they do.
type worker struct {
	*rig.Service
	sub, pub *testbroker.Proxy
	closing  chan struct{} // closed when the router begins to close
	mu       sync.Mutex
	told     []string
}

func (w *worker) tell(line, body string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.told = append(w.told, line+" "+body)
}

func (w *worker) await(line string) {
	w.T.Helper()
	rig.WaitFor(w.T, line, func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return slices.Contains(w.told, line)
	})
}

// handle handles a message as its body asks.
func (w *worker) handle(msg *message.Message) error {
	body := string(msg.Payload)
	w.tell("handling", body)
	begun := w.closing
	switch {
	case strings.HasPrefix(body, "fail"):
		return rig.ErrFailed
	case body == "stuck":
		begun = nil
	}
	select {
	case <-begun:
		<-time.After(500 * time.Millisecond)
		w.tell("handled", body)
		if body == "slow failure" {
			return rig.ErrFailed
		}
	case <-msg.Context().Done():
		w.tell("interrupted", body)
	}
	return msg.Context().Err()
}

func isHeader(seen testbroker.Seen) bool  { return seen.Up && seen.Kind() == frame.KindHeader }
func isConfirm(seen testbroker.Seen) bool { return !seen.Up && seen.Method() == frame.BasicAck }

// says waits for a handler's word.
func says(line string) func(*worker) { return func(w *worker) { w.await(line) } }

func holds(w *worker)         { w.AwaitLine("holding it") }
func thawPublisher(w *worker) { w.pub.Freeze(false) }

// cutOff makes the broker unreachable.
func cutOff(p *testbroker.Proxy) {
	p.Refuse(true)
	p.Cut()
}

var sigterms = map[string]sigterm{
	"handling, which ends in time": {body: "slow", after: says("handled slow")},
	"handling, which fails in time": {
		body: "slow failure", after: says("handled slow failure"), waiting: 1,
	},
	"handling, longer than the drain": {
		body: "stuck", drain: true, after: says("interrupted stuck"), queued: 1,
	},
	"handling, longer than the router waits": {
		body: "slow", closes: true, after: says("handled slow"),
	},
	"handling, longer than router and drain": {
		body: "stuck", closes: true, drain: true, after: says("interrupted stuck"), queued: 1,
	},
	"handling, while nothing answers": {
		body:   "slow",
		before: func(w *worker) { w.sub.Blackhole(true); w.pub.Blackhole(true) },
		after:  says("handled slow"),
		queued: 1, // its ack did not arrive
	},
	"republishing": {
		body: "fail", at: isHeader, after: thawPublisher, waiting: 1,
	},
	"republishing, while nothing is read": {
		body: "fail", at: isHeader, before: func(w *worker) { w.sub.Freeze(true) }, queued: 1, unsure: 1,
	},
	"waiting for the confirm, which comes": {
		body: "fail", at: isConfirm, after: thawPublisher, waiting: 1,
	},
	"waiting for the confirm, which does not come": {
		body: "fail", at: isConfirm, confirm: true, queued: 1, waiting: 1,
	},
	"waiting for two confirms, which come": {
		body: "fail", at: isConfirm, after: thawPublisher, waiting: 2, ahead: true, both: true,
		before: says("handling fail behind it"),
	},
	"waiting for two confirms, which do not come": {
		body: "fail", at: isConfirm, confirm: true, ahead: true, both: true,
		queued: 2, waiting: 1, unsure: 1, before: says("handling fail behind it"),
	},
	"waiting for a confirm, while the next handler runs": {
		body: "fail", behind: "slow", at: isConfirm, ahead: true, both: true,
		before:  says("handling slow"),
		after:   func(w *worker) { w.await("handled slow"); w.pub.Freeze(false) },
		waiting: 1,
	},
	"holding, as no confirm comes": {
		body: "fail", at: isConfirm, confirm: true, before: holds, queued: 1, waiting: 1,
	},
	"holding, as there is no connection to publish on": {
		body: "fail", confirm: true, unreachable: true, before: holds, queued: 1,
	},
	"holding, and then the broker is away": {
		body: "fail", confirm: true, unreachable: true,
		before: func(w *worker) { holds(w); cutOff(w.sub) }, queued: 1,
	},
	"Run's context is cancelled while handling": {
		body: "slow", cancels: true, after: says("handled slow"),
	},
	"Run's context is cancelled while waiting for the confirm": {
		body: "fail", cancels: true, at: isConfirm, after: thawPublisher, waiting: 1,
	},
}

// Given a service at any step of its work, when it gets SIGTERM, then no message is lost, and no
// attempt is spent. It ends within a drain, a confirm timeout and the goodbyes. It leaves no
// goroutine, which its bubble of virtual time would report, and no connection.
func TestSIGTERMAtEveryStep(t *testing.T) {
	t.Parallel()
	for name, c := range sigterms {
		t.Run(name, func(t *testing.T) { rig.Virtually(t, c.run) })
	}
}

func (c sigterm) run(t *testing.T, broker *peer.Server) {
	const queue = "orders"
	url := broker.URL()
	w := &worker{
		sub: testbroker.NewProxy(t, url), pub: testbroker.NewProxy(t, url),
		closing: make(chan struct{}),
	}
	frozen := make(chan struct{})
	if c.at != nil {
		var once sync.Once
		w.pub.Tap(func(seen testbroker.Seen) (f testbroker.Fault) {
			if c.at(seen) {
				once.Do(func() { f.Kind = testbroker.Frozen; close(frozen) })
			}
			return f
		})
	} else {
		close(frozen)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	config := rig.Config{
		URL: w.sub.URL(), PublisherURL: w.pub.URL(), Queue: queue, Keep: true, Context: ctx,
		Policy:    backoff.List{time.Hour},
		Configure: func(cfg *wamqp.Config) { rig.QuorumQueue(cfg); rig.QuickReconnect(cfg) },
		Handle:    w.handle,
	}
	if c.confirm {
		config.ClientOptions = []topology.Option{topology.WithConfirmTimeout(time.Second)}
	}
	if c.drain {
		config.SubscriberOptions = append(config.SubscriberOptions,
			topology.WithDrainTimeout(time.Second/2))
	}
	if !c.ahead {
		config.SubscriberOptions = append(config.SubscriberOptions, topology.WithPrefetch(1))
	}
	if c.closes {
		config.RouterConfig.CloseTimeout = 200 * time.Millisecond
	}
	w.Service = rig.Start(t, config)
	if c.unreachable {
		cutOff(w.pub)
	}
	rig.Publish(t, url, "", queue, rig.Message(c.body))
	if c.both { // both are there before the confirm of the first could be late
		rig.Publish(t, url, "", queue, rig.Message(cmp.Or(c.behind, "fail behind it")))
	}
	w.await("handling " + c.body)
	if !c.both {
		rig.Publish(t, url, "", queue, rig.Message("behind it"))
	}
	<-frozen
	if c.before != nil {
		c.before(w)
	}
	begun := time.Now()
	ended := make(chan struct{})
	if c.cancels {
		cancel()
		synctest.Wait() // else the confirm may be faster, and a handler gets the next message
	}
	go func() {
		defer close(ended)
		if c.cancels {
			rig.WaitFor(t, "the end of Run", func() bool { return w.Logs.Said("Router closed") > 0 })
		}
		w.Stop()
	}()
	if !c.cancels { // else the router closes once its handlers have ended
		w.AwaitLine("Closing router")
	}
	close(w.closing)
	if c.after != nil {
		c.after(w)
	}
	<-ended
	require.LessOrEqual(t, time.Since(begun), 40*time.Second)
	for _, p := range []*testbroker.Proxy{w.sub, w.pub} {
		p.Freeze(false)
		p.Blackhole(false)
		rig.WaitFor(t, "the end of the service's connections", func() bool { return p.Live() == 0 })
	}

	found := map[string]int{}
	left := c.queued
	if !c.both { // and the message behind it, which no handler received
		left++
	}
	for range left {
		msg := rig.Take(t, url, queue)
		found[string(msg.Body)]++
		require.NotContains(t, msg.Headers, keys.Failures, "an attempt was burned")
	}
	require.Equal(t, left-c.queued, found["behind it"], "%v", found)
	require.Equal(t, c.queued, found[c.body]+found["fail behind it"], "%v", found)
	require.Zero(t, testbroker.Depth(t, url, queue))
	waiting := testbroker.Depth(t, url, queue+".wait.1h")
	require.GreaterOrEqual(t, waiting, c.waiting, "waiting")
	require.LessOrEqual(t, waiting, c.waiting+c.unsure, "waiting")
	for range waiting {
		require.Equal(t, "1", rig.Take(t, url, queue+".wait.1h").Headers[keys.Failures])
	}
	require.Zero(t, testbroker.Depth(t, url, queue+".dlq"))
}

// Given handlers that nack when the service closes, then each message goes back once: the broker
// must not deliver it to the same consumer again, which counts, and makes a copy on its way out.
// The Subscriber tells it, because no other part does.
func TestNackedAtShutdownGoesBackOnce(t *testing.T) {
	t.Parallel()
	const messages = 40
	handling, told := rig.NewCalls(), events{}
	r := rig.Start(t, rig.Config{
		Policy: backoff.List{30 * time.Second}, Configure: rig.QuorumQueue,
		ClientOptions:     []topology.Option{topology.WithObserver(&told)},
		SubscriberOptions: rig.InFlight(messages),
		Outer: []message.HandlerMiddleware{func(message.HandlerFunc) message.HandlerFunc {
			return func(msg *message.Message) ([]*message.Message, error) {
				defer handling.Enter(string(msg.Payload))()
				<-attached.Of(msg.Context(), msg).Closing
				return nil, rig.ErrFailed
			}
		}},
		Handle: rig.Fail,
	})
	rig.Fill(t, r.URL, r.Queue, messages)
	rig.WaitFor(t, "all handlers", func() bool { return handling.Now() == messages })
	r.Stop()
	rig.AwaitDepth(t, r.URL, r.Queue, messages)
	require.Zero(t, r.Waiting(), "copies")
	require.Len(t, told.seen(), messages)
	for _, e := range told.seen() {
		require.Equal(t, middleware.EventRequeued, e.Kind)
	}
	for range messages {
		count, _ := rig.Take(t, r.URL, r.Queue).Headers["x-delivery-count"].(int64) // absent on 4.3
		require.LessOrEqual(t, count, int64(1))
	}
}
