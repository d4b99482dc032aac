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
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/internal/testing/frame"
	"github.com/millpond-go/millpond/internal/testing/peer"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
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

// When Close drains, then a failure is still handed over. A message whose handler does not end
// in time goes back to its queue and costs no attempt.
func TestCloseDrains(t *testing.T) {
	t.Parallel()
	t.Run("failure is handed over", func(t *testing.T) {
		rig.Virtually(t, func(t *testing.T, broker *peer.Server) {
			handling, finish := make(chan struct{}), make(chan struct{})
			r := rig.Start(t, rig.Config{
				URL: broker.URL(), Policy: backoff.List{30 * time.Second},
				Handle: func(*message.Message) error {
					close(handling)
					<-finish
					return rig.ErrFailed
				},
			})
			r.Send("late")
			<-handling
			stopDuring(t, r, func() {
				<-time.After(10 * time.Second)
				close(finish)
			})
			require.Equal(t, 1, r.Depth(".wait.30s"))
			require.Zero(t, r.Depth(""))
		})
	})
	t.Run("too slow goes back", func(t *testing.T) {
		rig.Virtually(t, func(t *testing.T, broker *peer.Server) {
			handling := make(chan struct{})
			r := rig.Start(t, rig.Config{
				URL: broker.URL(), Policy: backoff.List{30 * time.Second},
				SubscriberOptions: []topology.SubscriberOption{topology.WithDrainTimeout(time.Second / 2)},
				Handle: func(msg *message.Message) error {
					close(handling)
					<-msg.Context().Done()
					return msg.Context().Err()
				},
			})
			r.Send("slow")
			<-handling
			r.Stop()
			back := rig.Take(t, r.URL, r.Queue)
			require.Equal(t, "slow", string(back.Body))
			require.NotContains(t, back.Headers, keys.Failures)
			require.Zero(t, r.Depth(".wait.30s"))
		})
	})
}

// Given a broker that has stopped answering, then Close ends within the drain timeout and the
// goodbyes of both connections.
func TestCloseReturnsFromAFrozenBroker(t *testing.T) {
	t.Parallel()
	rig.Virtually(t, func(t *testing.T, broker *peer.Server) {
		proxy := testbroker.NewProxy(t, broker.URL())
		handling := make(chan struct{})
		r := rig.Start(t, rig.Config{
			URL: proxy.URL(), AdminURL: broker.URL(), Policy: backoff.List{time.Second},
			Handle: func(*message.Message) error {
				proxy.Freeze(true)
				close(handling)
				return rig.ErrFailed
			},
		})
		rig.Publish(t, broker.URL(), "", r.Queue, rig.Message("stuck"))
		<-handling
		begun := time.Now()
		r.Stop()
		require.LessOrEqual(t, time.Since(begun), 45*time.Second)
		proxy.Freeze(false)
		require.Equal(t, "stuck", string(rig.Take(t, broker.URL(), r.Queue).Body))
	})
}

