package e2e_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
)

// chain are middlewares, the first outermost.
type chain = []message.HandlerMiddleware

// failing starts a service that retries quickly. Its handler fails before its nth call and sends
// the attempt of each call.
func failing(t *testing.T, retries, n int, c rig.Config) (*rig.Service, chan int) {
	t.Helper()
	attempts := make(chan int, 100)
	c.Policy = rig.Quickly(retries)
	c.Handler = rig.FailUntil(n, attempts)
	return rig.Start(t, c), attempts
}

// poison returns Watermill's PoisonQueue with a queue of the test's own.
func poison(t *testing.T, url string) (queue string, m message.HandlerMiddleware) {
	t.Helper()
	queue = testbroker.Queue(t)
	rig.DeclareQueue(t, url, queue, nil)
	client := rig.OpenClient(t, url, topology.PerQueue{})
	m, err := wmiddleware.PoisonQueue(rig.NewPublisher(t, client, url), queue)
	require.NoError(t, err)
	return queue, m
}

// unsettled starts a service that cannot hand over its first failure. A middleware outside
// takes the error away.
func unsettled(t *testing.T, url string, outside message.HandlerMiddleware) (
	r *rig.Service, proxy *testbroker.Proxy, attempts chan int,
) {
	t.Helper()
	proxy, attempts = testbroker.NewProxy(t, url), make(chan int, 10)
	var calls atomic.Int32
	r = rig.Start(t, rig.Config{
		URL: url, PublisherURL: proxy.URL(), Policy: rig.Quickly(1), Outer: chain{outside},
		ClientOptions: []topology.Option{topology.WithConfirmTimeout(200 * time.Millisecond)},
		SubscriberOptions: []topology.SubscriberOption{
			topology.WithConsumerTimeout(20 * time.Millisecond),
		},
		Handle: func(msg *message.Message) error {
			attempts <- middleware.Attempt(msg.Context())
			if calls.Add(1) > 1 {
				return nil
			}
			proxy.Blackhole(true)
			return rig.ErrFailed
		},
	})
	return r, proxy, attempts
}

const ackedUnsettled = "DelayedRetry could not settle it"

// Given a PoisonQueue outside, when DelayedRetry gives an unsettled message back to its queue, then
// the PoisonQueue takes the message with an attempt that it never had. The log says so.
func TestPoisonQueueOutsideThatTakesTheUnsettledIsNamed(t *testing.T) {
	t.Parallel()
	url := testbroker.URL(t)
	queue, m := poison(t, url)
	r, proxy, attempts := unsettled(t, url, m)
	r.Send("order")
	taken := rig.Take(t, url, queue)
	rig.AwaitAttempts(t, attempts, 1)
	reason := taken.Headers[wmiddleware.ReasonForPoisonedKey]
	require.Contains(t, reason, middleware.ErrNotHandedOver.Error())
	rig.WaitFor(t, "the line in the log", func() bool { return r.Logs.Said(ackedUnsettled) == 1 })
	proxy.Blackhole(false)
}

// Given a middleware outside that swallows every error, when no copy is confirmed, then the message
// comes again. A bug once acked it, and the message was gone.
func TestSwallowedUnsettledMessageComesAgain(t *testing.T) {
	t.Parallel()
	swallow := func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			produced, _ := h(msg)
			return produced, nil
		}
	}
	r, proxy, attempts := unsettled(t, testbroker.URL(t), swallow)
	r.Send("order")
	rig.WaitFor(t, "the line in the log", func() bool { return r.Logs.Said(ackedUnsettled) == 1 })
	proxy.Blackhole(false)
	rig.AwaitAttempts(t, attempts, 1, 1)
}

// Given an InstantAck, when the handler fails, then the message is lost, and the log names each.
// Outside, the context may be done before DelayedRetry sees the message. A bug once skipped the
// handler then.
func TestInstantAckIsNamed(t *testing.T) {
	t.Parallel()
	const messages = 20
	const said = "Handler failed after its message was acked"
	acked := func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			<-msg.Context().Done()
			return h(msg)
		}
	}
	rig.Each(t, map[string]rig.Config{
		"inside":                       {Inner: chain{wmiddleware.InstantAck}},
		"outside":                      {Outer: chain{wmiddleware.InstantAck}},
		"outside, and the ack is done": {Outer: chain{wmiddleware.InstantAck, acked}},
	}, func(t *testing.T, c rig.Config) {
		r, attempts := failing(t, 1, 1000, c)
		for i := range messages {
			r.Send(fmt.Sprint("order ", i))
		}
		for range messages {
			rig.AwaitAttempts(t, attempts, 1)
		}
		rig.WaitFor(t, "a line for each message", func() bool { return r.Logs.Said(said) == messages })
		r.RequireNothingLeft(0)
		require.Empty(t, attempts)
	})
}

// keysSeen remembers keys for ever. Watermill's own repository never ends its goroutine.
type keysSeen struct{ sync.Map }

func (k *keysSeen) IsDuplicate(_ context.Context, key string) (bool, error) {
	_, seen := k.LoadOrStore(key, true)
	return seen, nil
}

func deduplicator(key wmiddleware.MessageHasher) message.HandlerMiddleware {
	d := &wmiddleware.Deduplicator{KeyFactory: key, Repository: &keysSeen{}, Timeout: time.Second}
	return d.Middleware
}

// Given a Deduplicator, when the connection is lost while the handler has a message, then the
// message is delivered again. It was not handled, so it is no duplicate.
func TestDeduplicatorLetsRedeliveriesThrough(t *testing.T) {
	t.Parallel()
	url := testbroker.URL(t)
	proxy := testbroker.NewProxy(t, url)
	attempts := make(chan int, 10)
	var calls rig.Timeline
	r := rig.Start(t, rig.Config{
		URL: proxy.URL(), PublisherURL: url, AdminURL: url, Policy: rig.Quickly(1),
		Inner: chain{deduplicator(middleware.DeduplicationKey)},
		Handle: func(msg *message.Message) error {
			attempts <- middleware.Attempt(msg.Context())
			if calls.Add() == 1 {
				proxy.Cut()
				<-msg.Context().Done()
				return msg.Context().Err()
			}
			return nil
		},
	})
	rig.Publish(t, url, "", r.Queue, amqp.Publishing{Body: []byte("order"), MessageId: "id-1"})
	rig.AwaitAttempts(t, attempts, 1, 1)
	r.Stop()
	require.Zero(t, testbroker.Depth(t, url, r.Queue))
}
