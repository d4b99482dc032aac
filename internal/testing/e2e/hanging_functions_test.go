package e2e_test

import (
	"sync/atomic"
	"testing"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/peer"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/inorder"
)

// hanging is a function of the user that does not return for the body hangs, until free is closed.
type hanging struct {
	wamqp.DefaultMarshaler
	free     chan struct{}
	running  atomic.Int64
	together atomic.Bool
}

func (h *hanging) call(body []byte) {
	if string(body) != hangs {
		return
	}
	if h.running.Add(1) > 1 {
		h.together.Store(true)
	}
	<-h.free
	h.running.Add(-1)
}

// letGo lets the calls return.
func (h *hanging) letGo() {
	select {
	case <-h.free:
	default:
		close(h.free)
	}
}

func (h *hanging) Unmarshal(raw amqp.Delivery) (*message.Message, error) {
	h.call(raw.Body)
	return h.DefaultMarshaler.Unmarshal(raw)
}

func (h *hanging) keyBy(msg *message.Message) string {
	h.call(msg.Payload)
	return keyOf(msg)
}

const hangs = "k:0"

var thatHangs = amqp.Publishing{
	DeliveryMode: amqp.Persistent, MessageId: "the-one", Body: []byte(hangs),
}

// Given a marshaler that does not return, then its message keeps one place, the other places go on,
// and the log names it once. Close returns within the drain, and the message is in its queue. A
// late return of the marshaler has no effect.
func TestAMarshalerThatHangs(t *testing.T) {
	t.Parallel()
	rig.Virtually(t, func(t *testing.T, broker *peer.Server) {
		h := &hanging{free: make(chan struct{})}
		var handled bodies
		r := rig.Start(t, rig.Config{
			URL: broker.URL(), Queue: "orders", Keep: true, Policy: backoff.List{time.Second},
			Configure:         func(cfg *wamqp.Config) { cfg.Marshaler = h },
			SubscriberOptions: []topology.SubscriberOption{topology.WithConcurrency(2)},
			Handle: func(msg *message.Message) error {
				handled.add(string(msg.Payload))
				return nil
			},
		})
		t.Cleanup(h.letGo)
		r.Publish(thatHangs)
		r.Send("a:0", "a:1", "a:2")
		<-time.After(time.Hour / 2)
		require.Equal(t, ofKey("a", 3), handled.of("a"))
		require.Len(t, r.Logs.About("the-one"), 1)
		require.Contains(t, r.Logs.About("the-one")[0].Msg, "Marshaler does not return: ")

		begun := time.Now()
		r.Stop()
		require.LessOrEqual(t, time.Since(begun), 25*time.Second)
		require.Equal(t, 1, r.Depth(""))
		h.letGo()
		require.Equal(t, hangs, string(rig.Take(t, r.URL, r.Queue).Body))
		require.Equal(t, 3, handled.len())
	})
}

// Given a KeyBy, or the marshaler before it, that does not return, then the messages behind wait,
// and the line goes on: a message that failed gets its attempts when they are due. The log names
// the function and the message once. The function is not called twice at a time, also when the
// connection is lost. When it returns, the queue goes on in its order. Close does not wait for it.
func TestAKeyByThatHangs(t *testing.T) {
	t.Parallel()
	for function, isKeyBy := range map[string]bool{
		"KeyBy of inorder.Strategy": true, "the marshaler": false,
	} {
		t.Run(function, func(t *testing.T) {
			t.Parallel()
			rig.Virtually(t, func(t *testing.T, broker *peer.Server) {
				proxy := testbroker.NewProxy(t, broker.URL())
				h := &hanging{free: make(chan struct{})}
				var in inorder.Strategy
				if isKeyBy {
					in.KeyBy = h.keyBy
				}
				var handled, tried bodies
				c := orderedBy(in, backoff.List{time.Minute, 15 * time.Minute},
					func(msg *message.Message) error {
						tried.add(string(msg.Payload))
						if string(msg.Payload) == "a:0" && len(tried.of("a")) < 3 {
							return errNotYet
						}
						handled.add(string(msg.Payload))
						return nil
					})
				ordered := c.Configure
				c.Configure = func(cfg *wamqp.Config) {
					ordered(cfg)
					if !isKeyBy {
						cfg.Marshaler = h
					}
				}
				c.URL, c.AdminURL, c.Queue, c.Keep = proxy.URL(), broker.URL(), "orders", true
				r := rig.Start(t, c)
				t.Cleanup(h.letGo)
				r.URL = broker.URL()
				r.Send("a:0")
				<-time.After(10 * time.Second)
				r.Publish(thatHangs)
				r.Send("b:0", "k:1", "b:1")
				<-time.After(20 * time.Minute)
				require.Equal(t, []string{"a:0", "a:0", "a:0"}, tried.done)
				said := r.Logs.About("the-one")
				require.Len(t, said, 1)
				require.EqualError(t, said[0].Err, function+" has had the message for 30.01s")

				proxy.Cut()
				<-time.After(time.Minute)
				h.letGo()
				<-time.After(time.Minute)
				require.Equal(t, ofKey("k", 2), handled.of("k"))
				require.Equal(t, ofKey("b", 2), handled.of("b"))
				require.False(t, h.together.Load(), "called twice at a time")

				h.free = make(chan struct{})
				r.Publish(thatHangs)
				<-time.After(time.Second)
				begun := time.Now()
				r.Stop()
				require.LessOrEqual(t, time.Since(begun), 5*time.Second)
				require.Equal(t, 1, r.Depth(""))
				h.letGo()
			})
		})
	}
}
