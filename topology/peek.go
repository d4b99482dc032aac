package topology

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/link"
	"github.com/millpond-go/millpond/internal/scan"
	"github.com/millpond-go/millpond/internal/wire"
)

// ErrUnsafePeek is returned by Peek where looking at a message may delete it in
// the end, or where it cannot be told that it does not.
var ErrUnsafePeek = errors.New("looking at its messages may delete them")

// harmlessLimit is the delivery limit from which looking counts as harmless.
const harmlessLimit = 1 << 20

// Peek returns copies of up to n messages at the head of a queue, a dead-letter
// or stranded one for example, as they are. They cannot be acked. All go back to
// their places at once, so that the order stays; afterwards they carry the
// redelivered flag. While Peek looks, nobody else gets them.
//
// Before RabbitMQ 4.3 every look counts against the delivery limit of a quorum
// queue: 4.0 deletes a message at the twenty-first, by default (F2). The queues
// that a Strategy declares have a limit that is out of reach (F21). On any other
// quorum queue Peek takes nothing and returns ErrUnsafePeek, unless the
// management API says that its limit is as large. Without that API it finds out
// by declaring the queue with the arguments of ours, which the broker compares;
// only where the queue is deleted in that very moment, this creates it.
//
// On a connection that is lost meanwhile the broker gives the messages back
// itself. One whose headers no longer fit into a frame ends the connection (F16):
// that is an error too, and harms nothing else.
func (c *Client) Peek(ctx context.Context, queue string, n int) ([]amqp.Delivery, error) {
	if n < 1 {
		return nil, fmt.Errorf("peek at queue %q: %d messages asked for, at least 1 is needed", queue, n)
	}
	found, err := c.peek(ctx, queue, n)
	if err != nil {
		return nil, fmt.Errorf("peek at queue %q: %w", queue, err)
	}
	return found, nil
}

func (c *Client) peek(ctx context.Context, queue string, n int) ([]amqp.Delivery, error) {
	if err := checkName("queue", queue); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, declareTimeout)
	defer cancel()
	conn, end, err := c.operate(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	if _, err := passive(ctx, conn.Do, queue); err != nil {
		return nil, err
	}
	if err := c.mayPeek(ctx, conn, queue); err != nil {
		return nil, err
	}
	looked := make(chan []amqp.Delivery, 1)
	err = conn.Do(ctx, func(ch *amqp.Channel) error {
		found, err := look(ctx, ch, queue, n)
		looked <- found
		return err
	})
	if err != nil {
		return nil, err
	}
	return <-looked, nil
}

// look takes without acking and gives all back at once, in their order.
func look(ctx context.Context, ch *amqp.Channel, queue string, n int) (found []amqp.Delivery, err error) {
	s := scan.New(ctx, ch, queue, n)
	for err == nil {
		var d amqp.Delivery
		var ok bool
		if d, ok, err = s.Next(); !ok {
			break
		}
		s.Keep(d.DeliveryTag)
		found = append(found, wire.Clone(&d))
	}
	// The end of a channel counts as a crash of whoever held the messages.
	if back := s.GiveBack(); err == nil {
		err = back
	}
	return found, err
}

// mayPeek returns ErrUnsafePeek unless a look at the queue's messages leaves them
// as far from their delivery limit as they were.
func (c *Client) mayPeek(ctx context.Context, conn *link.Conn, queue string, known ...Queue) error {
	version := serverVersion(conn)
	if version.atLeast(4, 3) {
		return nil // giving back does not count
	}
	m := c.manager(ctx)
	if info, ok := m.queue(queue); ok {
		facts := factsOf(info, version)
		facts.learnPolicies(queue, m)
		limit, _ := facts.deliveryLimit()
		if limit >= harmlessLimit {
			return nil
		}
		return fmt.Errorf("%w: its delivery limit is %d; raise it with a policy where the queue has no x-delivery-limit of its own, or move the messages to another queue", ErrUnsafePeek, limit)
	}
	harmless, err := c.declaredHarmless(ctx, conn, queue, known)
	switch {
	case err != nil:
		return err
	case harmless:
		return nil
	case m != nil && m.err != nil:
		return fmt.Errorf("%w, for it is none that the strategy has declared: %w", ErrUnsafePeek, m.err)
	}
	return fmt.Errorf("%w, for it is none that the strategy has declared, and AMQP does not show its delivery limit: configure WithManagement", ErrUnsafePeek)
}

// declaredHarmless reports whether the queue, which exists, has the arguments of
// one that a strategy declares to keep messages, of the known one with its name,
// or is a plain classic one.
func (c *Client) declaredHarmless(ctx context.Context, conn *link.Conn, queue string, known []Queue) (bool, error) {
	if c.opts.provisioned {
		return false, nil // nothing is ever declared
	}
	candidates := []amqp.Table{Quorum.keepArguments(), Classic.keepArguments(), {"x-queue-type": "classic"}}
	// How a strategy keeps the messages of one queue, it keeps those of others.
	if plan, err := c.strategy.Plan(queue, nil); err == nil {
		known = append(slices.Clip(known), plan.Queues...)
	}
	for _, q := range known {
		limit, _ := q.Arguments["x-delivery-limit"].(int64)
		if (q.Delay == 0 || q.Name == queue) && (limit >= harmlessLimit || q.Arguments["x-queue-type"] == string(Classic)) {
			candidates = append([]amqp.Table{q.Arguments}, candidates...)
		}
	}
	for _, args := range candidates {
		err := conn.Do(ctx, func(ch *amqp.Channel) error {
			_, err := ch.QueueDeclare(queue, true, false, false, false, args)
			return err
		})
		switch {
		case err == nil:
			return true, nil
		case isCode(err, amqp.AccessRefused):
			return false, nil
		case !isCode(err, amqp.PreconditionFailed):
			return false, err
		}
	}
	return false, nil
}

// brokerVersion is the server's version as far as its behaviour depends on it.
type brokerVersion struct{ major, minor int }

func serverVersion(conn *link.Conn) brokerVersion {
	text, _ := conn.Properties["version"].(string)
	major, rest, _ := strings.Cut(text, ".")
	minor, _, _ := strings.Cut(rest, ".")
	var v brokerVersion
	v.major, _ = strconv.Atoi(major) // 0 where it cannot be told: the oldest
	v.minor, _ = strconv.Atoi(minor)
	return v
}

func (v brokerVersion) atLeast(major, minor int) bool {
	return v.major > major || v.major == major && v.minor >= minor
}
