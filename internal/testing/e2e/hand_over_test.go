package e2e_test

import (
	"errors"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/peer"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
)

const lateMessages = 5

// oneCopyEach is a count of publishes without a duplicate.
var oneCopyEach = map[string]int{"0": 1, "1 dead": 1, "2": 1, "3 dead": 1, "4": 1}

// lateService is a service with five messages in progress. All fail, to be retried or
// dead-lettered, and a peer takes their copies without an answer.
type lateService struct {
	*rig.Service
	handOvers events
	proxy     *testbroker.Proxy // of the publishing connection

	mu     sync.Mutex
	held   []*peer.Publish // not confirmed
	copies map[string]int  // by body
}

func (s *lateService) hold(p *peer.Publish) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.copies[string(p.Body)]++
	s.held = append(s.held, p)
}

// confirm confirms every publish until all hand-overs have succeeded, stops the service, and
// requires that nothing was given back.
func (s *lateService) confirm() {
	s.T.Helper()
	rig.WaitFor(s.T, "all hand-overs", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, p := range s.held {
			p.Ack(p.Tag, false)
		}
		s.held = nil
		return s.handOvers.handedOver() == lateMessages
	})
	s.Stop()
	assert.Zero(s.T, s.Depth(""), "given back")
}

const holdIsOver = "Messages could not be stored for as long as a delivery may be held"

// startLate returns the service after a failed try of each hand-over.
func startLate(t *testing.T, broker *peer.Server) *lateService {
	t.Helper()
	s := &lateService{copies: map[string]int{}}
	s.proxy = testbroker.NewProxy(t, peer.Start(t, s.hold).URL())
	s.Service = rig.Start(t, rig.Config{
		URL: broker.URL(), PublisherURL: s.proxy.URL(), Policy: backoff.List{time.Minute},
		Configure:         func(cfg *wamqp.Config) { rig.QuorumQueue(cfg); rig.QuickReconnect(cfg) },
		SubscriberOptions: rig.InFlight(lateMessages),
		RetryOptions:      []middleware.Option{middleware.WithObserver(&s.handOvers)},
		Handle: func(msg *message.Message) error {
			if strings.HasSuffix(string(msg.Payload), "dead") {
				return middleware.Permanent(rig.ErrFailed)
			}
			return rig.ErrFailed
		},
	})
	for body := range oneCopyEach {
		msg := rig.Message(body)
		msg.MessageId = body
		s.Publish(msg)
	}
	rig.WaitFor(t, "the tries of each hand-over", func() bool {
		return s.handOvers.failing(1) == lateMessages
	})
	return s
}

// Given confirms that come late, then each delivery is acked. Within three confirm timeouts of 10 s
// there is one copy of each message. Later each of the two queues has got a scout, in pauses that
// double: after 30, 90, 210, 450 and 930 s.
func TestALateConfirmMakesOneCopyOrFewScouts(t *testing.T) {
	t.Parallel()
	for late, scouts := range map[time.Duration]int{25 * time.Second: 0, 25 * time.Minute: 5} {
		t.Run(late.String(), func(t *testing.T) {
			rig.Virtually(t, func(t *testing.T, broker *peer.Server) {
				begun := time.Now()
				s := startLate(t, broker)
				<-time.After(late - time.Since(begun))
				s.confirm()
				copies := map[bool]int{}
				for body, n := range s.copies {
					copies[strings.HasSuffix(body, "dead")] += n
				}
				assert.Equal(t, map[bool]int{false: 3 + scouts, true: 2 + scouts}, copies)
				assert.Equal(t, 1, s.proxy.Connections())
			})
		})
	}
}

