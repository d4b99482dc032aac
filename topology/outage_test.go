package topology_test

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/millpond-go/millpond/internal/testing/rig"

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
	r := rig.Start(t, rig.Config{
		URL: url, PublisherURL: proxy.URL(), Configure: rig.QuorumQueue,
		ClientOptions: []topology.Option{topology.WithConfirmTimeout(confirmTimeout)},
		Policy:        backoff.List{time.Second},
		Handler: func(msg *message.Message) ([]*message.Message, error) {
			attempt := middleware.Attempt(msg.Context())
			attempts <- attempt
			if attempt == 1 && string(msg.Payload) == "failing" {
				proxy.Blackhole(true)
				return nil, rig.ErrFailed
			}
			return nil, nil
		},
	})
	r.Publish(amqp.Publishing{Body: []byte("failing")})
	r.Publish(amqp.Publishing{Body: []byte("behind it")})
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
	require.Zero(t, testbroker.Depth(t, url, r.Queue+".dlq"))
}

// The broker is stopped while messages are in progress, waiting and ready, and
// started again: all are handled, none burns an attempt. On quorum queues the
// wait ends while the broker is away; on classic ones, which do not survive that
// (F23), it ends later. All strategies share the broker, for each start of one
// costs seconds.
func TestBrokerRestartLosesNothing(t *testing.T) {
	t.Parallel()
	node := testbroker.Private(t, rig.QuickDeadLettering)
	var services []*interrupted
	for name, strategy := range rig.Strategies {
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
	rig      *rig.Service
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
	s.rig = rig.Start(t, rig.Config{
		URL: url, Strategy: strategy, Configure: rig.QuorumQueue, Queue: "orders " + name,
		ClientOptions: []topology.Option{topology.WithConfirmTimeout(2 * time.Second)},
		Policy:        backoff.List{delay},
		Handler: func(msg *message.Message) ([]*message.Message, error) {
			c := interruptedCall{string(msg.Payload), middleware.Attempt(msg.Context())}
			switch {
			case c.body == "waiting" && waited.CompareAndSwap(false, true):
				return nil, rig.ErrFailed
			case c.body == "in progress" && c.attempt == 1:
				select {
				case <-s.down: // the second time round
				default:
					s.handling <- struct{}{}
					<-s.down
					return nil, rig.ErrFailed
				}
			}
			s.calls <- c
			return nil, nil
		},
	})
	s.rig.Send("waiting")
	rig.WaitFor(t, name+": the message waits", func() bool { return waited.Load() && rig.Waiting(t, url, s.rig.Plan) == 1 })
	s.rig.Send("in progress")
	s.rig.Send("ready")
	return s
}

func (s *interrupted) losesNothing(t *testing.T) {
	want := map[interruptedCall]bool{{"waiting", 2}: true, {"in progress", 1}: true, {"ready", 1}: true}
	for range 3 {
		select {
		case c := <-s.calls:
			require.True(t, want[c], "%+v", c)
			delete(want, c)
		case <-time.After(rig.Patience):
			t.Fatalf("not handled: %v", want)
		}
	}
	s.rig.Stop()
	require.Zero(t, testbroker.Depth(t, s.rig.URL, s.rig.Queue))
	require.Zero(t, testbroker.Depth(t, s.rig.URL, s.rig.Queue+".dlq"))
}

// A connection lost while the handler runs, which then fails: the broker has the
// message back already, so it is handled twice, not three times (C5).
func TestConnectionLostWhileHandling(t *testing.T) {
	t.Parallel()
	proxy := testbroker.NewProxy(t, testbroker.URL(t))
	var calls rig.Timeline
	attempts := make(chan int, 10)
	r := rig.Start(t, rig.Config{
		URL:       proxy.URL(),
		Configure: rig.QuorumQueue,
		Policy:    backoff.List{time.Second},
		Handler: func(msg *message.Message) ([]*message.Message, error) {
			attempts <- middleware.Attempt(msg.Context())
			if calls.Add() == 1 {
				proxy.Cut()
				<-msg.Context().Done() // tells the handler that its work counts no more
				return nil, rig.ErrFailed
			}
			return nil, nil
		},
	})
	rig.Publish(t, testbroker.URL(t), "", r.Queue, amqp.Publishing{Body: []byte("twice")})
	require.Equal(t, 1, <-attempts)
	require.Equal(t, 1, <-attempts, "no attempt was burned")
	r.Stop()
	require.Equal(t, 2, calls.Count())
	for _, queue := range []string{r.Queue, r.Queue + ".wait.1s", r.Queue + ".dlq"} {
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
	var calls rig.Timeline
	r := rig.Start(t, rig.Config{
		Configure: rig.QuorumQueue,
		Policy:    backoff.List{100 * time.Millisecond},
		Publisher: pub, PublishTopic: "elsewhere",
		Handler: func(msg *message.Message) ([]*message.Message, error) {
			if attempt := middleware.Attempt(msg.Context()); attempt != 1 {
				t.Errorf("attempt %d: a nack of the router burned one", attempt)
			}
			calls.Add()
			return []*message.Message{message.NewMessage("out", []byte("out"))}, nil
		},
	})
	begun := time.Now()
	r.Send("patient")
	<-time.After(outage)
	require.Zero(t, r.Depth(".dlq"))
	n, took := calls.Count(), time.Since(begun) // looking takes seconds on a busy machine
	t.Logf("%d calls in %v", n, took)
	require.Greater(t, n, 2)
	require.LessOrEqual(t, n, int((took+rig.Grace)/time.Second)+1)
	pub.broken.Store(false)
	rig.WaitFor(t, "the message is published", func() bool { return pub.published.Load() == 1 })
	r.Stop()
	require.EqualValues(t, 1, pub.published.Load())
	require.Zero(t, r.Depth(""))
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
