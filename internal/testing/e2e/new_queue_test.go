package e2e_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
)

// orderKeys binds the queues of these tests, and orderKey is the key of their messages.
const orderKeys, orderKey = "order.#", "order.placed"

// stream publishes mandatory messages to an exchange, one after the other, each confirmed.
type stream struct {
	url, exchange, key  string
	pause               time.Duration // between two messages
	published, returned atomic.Int64
	stop                chan struct{}
	ended               chan error
}

// start begins to publish, or goes on after an end.
func (s *stream) start(t *testing.T) {
	t.Helper()
	stop := make(chan struct{})
	s.stop, s.ended = stop, make(chan error, 1)
	ch := testbroker.Channel(t, s.url)
	require.NoError(t, ch.Confirm(false))
	returns := ch.NotifyReturn(make(chan amqp.Return, 1))
	go func() {
		for range returns {
			s.returned.Add(1)
		}
	}()
	go func() {
		for {
			select {
			case <-stop:
				s.ended <- nil
				return
			case <-time.After(s.pause):
			}
			msg := rig.Named(fmt.Sprint("message ", s.published.Load()))
			confirm, err := ch.PublishWithDeferredConfirm(s.exchange, s.key, true, false, msg)
			if err != nil || !confirm.Wait() {
				s.ended <- fmt.Errorf("publish is not confirmed: %w", err)
				return
			}
			s.published.Add(1)
		}
	}()
}

// more waits until n more messages are published.
func (s *stream) more(t *testing.T, n int64) {
	t.Helper()
	until := s.published.Load() + n
	rig.WaitFor(t, fmt.Sprintf("%d messages", until), func() bool {
		return s.published.Load() >= until
	})
}

func (s *stream) end(t *testing.T) {
	t.Helper()
	close(s.stop)
	require.NoError(t, <-s.ended)
}

// moving is a service that moves from an old queue, which watermill-amqp's Subscriber consumes,
// to a new quorum queue of this library. Both are bound to one exchange.
type moving struct {
	url, exchange, old, kind, fresh string
	handled                         *rig.Calls
}

func newMoving(t *testing.T, kind string) moving {
	t.Helper()
	url := testbroker.URL(t)
	m := moving{
		url: url, exchange: testbroker.Queue(t), old: testbroker.Queue(t), kind: kind,
		fresh: testbroker.Queue(t), handled: rig.NewCalls(),
	}
	rig.DeclareExchange(t, url, m.exchange, "topic")
	return m
}

func (m moving) startStream(t *testing.T) *stream {
	t.Helper()
	s := &stream{url: m.url, exchange: m.exchange, key: orderKey, pause: 2 * time.Millisecond}
	s.start(t)
	return s
}

func (m moving) startOld(t *testing.T) (stop func()) {
	t.Helper()
	return startOld(t, m.url, m.old+"@"+m.exchange, m.kind, m.handled)
}

// startNew starts a service of this library, which declares and binds the new queue.
func (m moving) startNew(t *testing.T) *rig.Service {
	t.Helper()
	return rig.Start(t, rig.Config{
		URL: m.url, Queue: m.fresh, Policy: backoff.List{time.Second},
		Configure: func(cfg *wamqp.Config) {
			rig.QuorumQueue(cfg)
			rig.OnTopic(m.exchange, orderKeys)(cfg)
		},
		Handle: func(msg *message.Message) error {
			body := string(msg.Payload)
			if middleware.Attempt(msg.Context()) == 1 && body[len(body)-1] == '7' {
				return rig.ErrFailed
			}
			m.handled.Handle(body)
			return nil
		},
	})
}

func (m moving) unbindOld(t *testing.T) {
	t.Helper()
	require.NoError(t, testbroker.Channel(t, m.url).QueueUnbind(m.old, orderKeys, m.exchange, nil))
}

// finishOld waits until the old queue, which is bound no more, has no message ready or unacked. The
// old instance handles one message at a time, so that the last one tells.
func (m moving) finishOld(t *testing.T) {
	t.Helper()
	rig.Publish(t, m.url, "", m.old, rig.Message("last"))
	rig.WaitFor(t, "the end of the old queue", func() bool { return m.handled.Of("last") == 1 })
}

// deleteOld deletes the old queue, a classic one only if it is empty. A quorum queue cannot be
// asked so.
func (m moving) deleteOld(t *testing.T) error {
	t.Helper()
	ifEmpty := m.kind == "classic"
	_, err := testbroker.Channel(t, m.url).QueueDelete(m.old, false, ifEmpty, false)
	return err
}

// Given an old instance that consumes a classic or a quorum queue, when the service moves to a
// new quorum queue beside it under traffic, in the documented order, then every message is
// handled. Only messages between the two bindings are handled twice.
func TestMovingToANewQueueBesideTheOldOne(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"classic", "quorum"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			m := newMoving(t, kind)
			stopOld := m.startOld(t)
			traffic := m.startStream(t)
			traffic.more(t, 50)

			first := traffic.published.Load()
			fresh := m.startNew(t) // step 1: the new queue gets every message, too
			traffic.more(t, 50)
			m.unbindOld(t) // step 2: the old queue gets no more
			last := traffic.published.Load() + 1
			traffic.more(t, 50)
			m.finishOld(t) // step 3: the old instances handle the rest
			stopOld()
			require.NoError(t, m.deleteOld(t)) // step 4
			traffic.more(t, 50)
			traffic.end(t)

			all := int(traffic.published.Load())
			rig.WaitFor(t, "all to be handled", func() bool {
				return m.handled.Count() == all+1 && fresh.Depth("")+fresh.Waiting() == 0
			})
			fresh.RequireNothingLeft(0)
			require.Zero(t, traffic.returned.Load(), "no message was without a queue")
			twice := 0
			for n := range int64(all) {
				switch times := m.handled.Of(fmt.Sprint("message ", n)); {
				case times == 2 && n >= first-1 && n <= last:
					twice++
				default:
					require.Equal(t, 1, times, "message %d of %d; both queues were bound from %d to %d",
						n, all, first, last)
				}
			}
			require.Positive(t, twice)
			t.Logf("%d messages, %d of them twice", all, twice)
		})
	}
}
