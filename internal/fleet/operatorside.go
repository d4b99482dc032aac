package fleet

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/link"
	"github.com/millpond-go/millpond/middleware/header"
)

var (
	// ErrNoBrake says that no process and no operator has declared the brake.
	ErrNoBrake = errors.New("there is no such brake")
	// ErrOpen says that the brake is not stopped.
	ErrOpen = errors.New("the brake is not stopped")

	errClosed = errors.New("the broker has closed the channel: try again")
)

const (
	// proberLimit is how long an operator waits for the process that probes. It answers at once.
	proberLimit = time.Second
	// startLimit is how long an operator waits until the brake is open.
	startLimit = 5 * time.Second
)

// operator is one call: its connection, and the brake that it is about.
type operator struct {
	conn *link.Conn
	id   string // the sender of its news
	name string
}

func newOperator(conn *link.Conn, name string) (*operator, error) {
	return &operator{conn: conn, id: "operator/" + rand.Text(), name: name}, CheckName(name)
}

// StopByHand stops a brake: it publishes a token and tells the news. When it returns nil the broker
// has confirmed the token. shared reports whether a process listens. The broker does not show how
// many, because it counts the one active consumer alone.
func StopByHand(
	ctx context.Context, conn *link.Conn, state header.BrakeState,
) (shared bool, err error) {
	o, err := newOperator(conn, state.Name)
	if err != nil {
		return false, err
	}
	state.Stopped, state.Manual = true, true
	token, err := Token(rand.Text(), o.id, state)
	if err != nil {
		return false, err
	}
	listening := make(chan bool, 1)
	err = conn.Do(ctx, func(ch *amqp.Channel) error {
		if err := Declare(ch, o.name); err != nil {
			return err
		}
		q, err := ch.QueueDeclarePassive(Prefix+o.name, true, false, false, false, nil)
		if err != nil {
			return err
		}
		listening <- q.Consumers > 0
		if err := confirmed(ctx, ch, Prefix+o.name, token); err != nil {
			return fmt.Errorf("publish the token of brake %q: %w", o.name, err)
		}
		return o.tell(ctx, ch, Stopped, "", state)
	})
	if err != nil {
		return false, err
	}
	return <-listening, nil
}

// confirmed publishes a message to a queue, and returns nil when the queue has it.
func confirmed(ctx context.Context, ch *amqp.Channel, queue string, msg amqp.Publishing) error {
	if err := ch.Confirm(false); err != nil {
		return err
	}
	returned := ch.NotifyReturn(make(chan amqp.Return, 1))
	confirm, err := ch.PublishWithDeferredConfirmWithContext(ctx, "", queue, true, false, msg)
	if err != nil {
		return err
	}
	acked, err := confirm.WaitContext(ctx)
	switch {
	case err != nil:
		return err
	case !acked:
		return errors.New("the broker has refused it: try again")
	}
	select {
	case <-returned: // the broker returns a message before it confirms it
		return fmt.Errorf("queue %q is gone: try again", queue)
	default:
		return nil
	}
}

// tell publishes news. A brake whose exchange is gone closes the channel.
func (o *operator) tell(
	ctx context.Context, ch *amqp.Channel, kind, replyTo string, state header.BrakeState,
) error {
	msg, err := News(kind, o.id, state)
	if err != nil {
		return err
	}
	msg.ReplyTo = replyTo
	return ch.PublishWithContext(ctx, Prefix+o.name, "", false, false, msg)
}

// listen consumes a queue that ends with the channel.
func (o *operator) listen(ch *amqp.Channel) (queue string, news <-chan amqp.Delivery, err error) {
	queue = Prefix + o.name + "." + rand.Text()
	if _, err = ch.QueueDeclare(queue, false, true, true, false, nil); err != nil {
		return "", nil, fmt.Errorf("declare queue %q: %w", queue, err)
	}
	news, err = ch.Consume(queue, "", true, true, false, false, nil)
	return queue, news, err
}

// await returns the first news of a kind, or ok false after limit.
func (o *operator) await(
	ctx context.Context, news <-chan amqp.Delivery, kind string, limit time.Duration,
) (state header.BrakeState, ok bool, err error) {
	over := time.NewTimer(limit)
	defer over.Stop()
	for {
		select {
		case d, open := <-news:
			if !open {
				return state, false, errClosed
			}
			if state, ok = Read(o.name, d); ok && d.Type == kind {
				return state, true, nil
			}
		case <-over.C:
			return header.BrakeState{Name: o.name}, false, nil
		case <-ctx.Done():
			return state, false, context.Cause(ctx)
		}
	}
}

// Ask returns the state of a brake: the answer of the process that probes, otherwise the state that
// the queue shows. It waits a second for the answer. Where a token is there, and no process, the
// token is looked at and stays. A brake that was never declared is ErrNoBrake.
//
// A process that probes and hangs does not answer, and AMQP does not show the token that it has.
// Then the brake seems to be open until the broker drops the process.
func Ask(ctx context.Context, conn *link.Conn, name string) (header.BrakeState, error) {
	o, err := newOperator(conn, name)
	if err != nil {
		return header.BrakeState{Name: name}, err
	}
	if _, err := o.queue(ctx); err != nil {
		return header.BrakeState{Name: name}, err
	}
	state, answered, err := o.hello(ctx)
	if err != nil || answered {
		return state, err
	}
	q, err := o.queue(ctx)
	switch {
	case err != nil || q.Messages == 0:
		return header.BrakeState{Name: name}, err
	case q.Consumers > 0:
		return header.BrakeState{Name: name, Stopped: true}, nil
	}
	return o.takeTokens(ctx, q.Messages, func(last amqp.Delivery) error {
		return last.Nack(true, true)
	})
}

