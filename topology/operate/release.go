package operate

import (
	"context"
	"sync"
	"time"

	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/wire"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
)

// takeOut moves chosen messages from the wait queues of a plan to a route.
func (o *Operator) takeOut(
	ctx context.Context, plan topology.Plan, choose Selection,
	route topology.Route, become func(d *amqp.Delivery, queue string) amqp.Publishing,
) (Progress, error) {
	var mu sync.Mutex
	var p Progress
	count := func(change func()) {
		mu.Lock()
		defer mu.Unlock()
		change()
	}
	err := eachWaitQueue(plan, func(q topology.Queue) error {
		var m *mover
		err := o.pass(ctx, plan, q, func(t *taking, d amqp.Delivery) error {
			if m == nil {
				m = newMover(ctx, o, t, func() { count(func() { p.Done++ }) })
				t.before = m.finish
				count(func() { p.Total += t.Total() })
			}
			count(func() { p.Seen++ })
			w := newWaiter(&d, q)
			switch {
			case !choose.chooses(w):
			case w.Queue != "" && w.Queue != plan.Queue:
				count(func() { p.Foreign++ })
			default:
				count(func() { p.Chosen++ })
				err := m.move(d, route.Exchange, route.RoutingKey, become(&d, plan.Queue))
				if err != nil {
					t.Keep(d.DeliveryTag)
				}
				return err
			}
			t.Keep(d.DeliveryTag)
			return nil
		})
		return err
	})
	mu.Lock()
	defer mu.Unlock()
	return p, err
}

// released is a message whose wait is over: a not-before would send it to wait
// again.
func released(d *amqp.Delivery, _ string) amqp.Publishing {
	msg := wire.Publishing(d, func(key string) bool { return key == header.NotBefore }, nil)
	msg.Priority = wire.Priority(d, header.Priority)
	return msg
}

// cancelled is a message that is given up.
func cancelled(d *amqp.Delivery, queue string) amqp.Publishing {
	n := header.Parse(queue, func(key string) (string, bool) {
		text, ok := d.Headers[key].(string)
		return text, ok
	})
	n.Reason, n.DeadAt = header.ReasonCancelled, time.Now()
	headers := n.DeadHeaders(queue)
	headers[wmiddleware.ReasonForPoisonedKey] = n.Error
	headers[wmiddleware.PoisonedTopicKey] = queue
	msg := wire.Publishing(d, header.IsState, headers)
	msg.Priority = wire.Priority(d, header.Priority)
	return msg
}
