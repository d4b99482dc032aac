package topology

import (
	"context"
	"fmt"
	"slices"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/link"
)

// Connect opens a connection of its own with the client's configuration, named
// "<name>: millpond operator", for tools that read queues: what ends it harms
// nothing else. It ends within ctx or the connect timeout. The connection does
// not come back by itself; end closes it, bounded in time whatever the broker
// does. The package operate does its work on it.
func (c *Client) Connect(ctx context.Context) (conn *amqp.Connection, end func(), err error) {
	own, end, err := c.operate(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("connect: %w", err)
	}
	return own.Connection, end, nil
}

// Publish publishes msg, mandatory, and returns nil when the broker has confirmed
// it and a queue took it. The headers get a nonce (middleware.PublishKey). Many
// calls may be under way at once. After an error that is ErrOutcomeUnknown there
// may be a copy; after any other there is none. Nothing is declared: where no
// queue takes the message, the error is ErrUnroutable.
func (c *Client) Publish(ctx context.Context, exchange, routingKey string, msg amqp.Publishing) error {
	wait, err := c.StartPublish(ctx, exchange, routingKey, msg)
	if err == nil {
		err = wait()
	}
	return err
}

// StartPublish is Publish in two steps, for many publishes in their order: it
// returns when msg is written, and wait when the broker has answered. wait must
// be called, once; both together take no longer than WithConfirmTimeout. At most 200
// publishes of a Client are under way at once: one goroutine that starts more before
// it calls the first wait gets an error. At a named exchange that has not worked yet,
// StartPublish returns only when the broker has answered.
func (c *Client) StartPublish(ctx context.Context, exchange, routingKey string, msg amqp.Publishing) (wait func() error, err error) {
	confirmed, err := c.publisher.Start(ctx, exchange, routingKey, msg)
	if err != nil {
		return nil, publishError(err)
	}
	return func() error { return publishError(confirmed()) }, nil
}

// Declare declares what plan needs, which is idempotent and changes nothing that
// exists: where something has other arguments the error is a *ConflictError, but
// for a dead-letter queue, which is used as it is. The plan's own queue is the
// user's and is not declared; a plan with a binding to it (Shared) needs it to
// exist. A plan that ValidatePlan refuses is not declared, unless all that it holds are
// queues that keep messages. It ends within ctx, and after 90 s at the latest. With
// WithPreProvisioned nothing is declared: what is missing is the error.
func (c *Client) Declare(ctx context.Context, plan Plan) error {
	if err := ValidatePlan(plan); err != nil && !plan.onlyKeeps() {
		return fmt.Errorf("declare: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, declareTimeout)
	defer cancel()
	conn, end, err := c.operate(ctx)
	if err != nil {
		return fmt.Errorf("declare plan of queue %q: %w", plan.Queue, err)
	}
	defer end()
	if c.opts.provisioned {
		err = checkExists(ctx, conn.Do, plan)
	} else {
		err = declare(ctx, conn.Do, plan, c.opts.logger)
	}
	if err != nil {
		return fmt.Errorf("declare plan of queue %q: %w", plan.Queue, err)
	}
	return nil
}

// onlyKeeps reports whether the plan has no part in retries: it declares queues that
// keep messages, and nothing else.
func (p Plan) onlyKeeps() bool {
	waits := slices.ContainsFunc(p.Queues, func(q Queue) bool { return q.Delay > 0 })
	return p.Queue != "" && len(p.Queues) > 0 && !waits &&
		len(p.Exchanges)+len(p.Bindings)+len(p.WaitSteps) == 0 && p.Dead == (Route{}) && p.Via == nil && p.Levels == nil
}

// CheckPeek returns nil where looking at the messages of a queue brings none of
// them nearer to its delivery limit, else ErrUnsafePeek with the reason and the
// way out; see Peek, which asks the same. It asks the broker anew at each call. The
// arguments that plan has for the queue, if it has the queue, spare questions.
func (c *Client) CheckPeek(ctx context.Context, plan Plan, queue string) error {
	return c.onQueue(ctx, queue, func(ctx context.Context, conn *link.Conn) error {
		return c.mayPeek(ctx, conn, queue, plan.Queues...)
	})
}

// CheckGivenBack returns an error about messages of a queue that are missing after a
// look. The error says how many they are and which reason the broker has, as far as
// that is known. It returns nil where messages may leave the queue by themselves,
// because an argument or a policy bounds their life or their number, or holds
// messages that were given back for a while.
func (c *Client) CheckGivenBack(ctx context.Context, plan Plan, queue string, missing int) error {
	return c.onQueue(ctx, queue, func(ctx context.Context, conn *link.Conn) error {
		return c.givenBack(ctx, conn, queue, missing, plan.Queues...)
	})
}

// onQueue asks about a queue that exists, on a connection of its own.
func (c *Client) onQueue(ctx context.Context, queue string, ask func(context.Context, *link.Conn) error) error {
	ctx, cancel := context.WithTimeout(ctx, declareTimeout)
	defer cancel()
	if err := checkName("queue", queue); err != nil {
		return err
	}
	conn, end, err := c.operate(ctx)
	if err != nil {
		return fmt.Errorf("look at queue %q: %w", queue, err)
	}
	defer end()
	if _, err = passive(ctx, conn.Do, queue); err == nil {
		err = ask(ctx, conn)
	}
	if err != nil {
		return fmt.Errorf("look at queue %q: %w", queue, err)
	}
	return nil
}

// HasManagement reports whether WithManagement has named the management API.
func (c *Client) HasManagement() bool { return c.opts.management != "" }