// queue looks at the queue of the token: ready messages and consumers.
func (o *operator) queue(ctx context.Context) (amqp.Queue, error) {
	found := make(chan amqp.Queue, 1)
	err := o.conn.Do(ctx, func(ch *amqp.Channel) error {
		q, err := ch.QueueDeclarePassive(Prefix+o.name, true, false, false, false, nil)
		found <- q
		return err
	})
	var answer *amqp.Error
	if errors.As(err, &answer) && answer.Code == amqp.NotFound {
		return amqp.Queue{}, fmt.Errorf("%w: %q (queue %q)", ErrNoBrake, o.name, Prefix+o.name)
	}
	if err != nil {
		return amqp.Queue{}, fmt.Errorf("brake %q: %w", o.name, err)
	}
	return <-found, nil
}

// hello asks the process that probes. answered is false where none has answered within a second.
func (o *operator) hello(ctx context.Context) (state header.BrakeState, answered bool, err error) {
	type answer struct {
		state header.BrakeState
		ok    bool
	}
	found := make(chan answer, 1)
	err = o.conn.Do(ctx, func(ch *amqp.Channel) error {
		queue, news, err := o.listen(ch)
		if err != nil {
			return err
		}
		if err := o.tell(ctx, ch, Hello, queue, header.BrakeState{Name: o.name}); err != nil {
			return err
		}
		state, ok, err := o.await(ctx, news, Stopped, proberLimit)
		if errors.Is(err, errClosed) {
			err = nil // the exchange is gone: no process can answer
		}
		found <- answer{state, ok}
		return err
	})
	if err != nil {
		return header.BrakeState{Name: o.name}, false, fmt.Errorf("brake %q: %w", o.name, err)
	}
	a := <-found
	return a.state, a.ok, nil
}

// takeTokens takes n tokens and gives the last of them to settle, which settles all of them. It
// returns the state that counts. Where another consumer came first it gets none, and the state is
// Stopped and no more.
func (o *operator) takeTokens(
	ctx context.Context, n int, settle func(last amqp.Delivery) error,
) (header.BrakeState, error) {
	taken := make(chan header.BrakeState, 1)
	err := o.conn.Do(ctx, func(ch *amqp.Channel) error {
		tokens, err := ch.ConsumeWithContext(ctx, Prefix+o.name, "", false, false, false, false, nil)
		if err != nil {
			return err
		}
		state := header.BrakeState{Name: o.name, Stopped: true}
		over := time.NewTimer(proberLimit)
		defer over.Stop()
		for i := range n {
			select {
			case d, open := <-tokens:
				if !open {
					return amqp.ErrClosed
				}
				if read, ok := Read(o.name, d); ok {
					state = Merge(read, state)
				}
				if i == n-1 {
					err = settle(d)
				}
			case <-over.C: // the channel gives back the tokens that it has
				taken <- header.BrakeState{Name: o.name, Stopped: true}
				return nil
			}
		}
		state.Stopped, state.Prober = true, ""
		taken <- state
		return err
	})
	if err != nil {
		return header.BrakeState{Name: o.name}, fmt.Errorf("tokens of brake %q: %w", o.name, err)
	}
	return <-taken, nil
}

// StartByHand opens a brake: it asks the process that probes, and where no process is up it removes
// the tokens itself. It returns when the brake is open, or an error after five seconds. by names
// the operator. A brake that is not stopped is ErrOpen.
func StartByHand(ctx context.Context, conn *link.Conn, name, by string) error {
	before, err := Ask(ctx, conn, name)
	switch {
	case err != nil:
		return err
	case !before.Stopped:
		return fmt.Errorf("%w: %q", ErrOpen, name)
	}
	o, err := newOperator(conn, name)
	if err != nil {
		return err
	}
	return conn.Do(ctx, func(ch *amqp.Channel) error { return o.start(ctx, ch, by, before.Prober) })
}

// start asks again each second, because another process may get the token meanwhile.
func (o *operator) start(ctx context.Context, ch *amqp.Channel, by, prober string) error {
	if err := Declare(ch, o.name); err != nil { // the exchange may be gone
		return err
	}
	queue, news, err := o.listen(ch)
	if err == nil {
		err = ch.QueueBind(queue, "", Prefix+o.name, false, nil)
	}
	if err != nil {
		return fmt.Errorf("brake %q: %w", o.name, err)
	}
	order := header.BrakeState{Name: o.name, By: by, Since: time.Now().UTC()}
	for limit := time.Now().Add(startLimit); time.Now().Before(limit); {
		q, err := o.queue(ctx)
		if err != nil {
			return err
		}
		if q.Consumers == 0 && q.Messages > 0 {
			_, err := o.takeTokens(ctx, q.Messages, func(last amqp.Delivery) error {
				return last.Ack(true)
			})
			if err != nil {
				return err
			}
			continue // another token may have come
		}
		if q.Consumers == 0 { // the tokens are gone
			return o.tell(ctx, ch, Started, "", order)
		}
		if err := o.tell(ctx, ch, Start, "", order); err != nil {
			return fmt.Errorf("brake %q: %w", o.name, err)
		}
		if _, started, err := o.await(ctx, news, Started, proberLimit); started || err != nil {
			return err
		}
	}
	who := "the process that probes"
	if prober != "" {
		who = fmt.Sprintf("the process that probes, %q,", prober)
	}
	return fmt.Errorf("brake %q is still stopped: %s has not answered within %v. "+
		"Restart that process, so that another one gets the token, and try again",
		o.name, who, startLimit)
}
