package topology_test

import (
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/millpond-go/millpond/internal/testing/rig"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
)

const (
	// shortTimeout is the consumer timeout of the nodes here.
	shortTimeout = 8 * time.Second
	// spentAtMost is how often a message may be delivered again over an outage: once when the
	// Subscriber stops consuming, and once more when it looks whether the outage is over.
	spentAtMost = 2
)

func shortConsumerTimeout(t *testing.T) *testbroker.Node {
	t.Helper()
	return testbroker.Private(t, testbroker.WithConsumerTimeout(shortTimeout, shortTimeout/8))
}

// holding is a service whose handler fails at first, and that cannot store the failed message.
type holding struct {
	*rig.Service
	deliveries *rig.Deliveries
	done       *rig.Ledger
	messages   int
	outage     func(on bool)
}

// startHolding starts a service on a queue of its own. In an outage the connection that it
// publishes on passes nothing, or its wait queue is missing and it may not declare one.
func startHolding(
	t *testing.T, node *testbroker.Node, queue string, args amqp.Table, missing bool,
	prefetched, concurrency int, more ...topology.SubscriberOption,
) *holding {
	t.Helper()
	h := &holding{deliveries: rig.NewDeliveries(), done: rig.NewLedger()}
	proxy := testbroker.NewProxy(t, node.URL())
	h.outage = proxy.Blackhole
	options := []topology.Option{topology.WithConfirmTimeout(time.Second / 2)}
	if missing {
		options = append(options, topology.WithPreProvisioned())
		h.outage = declareAhead(t, node.URL(), queue, args)
	}
	h.Service = rig.Start(t, rig.Config{
		URL: node.URL(), PublisherURL: proxy.URL(), Queue: queue, Policy: backoff.List{time.Second},
		Configure: func(cfg *wamqp.Config) {
			cfg.Queue.Arguments = args
			cfg.Consume.Qos.PrefetchCount = prefetched
			cfg.Connection.AmqpConfig = &amqp.Config{Dial: func(network, address string) (net.Conn, error) {
				conn, err := net.DialTimeout(network, address, 10*time.Second)
				if err != nil {
					return nil, err
				}
				return h.deliveries.Watch(conn), nil
			}}
		},
		ClientOptions:     options,
		SubscriberOptions: append(more, topology.WithConcurrency(concurrency)),
		Handler: func(msg *message.Message) ([]*message.Message, error) {
			if middleware.Attempt(msg.Context()) == 1 {
				return nil, rig.ErrFailed
			}
			h.done.Handle(string(msg.Payload))
			return nil, nil
		},
	})
	return h
}

// declareAhead declares what a service on queue needs. outage deletes its wait queues, or declares
// them again.
func declareAhead(t *testing.T, url, queue string, args amqp.Table) (outage func(on bool)) {
	t.Helper()
	ch := testbroker.Channel(t, url)
	declare := func(name string, args amqp.Table) {
		_, err := ch.QueueDeclare(name, true, false, false, false, args)
		require.NoError(t, err)
	}
	plan, err := topology.PerQueue{}.Plan(queue, []time.Duration{time.Second})
	require.NoError(t, err)
	declare(queue, args)
	for _, q := range plan.Queues {
		if q.Name != queue {
			declare(q.Name, q.Arguments)
		}
	}
	return func(on bool) {
		for _, q := range plan.Queues {
			if q.Delay > 0 && on {
				_, err := ch.QueueDelete(q.Name, false, false, false)
				require.NoError(t, err)
			} else if q.Delay > 0 {
				declare(q.Name, q.Arguments)
			}
		}
	}
}

// during has an outage in which the messages are published and fail.
func (h *holding) during(t *testing.T, outage time.Duration, messages int) {
	t.Helper()
	h.outage(true)
	h.messages = messages
	rig.Fill(t, h.URL, h.Queue, messages)
	<-time.After(outage)
	h.outage(false)
}

// requireAllHandled waits until all messages are handled, or those that are not have vanished.
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

// No failed message can be stored for longer than the delivery limit times the broker's consumer
// timeout. All are retried afterwards, and nothing came near the limit.
func TestHoldSpendsNoDeliveries(t *testing.T) {
	t.Parallel()
	outage := 5 * shortTimeout
	node := shortConsumerTimeout(t)
	var all sync.WaitGroup
	for _, declared := range []string{"3", "default"} {
		for _, missing := range []bool{false, true} {
			name := fmt.Sprintf("limit %s, wait queue missing %v", declared, missing)
			queue := strings.NewReplacer(" ", "-", ",", "").Replace(name)
			all.Go(func() {
				t.Run(name, func(t *testing.T) {
					args, _ := rig.DeliveryLimit(t, declared, node.Version())
					h := startHolding(t, node, queue, args, missing, 10, 5, topology.WithConsumerTimeout(shortTimeout))
					h.during(t, outage, 5)
					h.requireAllHandled(t)
					require.LessOrEqual(t, h.deliveries.HighestCount(), int64(spentAtMost), "x-delivery-count")
				})
			})
		}
	}
	all.Wait()
}

// Twenty messages arrive at once and are held one after the other. The hold counts from their
// arrival, so that the broker takes none back by its consumer timeout.
func TestHoldLimitCountsFromArrival(t *testing.T) {
	t.Parallel()
	node := shortConsumerTimeout(t)
	args, _ := rig.DeliveryLimit(t, "none", node.Version())
	h := startHolding(t, node, "orders", args, false, 21, 1, topology.WithConsumerTimeout(shortTimeout))
	h.during(t, 3*shortTimeout, 20)
	h.requireAllHandled(t)
	for _, ended := range h.deliveries.Objected() {
		require.NotContains(t, ended, "timed out", "ended by the broker")
		require.NotContains(t, ended, "consumer cancelled", "ended by a quorum queue of 4.3")
	}
}

// The Subscriber does not know that the consumer timeout is short. It learns that when
// the timeout has struck for the first time: that counts once, and not again and again.
func TestConsumerTimeoutIsLearned(t *testing.T) {
	t.Parallel()
	node := shortConsumerTimeout(t)
	args, _ := rig.DeliveryLimit(t, "default", node.Version())
	h := startHolding(t, node, "orders", args, false, 10, 5)
	h.during(t, 5*shortTimeout, 5)
	h.requireAllHandled(t)
	require.LessOrEqual(t, h.deliveries.HighestCount(), int64(spentAtMost+1), "x-delivery-count")
	if !strings.HasPrefix(node.Version(), "4.3") { // which ends the consumer without a reason (F33)
		require.Positive(t, h.Logs.Said("The broker has taken deliveries back after its consumer timeout"))
	}
}
