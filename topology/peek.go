package topology

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/link"
	"github.com/millpond-go/millpond/internal/scan"
	"github.com/millpond-go/millpond/internal/wire"
)

// ErrUnsafePeek is returned by Peek where looking at a message may delete it, or
// where nothing proves that it does not.
var ErrUnsafePeek = errors.New("looking at its messages may delete them")

// Peek returns copies of up to n messages at the head of a queue, a dead-letter
// or stranded one for example, as they are. They cannot be acked. All go back to
// their places at once, so that the order stays; afterwards they carry the
// redelivered flag. While Peek looks, no other client gets them.
//
// Looks count against the delivery limit of a quorum queue: each one before
// RabbitMQ 4.3, and from there on each one that is cut off (F34). At the limit the
// broker deletes the message. So Peek takes nothing from a quorum queue and returns
// ErrUnsafePeek, unless the limit is known to be out of reach: by the argument of
// the queue and by all policies, because the smallest number counts (F30). Queues that a
// Strategy declares have such an argument (F21). Policies are shown by the
// management API alone: configure WithManagement, or WithoutPolicyCheck. Classic
// queues have no limit and need neither.
//
// Where messages are not back in the queue within 20 s, and no consumer takes them,
// the error says how many are missing and why that may be.
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
	if missing := (*scan.MissingError)(nil); errors.As(err, &missing) {
		err = c.givenBack(ctx, conn, queue, missing.Messages)
	}
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
	// The end of a channel counts as a crash of the process that held the messages.
	if back := s.GiveBack(); err == nil {
		err = back
	}
	return found, err
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
