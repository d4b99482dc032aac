package chaos

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

// leader returns the node that leads the main queue, else otherwise.
func (n *nemesis) leader(ctx context.Context, otherwise int) int {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	for i := range n.cluster.Size() {
		out, err := n.cluster.Node(i).RunCtl(ctx, "list_queues", "--no-table-headers", "name", "leader")
		if err != nil {
			continue
		}
		for line := range strings.Lines(out) {
			name, leader, _ := strings.Cut(strings.TrimSpace(line), "\t")
			for j := range n.cluster.Size() {
				if name == queueName && leader == n.cluster.Node(j).Name() {
					return j
				}
			}
		}
	}
	return otherwise
}

// fill fills the dead-letter queue until it refuses, and keeps it full for a while.
func (n *nemesis) fill(ctx context.Context, hold time.Duration) (string, error) {
	n.letters.turn.Lock()
	defer n.letters.turn.Unlock()
	err := n.admin(func(ch *amqp.Channel) error {
		returned := ch.NotifyReturn(make(chan amqp.Return, 1))
		for range 3 * dlqLimit {
			if err := publishOne(ch, returned, n.letters.queue, filler); err != nil {
				return nil // refused
			}
		}
		return errors.New("it does not fill up")
	})
	rest(ctx, hold)
	return n.letters.queue, err
}

// deleteQueue deletes the wait queue that only the last delay needs, once it is empty and while
// nobody may publish to it.
func (n *nemesis) deleteQueue(ctx context.Context) (string, error) {
	delay := Delays[len(Delays)-1]
	name := ""
	for _, q := range n.plan.Queues { // by ascending delay
		if q.Delay > 0 && q.Delay <= delay {
			name = q.Name
		}
	}
	ctx, cancel := context.WithTimeout(ctx, 45*time.Second)
	defer cancel()
	open, err := lockAlone(ctx, n.gate)
	if err != nil {
		return name, err
	}
	defer open()
	// The broker's figures are seconds late (F5).
	if !rest(ctx, delay+6*time.Second) {
		return name, ctx.Err()
	}
	for empty := 0; empty < 3; empty++ {
		messages, err := n.messages(ctx, name)
		if err != nil {
			return name, err
		}
		if messages > 0 {
			empty = -1
		}
		if !rest(ctx, 2*time.Second) {
			return name, ctx.Err()
		}
	}
	return name, n.admin(func(ch *amqp.Channel) error {
		purged, err := ch.QueueDelete(name, false, false, false)
		if purged > 0 {
			err = errors.Join(err, fmt.Errorf("%d messages were inside", purged))
		}
		return err
	})
}

// messages is how many messages a queue has, with those that are held for dead-lettering.
func (n *nemesis) messages(ctx context.Context, queue string) (int, error) {
	out, err := n.cluster.Node(0).RunCtl(ctx, "list_queues", "--no-table-headers", "name", "messages")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(out) {
		if name, count, _ := strings.Cut(strings.TrimSpace(line), "\t"); name == queue {
			return strconv.Atoi(count)
		}
	}
	return 0, nil
}

// admin runs f on a channel of its own, past the proxies, on the first node that answers.
func (n *nemesis) admin(f func(*amqp.Channel) error) error {
	var errs []error
	for _, url := range n.cluster.URLs() {
		ch, hangUp, err := dial(url)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		defer hangUp()
		return f(ch)
	}
	return errors.Join(errs...)
}

// heal makes whole what a fault may have left broken, and declares again what was deleted, as an
// operator would.
func (n *nemesis) heal(ctx context.Context) error {
	for i := range n.cluster.Size() {
		_ = n.cluster.Thaw(i) // fails where it is down
		n.fronts[i].both(func(p *testbroker.Proxy) {
			p.Blackhole(false)
			p.HoldConfirms(false)
		})
	}
	err := n.up(ctx)
	for i := range n.cluster.Size() {
		err = errors.Join(err, n.cluster.Alarm(ctx, i, false))
	}
	return errors.Join(err, n.declare())
}

// declare declares the main queue and all of the plan.
func (n *nemesis) declare() error {
	return n.admin(func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(queueName, true, false, false, false,
			amqp.Table{"x-queue-type": "quorum"})
		for _, e := range n.plan.Exchanges {
			if err == nil {
				err = ch.ExchangeDeclare(e.Name, e.Kind, true, false, false, false, e.Arguments)
			}
		}
		for _, q := range n.plan.Queues {
			if err == nil {
				_, err = ch.QueueDeclare(q.Name, true, false, false, false, q.Arguments)
			}
		}
		for _, b := range n.plan.Bindings {
			switch {
			case err != nil:
			case b.ToExchange != "":
				err = ch.ExchangeBind(b.ToExchange, b.RoutingKey, b.Exchange, false, nil)
			default:
				err = ch.QueueBind(b.Queue, b.RoutingKey, b.Exchange, false, nil)
			}
		}
		return err
	})
}