// Given confirms that never come, then a message is held for as long as the broker's consumer
// timeout of 30 minutes allows, with the default confirm timeout of 10 s: 28 min 30 s. Then it goes
// back to its queue, and one message is tried at a time. Once the broker confirms, all are handed
// over.
func TestAHoldEndsBeforeTheConsumerTimeout(t *testing.T) {
	t.Parallel()
	rig.Virtually(t, func(t *testing.T, broker *peer.Server) {
		s := startLate(t, broker)
		<-time.After(28 * time.Minute)
		require.Zero(t, s.Logs.Said(holdIsOver))
		s.AwaitLine(holdIsOver)
		<-time.After(5 * time.Minute)
		s.confirm()
	})
}

const (
	// shortTimeout is the consumer timeout of the impatient node.
	shortTimeout = 8 * time.Second
	// spentAtMost is how often a message may be delivered again over an outage: once when the
	// Subscriber stops consuming, and once more when it looks whether the outage is over.
	spentAtMost = 2
)

// holding is a service that fails the first attempt of each message, and that cannot store the
// failed message during an outage.
type holding struct {
	*rig.Service
	deliveries *rig.Deliveries
	done       *rig.Calls
	messages   int
	outage     func(on bool)
}

// holdingConfig says how startHolding starts a service. In an outage the connection that it
// publishes on passes nothing. With missing, its wait queue is missing instead, and the service
// may not declare it.
type holdingConfig struct {
	limit                   string // a declared delivery limit
	missing                 bool
	prefetched, concurrency int
	unknownTimeout          bool // the Subscriber does not know the consumer timeout
}

func startHolding(t *testing.T, node *testbroker.Node, c holdingConfig) *holding {
	t.Helper()
	h := &holding{deliveries: rig.NewDeliveries(), done: rig.NewCalls()}
	proxy := testbroker.NewProxy(t, node.URL())
	h.outage = proxy.Blackhole
	queue := testbroker.Queue(t)
	args, _ := rig.DeliveryLimit(t, c.limit, node.Version())
	options := []topology.Option{topology.WithConfirmTimeout(time.Second / 2)}
	if c.missing {
		options = append(options, topology.WithPreProvisioned())
		h.outage = declareAhead(t, node.URL(), queue, args)
	}
	subscriberOptions := rig.InFlight(c.concurrency)
	if !c.unknownTimeout {
		subscriberOptions = append(subscriberOptions, topology.WithConsumerTimeout(shortTimeout))
	}
	h.Service = rig.Start(t, rig.Config{
		URL: node.URL(), PublisherURL: proxy.URL(), Queue: queue, Policy: backoff.List{time.Second},
		Configure: func(cfg *wamqp.Config) {
			cfg.Queue.Arguments = args
			cfg.Consume.Qos.PrefetchCount = c.prefetched
			cfg.Connection.AmqpConfig = &amqp.Config{Dial: func(network, address string) (net.Conn, error) {
				conn, err := net.DialTimeout(network, address, 10*time.Second)
				if err != nil {
					return nil, err
				}
				return h.deliveries.Watch(conn), nil
			}}
		},
		ClientOptions: options, SubscriberOptions: subscriberOptions,
		Handle: func(msg *message.Message) error {
			err := rig.FailFirst(msg)
			if err == nil {
				h.done.Handle(string(msg.Payload))
			}
			return err
		},
	})
	return h
}

// declareAhead declares the queue of a service and its plan. outage deletes the wait queues, or
// declares them again.
func declareAhead(t *testing.T, url, queue string, args amqp.Table) (outage func(on bool)) {
	t.Helper()
	plan := rig.PlanFor(t, queue, topology.PerQueue{}, backoff.List{time.Second})
	for _, q := range append(plan.Queues, topology.Queue{Name: queue, Arguments: args}) {
		rig.DeclareQueue(t, url, q.Name, q.Arguments)
	}
	return func(on bool) {
		for _, q := range plan.Queues {
			if q.Delay > 0 && on {
				rig.DeleteQueue(t, url, q.Name)
			} else if q.Delay > 0 {
				rig.DeclareQueue(t, url, q.Name, q.Arguments)
			}
		}
	}
}

