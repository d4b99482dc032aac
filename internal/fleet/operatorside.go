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
	// ErrOpen says that the brake was not stopped, as far as the broker and the processes show.
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
	user string // of its tokens and news; see Config.ControlUsers
	name string
	// refused is the process that does not believe the user; "" for none.
	refused string
}

func newOperator(conn *link.Conn, name string) (*operator, error) {
	if err := CheckName(name); err != nil {
		return nil, err
	}
	o := &operator{conn: conn, id: "operator/" + rand.Text(), user: conn.User(), name: name}
	return o, nil
}

// do is conn.Do. A broker that names its users by tokens knows this one by another name, and
// refuses a message with the name: then the messages have none.
func (o *operator) do(ctx context.Context, f func(*amqp.Channel) error) error {
	const foreign = amqp.PreconditionFailed
	reason := make(chan int, 1)
	err := o.conn.Do(ctx, func(ch *amqp.Channel) error {
		closed := ch.NotifyClose(make(chan *amqp.Error, 1))
		err := f(ch)
		if ch.IsClosed() {
			if why := <-closed; why != nil {
				reason <- why.Code
			}
		}
		return err
	})
	if err != nil && o.user != "" && len(reason) > 0 && <-reason == foreign {
		o.user = ""
		err = o.conn.Do(ctx, f)
	}
	return err
}

// believed returns an error if a process has refused the news.
func (o *operator) believed() error {
	if o.refused == "" {
		return nil
	}
	return fmt.Errorf("no instance believes it: %q ignores the user %q, because its "+
		"WithControlUsers names others", o.refused, o.user)
}

// StopByHand stops a brake: it publishes a token and tells the news. When it returns nil the
// broker has confirmed the token, and no process has refused it. It waits a second at most for the
// process that takes the token. shared reports whether a process listens. The broker does not show
// how many, because it counts the one active consumer alone.
func StopByHand(
	ctx context.Context, conn *link.Conn, state header.BrakeState,
) (shared bool, err error) {
	o, err := newOperator(conn, state.Name)
	if err != nil {
		return false, err
	}
	state.Stopped, state.Manual = true, true
	listening := make(chan bool, 1)
	err = o.do(ctx, func(ch *amqp.Channel) error {
		if err := Declare(ch, o.name); err != nil {
			return err
		}
		q, err := ch.QueueDeclarePassive(Prefix+o.name, true, false, false, false, nil)
		if err != nil {
			return err
		}
		queue, news, err := o.hearAll(ch)
		if err != nil {
			return err
		}
		token, err := Token(rand.Text(), o.id, state)
		if err != nil {
			return err
		}
		token.UserId = o.user
		if err := confirmed(ctx, ch, Prefix+o.name, token); err != nil {
			return fmt.Errorf("publish the token of brake %q: %w", o.name, err)
		}
		if listening <- q.Consumers > 0; q.Consumers == 0 {
			return nil
		}
		if err := o.tell(ctx, ch, Stopped, queue, state); err != nil {
			return err
		}
		return o.awaitStop(ctx, ch, news, state)
	})
	if errors.Is(err, errNobody) {
		// The consumer of a question that has just ended was counted.
		if q, failed := o.queue(ctx); failed == nil && q.Consumers == 0 {
			return false, nil
		}
		err = o.believed()
	}
	if err != nil {
		return false, err
	}
	return <-listening, nil
}

// errNobody: no process has taken the stop, nor asked for it.
var errNobody = errors.New("no process reacts")

