package e2e_test

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/peer"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
)

// chain are middlewares, the first outermost.
type chain = []message.HandlerMiddleware

// Given a middleware outside that takes errors away, when DelayedRetry gives an unsettled message
// back to its queue, then the log names it. A PoisonQueue takes the message with an attempt that it
// never had. A message that is swallowed comes again: a bug once acked it, and it was gone.
func TestPoisonQueueOutsideThatTakesTheUnsettledIsNamed(t *testing.T) {
	t.Parallel()
	for name, poisoned := range map[string]bool{"poison queue": true, "swallowed": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rig.Virtually(t, func(t *testing.T, broker *peer.Server) {
				outside := func(h message.HandlerFunc) message.HandlerFunc {
					return func(msg *message.Message) ([]*message.Message, error) {
						produced, _ := h(msg)
						return produced, nil
					}
				}
				if poisoned {
					rig.DeclareQueue(t, broker.URL(), "poison", nil)
					client := rig.OpenClient(t, broker.URL(), topology.PerQueue{})
					var err error
					outside, err = wmiddleware.PoisonQueue(
						rig.NewPublisher(t, client, broker.URL()), "poison")
					require.NoError(t, err)
				}
				proxy, attempts := testbroker.NewProxy(t, broker.URL()), make(chan int, 10)
				r := rig.Start(t, rig.Config{
					URL: broker.URL(), PublisherURL: proxy.URL(), Queue: "orders", Keep: true,
					Policy: rig.Quickly(1), Outer: chain{outside},
					Handle: func(msg *message.Message) error {
						attempts <- middleware.Attempt(msg.Context())
						if len(attempts) > 1 {
							return nil
						}
						proxy.Blackhole(true)
						return rig.ErrFailed
					},
				})
				r.Send("order")
				time.Sleep(30 * time.Minute)
				require.Equal(t, 1, r.Logs.Said("DelayedRetry could not settle it"))
				proxy.Blackhole(false)
				if poisoned {
					taken := rig.Take(t, broker.URL(), "poison")
					require.Contains(t, taken.Headers[wmiddleware.ReasonForPoisonedKey],
						middleware.ErrNotHandedOver.Error())
					rig.AwaitAttempts(t, attempts, 1)
				} else {
					time.Sleep(time.Hour)
					rig.AwaitAttempts(t, attempts, 1, 1)
				}
			})
		})
	}
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
		rig.Virtually(t, func(t *testing.T, broker *peer.Server) {
			attempts := make(chan int, 100)
			c.URL, c.Queue, c.Keep = broker.URL(), "orders", true
			c.Policy, c.Handler = rig.Quickly(1), rig.FailUntil(1000, attempts)
			r := rig.Start(t, c)
			r.Send(make([]string, messages)...)
			for range messages {
				rig.AwaitAttempts(t, attempts, 1)
			}
			rig.WaitFor(t, "a line for each message", func() bool { return r.Logs.Said(said) == messages })
			r.RequireNothingLeft(0)
			require.Empty(t, attempts)
		})
	})
}
