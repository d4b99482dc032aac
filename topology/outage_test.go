package topology_test

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
)

// Only the publisher's connection is blackholed, for thirty confirm timeouts:
// the message is held, nothing is lost, no attempt burned, at most two tries a
// second, and the queue goes on by itself (C14).
func TestBlackholedPublisherHoldsTheMessage(t *testing.T) {
	t.Parallel()
	const confirmTimeout = time.Second
	url := testbroker.URL(t)
	proxy := testbroker.NewProxy(t, url)
	attempts := make(chan int, 100)
	r := newRig(t, rigConfig{
		url: url, publisherURL: proxy.URL(), config: quorumQueue,
		clientOptions: []topology.Option{topology.WithConfirmTimeout(confirmTimeout)},
		policy:        backoff.List{time.Second},
		handler: func(msg *message.Message) ([]*message.Message, error) {
			attempt := middleware.Attempt(msg.Context())
			attempts <- attempt
			if attempt == 1 && string(msg.Payload) == "failing" {
				proxy.Blackhole(true)
				return nil, errFailed
			}
			return nil, nil
		},
	})
	r.publish(amqp.Publishing{Body: []byte("failing")})
	r.publish(amqp.Publishing{Body: []byte("behind it")})
	require.Equal(t, 1, <-attempts)

	begun, before := time.Now(), proxy.Tries()
	outage := 30 * confirmTimeout
	if testing.Short() {
		outage = 5 * confirmTimeout
	}
	select {
	case n := <-attempts:
		t.Fatalf("attempt %d while the machinery was out of order", n)
	case <-time.After(outage):
	}
	tries := proxy.Tries() - before
	rate := float64(tries) / time.Since(begun).Seconds()
	t.Logf("%d tries in %v", tries, outage)
	require.LessOrEqual(t, rate, 2.0, "tries a second")
	require.Positive(t, tries)

	proxy.Blackhole(false)
	require.Equal(t, 1, <-attempts, "the message behind it")
	require.Equal(t, 2, <-attempts, "the second attempt of the first")
	require.Zero(t, testbroker.Depth(t, url, r.queue+".dlq"))
}

// The broker is stopped while messages are in progress, waiting and ready, and
// started again: all are handled, none burns an attempt. On quorum queues the
// wait ends while the broker is away; on classic ones, which do not survive that
// (F23), it ends later. All strategies share the broker, for each start of one
// costs seconds.
func TestBrokerRestartLosesNothing(t *testing.T) {
	t.Parallel()
	node := testbroker.Private(t, quickDeadLettering)
	var services []*interrupted
	for name, strategy := range strategies {
		delay := 3 * time.Second
		if strings.Contains(name, "classic") {
			delay = 40 * time.Second
		}
		services = append(services, startInterrupted(t, node.URL(), name, strategy(t), delay))
	}
	for _, s := range services {
		<-s.handling
	}
	node.Stop(t)
	for _, s := range services {
		close(s.down)
	}
	node.Start(t)
	for _, s := range services {
		t.Run(s.name, s.losesNothing)
	}
}

// interrupted is a service with a message in progress, one waiting and one ready
// when the broker goes.
type interrupted struct {
	name     string
	rig      *rig
	handling chan struct{} // the message is in progress
	down     chan struct{} // closed when the broker is away
	calls    chan interruptedCall
}

type interruptedCall struct {
	body    string
	attempt int
}

func startInterrupted(t *testing.T, url, name string, strategy topology.Strategy, delay time.Duration) *interrupted {
	t.Helper()
	s := &interrupted{
		name: name, handling: make(chan struct{}, 10), down: make(chan struct{}), calls: make(chan interruptedCall, 100),
	}
	var waited atomic.Bool
	s.rig = newRig(t, rigConfig{
		url: url, strategy: strategy, config: quorumQueue, queue: "orders " + name,
		clientOptions: []topology.Option{topology.WithConfirmTimeout(2 * time.Second)},
		policy:        backoff.List{delay},
		handler: func(msg *message.Message) ([]*message.Message, error) {
			c := interruptedCall{string(msg.Payload), middleware.Attempt(msg.Context())}
			switch {
			case c.body == "waiting" && waited.CompareAndSwap(false, true):
				return nil, errFailed
			case c.body == "in progress" && c.attempt == 1:
				select {
				case <-s.down: // the second time round
				default:
					s.handling <- struct{}{}
					<-s.down
					return nil, errFailed
				}
			}
			s.calls <- c
			return nil, nil
		},
	})
	s.rig.publish(amqp.Publishing{Body: []byte("waiting"), DeliveryMode: amqp.Persistent})
	testbroker.WaitFor(t, name+": the message waits", patience, func() bool { return waited.Load() && waiting(t, url, s.rig.plan) == 1 })
	s.rig.publish(amqp.Publishing{Body: []byte("in progress"), DeliveryMode: amqp.Persistent})
	s.rig.publish(amqp.Publishing{Body: []byte("ready"), DeliveryMode: amqp.Persistent})
	return s
}