// awaitStop answers the processes that ask whether there is a token, until one has it.
func (o *operator) awaitStop(
	ctx context.Context, ch *amqp.Channel, news <-chan amqp.Delivery, state header.BrakeState,
) error {
	var failed error
	asked := false
	taken, err := o.await(ctx, news, func(d amqp.Delivery, heard header.BrakeState) bool {
		if d.Type == Hello && isPart(o.name, d.ReplyTo) {
			msg, err := newsTold(o.id, state, 0)
			msg.UserId = o.user
			if err == nil {
				err = ch.PublishWithContext(ctx, "", d.ReplyTo, false, false, msg)
			}
			asked, failed = true, err
		}
		return failed != nil || d.Type == Stopped && heard.Until.Equal(state.Until)
	})
	if taken || asked || err != nil {
		return errors.Join(err, failed)
	}
	return errNobody
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
	if kind != Hello {
		msg.UserId = o.user
	}
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

// hearAll is listen, and hears the news for all processes too.
func (o *operator) hearAll(ch *amqp.Channel) (
	queue string, news <-chan amqp.Delivery, err error,
) {
	if queue, news, err = o.listen(ch); err == nil {
		err = ch.QueueBind(queue, "", Prefix+o.name, false, nil)
	}
	if err != nil {
		err = fmt.Errorf("brake %q: %w", o.name, err)
	}
	return queue, news, err
}

// await gives the news to take until it is done, for proberLimit at most.
func (o *operator) await(
	ctx context.Context, news <-chan amqp.Delivery,
	take func(d amqp.Delivery, state header.BrakeState) (done bool),
) (done bool, err error) {
	over := time.NewTimer(proberLimit)
	defer over.Stop()
	for {
		select {
		case d, open := <-news:
			if !open {
				return false, errClosed
			}
			state, ok := Read(o.name, d)
			if ok && d.Type == Refused {
				o.refused = d.AppId
			}
			if ok && d.AppId != o.id && take(d, state) {
				return true, nil
			}
		case <-over.C:
			return false, nil
		case <-ctx.Done():
			return false, context.Cause(ctx)
		}
	}
}

// Ask returns the state of a brake: the answer of the process that probes, otherwise the state
// that the queue and the other processes show. It waits a second for the answers. Where a token is
// there, and no process, the token is looked at and stays. A brake that was never declared is
// ErrNoBrake.
//
// A process that probes and hangs does not answer, and AMQP does not show the token that it has.
// Then the state is Unknown if other processes are stopped. Without others the brake seems to be
// open until the broker drops the process.
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
		state.Unknown = state.Stopped
		return state, err
	case q.Consumers > 0:
		state.Stopped = true
		return state, nil
	}
	state, err = o.takeTokens(ctx, q.Messages, func(last amqp.Delivery) error {
		return last.Nack(true, true)
	})
	// Until the tokens are back the brake seems to be open.
	for end := time.Now().Add(time.Second); err == nil && time.Now().Before(end); {
		if now, failed := o.queue(ctx); failed != nil || now.Messages >= q.Messages {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	return state, err
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

// hello asks the process that probes. answered is false where it has not answered within a second.
// Then the state is from another process, if that is stopped.
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
		state := header.BrakeState{Name: o.name}
		ok, err := o.await(ctx, news, func(d amqp.Delivery, told header.BrakeState) bool {
			if d.Type == Stopped || d.Type == Told {
				state = told
			}
			return d.Type == Stopped
		})
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

// StartByHand opens a brake: it asks the process that probes, and where no process is up it
// removes the tokens itself. Where neither a process that probes nor a token is seen, it tells all
// processes to start. It returns when the brake is open, or an error after five seconds. by names
// the operator. ErrOpen says that it was not stopped before, as far as Ask and the tokens show.
func StartByHand(ctx context.Context, conn *link.Conn, name, by string) error {
	before, err := Ask(ctx, conn, name)
	if err != nil {
		return err
	}
	o, err := newOperator(conn, name)
	if err != nil {
		return err
	}
	return o.do(ctx, func(ch *amqp.Channel) error { return o.start(ctx, ch, by, before) })
}

// start asks again each second, because another process may get the token meanwhile.
func (o *operator) start(
	ctx context.Context, ch *amqp.Channel, by string, before header.BrakeState,
) error {
	if err := Declare(ch, o.name); err != nil { // the exchange may be gone
		return err
	}
	queue, news, err := o.hearAll(ch)
	if err != nil {
		return err
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
			before.Stopped = true // a token that another operator has just given back was not seen
			continue              // another token may have come
		}
		if err := o.tell(ctx, ch, Start, queue, order); err != nil {
			return fmt.Errorf("brake %q: %w", o.name, err)
		}
		seen := q.Messages > 0 || before.Stopped && !before.Unknown
		if q.Consumers > 0 {
			started, err := o.await(ctx, news, func(d amqp.Delivery, _ header.BrakeState) bool {
				return d.Type == Started
			})
			if started || err != nil {
				return err
			}
			if err := o.believed(); err != nil {
				return err
			}
		}
		if q.Consumers == 0 || !seen { // the tokens are gone
			if err := o.tell(ctx, ch, Started, "", order); err != nil || before.Stopped {
				return err
			}
			return fmt.Errorf("%w: %q", ErrOpen, o.name)
		}
	}
	who := "the process that probes"
	if before.Prober != "" {
		who = fmt.Sprintf("the process that probes, %q,", before.Prober)
	}
	return fmt.Errorf("brake %q is still stopped: %s has not answered within %v. "+
		"Restart that process, so that another one gets the token, and try again",
		o.name, who, startLimit)
}