// Given deliveries on their way when a subscription ends, while the broker answers late, then the
// connection stays, which the Subscriber's other queues use.
func TestLateGoodbyeKeepsTheConnection(t *testing.T) {
	t.Parallel()
	url, queue := testbroker.URL(t), testbroker.Queue(t) // a peer bears a nack on a closed channel
	proxy := testbroker.NewProxy(t, url)
	client, logs := rig.OpenLogged(t, proxy.URL(), topology.PerQueue{})
	sub, err := client.NewSubscriber(rig.QueueConfig(proxy.URL()), topology.ForPolicy(backoff.None{}))
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

// Given a service that is deployed thirty times, each time with one message in progress and the
// others prefetched, then no restart counts. Every third time the service finishes its message,
// otherwise it gives the message back. No message is dead-lettered or lost.
func TestAMonthOfNightlyDeploymentsCountsNothing(t *testing.T) {
	t.Parallel()
	nights := 30
	if testing.Short() {
		nights = 12
	}
	for _, declared := range []string{"default", "8", "3"} {
		t.Run("limit "+declared, func(t *testing.T) {
			t.Parallel()
			s := newNightly(t, declared)
			for night := range nights {
				s.deploy(night%3 == 0)
				s.awaitAll(night + 1)
			}
			finish := make(chan struct{})
			close(finish)
			r, _ := s.run(finish)
			rig.WaitFor(t, "all to be handled or dead", func() bool {
				return s.done.Count()+rig.Ready(t, s.look, s.queue+".dlq") >= nightlyMessages
			})
			r.Stop()
			for _, queue := range []string{s.queue, s.queue + ".wait.1s", s.queue + ".dlq"} {
				require.Zero(t, rig.Ready(t, s.look, queue), queue)
			}
		})
	}
}

const nightlyMessages = 20

// nightly is a service that is deployed every night.
type nightly struct {
	t          *testing.T
	url, queue string
	args       amqp.Table
	look       *amqp.Channel
	done       *rig.Ledger
}

func newNightly(t *testing.T, declared string) *nightly {
	t.Helper()
	s := &nightly{t: t, url: testbroker.URL(t), queue: testbroker.Queue(t), done: rig.NewLedger()}
	version, _ := testbroker.Dial(t, s.url).Properties["version"].(string)
	s.args, _ = rig.DeliveryLimit(t, declared, version)
	rig.RemovePlan(t, s.url, topology.PerQueue{}, s.queue, []time.Duration{time.Second})
	s.look = testbroker.Channel(t, s.url)
	rig.DeclareQueue(t, s.url, s.queue, s.args)
	rig.Fill(t, s.url, s.queue, nightlyMessages)
	return s
}

// run starts the service. A handler returns for a value of finish, or when its context ends. begun
// gets a value for each call.
func (s *nightly) run(finish <-chan struct{}) (r *rig.Service, begun <-chan struct{}) {
	s.t.Helper()
	begins := make(chan struct{}, nightlyMessages)
	r = rig.Start(s.t, rig.Config{
		URL: s.url, Queue: s.queue, Keep: true, Policy: backoff.List{time.Second},
		Configure: func(cfg *wamqp.Config) {
			cfg.Queue.Arguments = s.args
			rig.Prefetch(2 * nightlyMessages)(cfg)
		},
		SubscriberOptions: []topology.SubscriberOption{topology.WithDrainTimeout(100 * time.Millisecond)},
		Handle: func(msg *message.Message) error {
			begins <- struct{}{}
			select {
			case <-finish:
				s.done.Handle(string(msg.Payload))
				return nil
			case <-msg.Context().Done():
				return msg.Context().Err()
			}
		},
	})
	return r, begins
}

// deploy starts the service, lets it take all messages, and stops it.
func (s *nightly) deploy(finishes bool) {
	s.t.Helper()
	finish := make(chan struct{}, 1) // of no use to a handler that the drain has interrupted
	r, begun := s.run(finish)
	rig.WaitFor(s.t, "one in progress, the others prefetched", func() bool {
		return len(begun) > 0 && rig.Ready(s.t, s.look, s.queue) == 0
	})
	if finishes { // one message: the router takes others until it has closed the Subscriber
		stopDuring(s.t, r, func() { finish <- struct{}{} })
	} else {
		r.Stop()
	}
}

// awaitAll waits until all unhandled messages are back in their queue. Some may wait meanwhile,
// and on a busy machine the drain may end between a handler and its ack, so that its message is
// back, too.
func (s *nightly) awaitAll(restarts int) {
	s.t.Helper()
	left := nightlyMessages - s.done.Count()
	var still rig.Stillness
	rig.WaitFor(s.t, "all messages to be back", func() bool {
		if rig.Ready(s.t, s.look, s.queue+".dlq") > 0 {
			dead := rig.Take(s.t, s.url, s.queue+".dlq")
			s.t.Fatalf("after %d restarts message %s was dead-lettered as %v: %v", restarts, dead.Body,
				dead.Headers[header.DeadReason], dead.Headers[header.DeadError])
		}
		back := rig.Ready(s.t, s.look, s.queue)
		if back < left && still.Look(rig.Ready(s.t, s.look, s.queue+".wait.1s") > 0) {
			s.t.Fatalf("after %d restarts %d of %d messages are there", restarts, back, left)
		}
		return back >= left
	})
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
func TestNackedAtShutdownGoesBackOnce(t *testing.T) {
	t.Parallel()
	const messages = 40
	handling := rig.NewBusy()
	r := rig.Start(t, rig.Config{
		Policy: backoff.List{30 * time.Second}, Configure: rig.QuorumQueue,
		SubscriberOptions: rig.InFlight(messages),
		Outer: []message.HandlerMiddleware{func(message.HandlerFunc) message.HandlerFunc {
			return func(msg *message.Message) ([]*message.Message, error) {
				defer handling.Enter(string(msg.Payload))()
				<-middleware.DeliveryOf(msg.Context(), msg).Closing
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
	for range messages {
		count, _ := rig.Take(t, r.URL, r.Queue).Headers["x-delivery-count"].(int64) // absent on 4.3
		require.LessOrEqual(t, count, int64(1))
	}
}