func (s *interrupted) losesNothing(t *testing.T) {
	want := map[interruptedCall]bool{{"waiting", 2}: true, {"in progress", 1}: true, {"ready", 1}: true}
	for range 3 {
		select {
		case c := <-s.calls:
			require.True(t, want[c], "%+v", c)
			delete(want, c)
		case <-time.After(patience):
			t.Fatalf("not handled: %v", want)
		}
	}
	s.rig.stop()
	require.Zero(t, testbroker.Depth(t, s.rig.url, s.rig.queue))
	require.Zero(t, testbroker.Depth(t, s.rig.url, s.rig.queue+".dlq"))
}

// A connection lost while the handler runs, which then fails: the broker has the
// message back already, so it is handled twice, not three times (C5).
func TestConnectionLostWhileHandling(t *testing.T) {
	t.Parallel()
	proxy := testbroker.NewProxy(t, testbroker.URL(t))
	var calls timeline
	attempts := make(chan int, 10)
	r := newRig(t, rigConfig{
		url:    proxy.URL(),
		config: quorumQueue,
		policy: backoff.List{time.Second},
		handler: func(msg *message.Message) ([]*message.Message, error) {
			attempts <- middleware.Attempt(msg.Context())
			if calls.add() == 1 {
				proxy.Cut()
				<-msg.Context().Done() // tells the handler that its work counts no more
				return nil, errFailed
			}
			return nil, nil
		},
	})
	publish(t, testbroker.URL(t), "", r.queue, amqp.Publishing{Body: []byte("twice")})
	require.Equal(t, 1, <-attempts)
	require.Equal(t, 1, <-attempts, "no attempt was burned")
	r.stop()
	require.Equal(t, 2, calls.count())
	for _, queue := range []string{r.queue, r.queue + ".wait.1s", r.queue + ".dlq"} {
		require.Zero(t, testbroker.Depth(t, testbroker.URL(t), queue), queue)
	}
}

// The handler's messages cannot be published for two minutes: the router nacks
// after every middleware. Nothing spins, drops or is dead-lettered (C10).
func TestFailingOutgoingPublishesSpinNothing(t *testing.T) {
	t.Parallel()
	outage := 2 * time.Minute
	if testing.Short() {
		outage = 5 * time.Second
	}
	pub := &brokenPublisher{}
	pub.broken.Store(true)
	var calls timeline
	r := newRig(t, rigConfig{
		config:    quorumQueue,
		policy:    backoff.List{100 * time.Millisecond},
		publisher: pub, publishTopic: "elsewhere",
		handler: func(msg *message.Message) ([]*message.Message, error) {
			if attempt := middleware.Attempt(msg.Context()); attempt != 1 {
				t.Errorf("attempt %d: a nack of the router burned one", attempt)
			}
			calls.add()
			return []*message.Message{message.NewMessage("out", []byte("out"))}, nil
		},
	})
	begun := time.Now()
	r.publish(amqp.Publishing{Body: []byte("patient"), DeliveryMode: amqp.Persistent})
	<-time.After(outage)
	require.Zero(t, testbroker.Depth(t, r.url, r.queue+".dlq"))
	n, took := calls.count(), time.Since(begun) // looking takes seconds on a busy machine
	t.Logf("%d calls in %v", n, took)
	require.Greater(t, n, 2)
	require.LessOrEqual(t, n, int((took+grace)/time.Second)+1)
	pub.broken.Store(false)
	testbroker.WaitFor(t, "the message is published", patience, func() bool { return pub.published.Load() == 1 })
	r.stop()
	require.EqualValues(t, 1, pub.published.Load())
	require.Zero(t, testbroker.Depth(t, r.url, r.queue))
}

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