// during publishes messages in an outage, so that they fail.
func (h *holding) during(t *testing.T, outage time.Duration, messages int) {
	t.Helper()
	h.outage(true)
	h.messages = messages
	rig.Fill(t, h.URL, h.Queue, messages)
	<-time.After(outage)
	h.outage(false)
}

// requireAllHandled waits until all messages are handled, and fails if some have vanished.
func (h *holding) requireAllHandled(t *testing.T) {
	t.Helper()
	var still rig.Stillness
	look := testbroker.Channel(t, h.URL)
	rig.WaitFor(t, "all to be handled", func() bool {
		unacked, _ := h.deliveries.InHand(0)
		left := unacked + rig.Ready(t, look, h.Queue) + rig.Ready(t, look, h.Queue+".wait.1s")
		return h.done.Count() == h.messages || still.Look(left > 0)
	})
	t.Logf("%d of %d handled, delivered %d times before at most, the broker ended %q",
		h.done.Count(), h.messages, h.deliveries.HighestCount(), h.deliveries.Objected())
	require.Equal(t, h.messages, h.done.Count(), "handled")
	require.Zero(t, h.Depth(".dlq"), "dead letters")
}

// Given a short consumer timeout, when messages are held or handled for longer, then all are
// handled at last, none came near its delivery limit, and nothing stands still. The scenes share a
// node.
func TestHoldSpendsNoDeliveries(t *testing.T) {
	t.Parallel()
	node := impatientNode(t)
	scenes := map[string]func(*testing.T, *testbroker.Node){
		"isolated as often as is allowed": endOfHold,
		"held one after the other":        heldWithinTheTimeout,
		"the timeout is learned":          timeoutIsLearned,
		"a handler that takes longer":     handlerBeyondTheTimeout,
	}
	// An outage longer than the delivery limit times the consumer timeout spends no deliveries.
	for name, missing := range map[string]bool{"outage": false, "wait queue missing": true} {
		scenes[name] = func(t *testing.T, node *testbroker.Node) {
			h := startHolding(t, node,
				holdingConfig{limit: "3", missing: missing, prefetched: 10, concurrency: 5})
			h.during(t, 4*shortTimeout, 5)
			h.requireAllHandled(t)
			require.LessOrEqual(t, h.deliveries.HighestCount(), int64(spentAtMost))
		}
	}
	var all sync.WaitGroup // not parallel: the scenes wait for most of the time
	for name, scene := range scenes {
		all.Go(func() { t.Run(name, func(t *testing.T) { scene(t, node) }) })
	}
	all.Wait()
}

// Given a message that was isolated four times, when its hold ends in an outage, which counts
// before 4.3, then it is handled afterwards. It is no crash loop, because no process has ended.
func endOfHold(t *testing.T, node *testbroker.Node) {
	h := startHolding(t, node, holdingConfig{limit: "default", prefetched: 2, concurrency: 1})
	h.outage(true)
	h.messages = 1
	msg := rig.Message("isolated")
	msg.Headers = amqp.Table{}
	state := header.RetryState{Interruptions: 4, WaitingSince: time.Now()}
	state.EachHeader(h.Queue, func(key, value string) { msg.Headers[key] = value })
	h.Publish(msg)
	h.AwaitLine(holdIsOver)
	h.outage(false)
	h.requireAllHandled(t)
}

// The consumer timeout is the only limit of a hold. Given twenty messages that arrive at once and
// are held one after the other, then each is held within the timeout since its arrival, and the
// broker takes none back.
func heldWithinTheTimeout(t *testing.T, node *testbroker.Node) {
	h := startHolding(t, node, holdingConfig{limit: "none", prefetched: 21, concurrency: 1})
	h.during(t, 3*shortTimeout, 20)
	h.requireAllHandled(t)
	for _, ended := range h.deliveries.Objected() {
		require.NotContains(t, ended, "timed out", "ended by the broker")
		require.NotContains(t, ended, "consumer cancelled", "ended by a quorum queue of 4.3")
	}
}

// Given a Subscriber that does not know the short consumer timeout, then it learns the timeout
// when it strikes. That costs one delivery, once.
func timeoutIsLearned(t *testing.T, node *testbroker.Node) {
	h := startHolding(t, node, holdingConfig{
		limit: "default", prefetched: 10, concurrency: 5, unknownTimeout: true,
	})
	h.during(t, 5*shortTimeout, 5)
	h.requireAllHandled(t)
	require.LessOrEqual(t, h.deliveries.HighestCount(), int64(spentAtMost+1), "x-delivery-count")
	if !strings.HasPrefix(node.Version(), "4.3") { // It ends the consumer without a reason (F33).
		const line = "The broker has taken deliveries back after its consumer timeout"
		require.Positive(t, h.Logs.Said(line))
	}
}

// Given a handler that works for longer than the consumer timeout, then its context ends,
// because the broker delivers the message again. The queue goes on at once: from 4.3 on a late
// ack would keep the next message away for another timeout (F33).
func handlerBeyondTheTimeout(t *testing.T, node *testbroker.Node) {
	told, handled := make(chan struct{}, 10), make(chan string, 100)
	first := true
	r := rig.Start(t, rig.Config{
		URL: node.URL(), Policy: backoff.List{time.Second},
		Configure: func(cfg *wamqp.Config) { rig.QuorumQueue(cfg); rig.Prefetch(1)(cfg) },
		Handle: func(msg *message.Message) error {
			if first { // One handler runs at a time.
				first = false
				<-msg.Context().Done()
				told <- struct{}{}
				return nil // Its ack comes late.
			}
			handled <- string(msg.Payload)
			return nil
		},
	})
	r.Send("slow", "next", "last")
	begun := time.Now()
	rig.Await(t, told)
	for seen := map[string]bool{}; len(seen) < 3; {
		seen[rig.Await(t, handled)] = true
	}
	require.Less(t, time.Since(begun), shortTimeout+rig.Ceiling)
	r.Stop()
	require.Zero(t, r.Depth(""))
}

// brokenPublisher is a publisher of a handler's messages that may refuse them.
type brokenPublisher struct {
	broken    atomic.Bool
	published atomic.Int64
}

func (p *brokenPublisher) Publish(string, ...*message.Message) error {
	if p.broken.Load() {
		return errors.New("the other side is away")
	}
	p.published.Add(1)
	return nil
}

func (p *brokenPublisher) Close() error { return nil }

// Given a handler whose messages cannot be published for twenty minutes, then the router nacks
// after every middleware. No message spins, is dropped or dead-lettered (C10), or waits for as long
// as the policy says: plans with long delays had no shorter step, and it was away for hours.
func TestFailingOutgoingPublishesSpinNothing(t *testing.T) {
	t.Parallel()
	rig.Virtually(t, func(t *testing.T, broker *peer.Server) {
		const outage = 20 * time.Minute
		pub := &brokenPublisher{}
		pub.broken.Store(true)
		var calls rig.Timeline
		r := rig.Start(t, rig.Config{
			URL: broker.URL(), Configure: rig.QuorumQueue, Policy: backoff.List{6 * time.Hour},
			Publisher: pub, PublishTopic: "elsewhere",
			Handler: func(msg *message.Message) ([]*message.Message, error) {
				if attempt := middleware.Attempt(msg.Context()); attempt != 1 {
					t.Errorf("attempt %d: a nack of the router burned one", attempt)
				}
				calls.Add()
				return []*message.Message{message.NewMessage("out", []byte("out"))}, nil
			},
		})
		r.Send("patient")
		<-time.After(outage)
		require.Zero(t, r.Depth(".dlq"))
		n := calls.Count()
		require.Greater(t, n, 2)
		require.LessOrEqual(t, n, int(outage/time.Second)+1)
		pub.broken.Store(false)
		rig.WaitFor(t, "the publish", func() bool { return pub.published.Load() == 1 })
		r.RequireNothingLeft(0)
		require.EqualValues(t, 1, pub.published.Load())
	})
}
