package doctor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/audit"
	"github.com/millpond-go/millpond/internal/experiment"
	"github.com/millpond-go/millpond/internal/link"
	"github.com/millpond-go/millpond/topology"
)

// bench is the place of one check: a connection, and a channel with confirms. A trial that fails
// gives the answer Differs, and a skipped one Unknown. Its lines are the observations.
type bench struct {
	*examiner
	*experiment.Trial
	ctx     context.Context
	conn    *link.Conn
	ch      *amqp.Channel
	returns chan amqp.Return // the returned messages of put
	closed  chan *amqp.Error
}

// bench connects. The connection ends with ctx, because amqp091-go waits for most answers without
// a limit.
func (e *examiner) bench(ctx context.Context) (b *bench, end func(), err error) {
	l, err := link.Open(ctx, e.link)
	if err != nil {
		return nil, nil, err
	}
	conn, err := l.Conn(ctx)
	if err != nil {
		l.Close()
		return nil, nil, err
	}
	stop := context.AfterFunc(ctx, func() { conn.Kill(context.Cause(ctx)) })
	b = &bench{
		examiner: e, Trial: experiment.New(ctx, "", e.patience), ctx: ctx, conn: conn,
	}
	if b.ch, err = conn.Channel(); err == nil {
		b.returns = b.ch.NotifyReturn(make(chan amqp.Return, manyMessages))
		b.closed = b.ch.NotifyClose(make(chan *amqp.Error, 1))
		err = b.ch.Confirm(false)
	}
	if err != nil {
		stop()
		l.Close()
		return nil, nil, err
	}
	return b, func() { stop(); l.Close() }, nil
}

// outcome makes an experiment.
func (b *bench) outcome(f func(b *bench)) (Status, string, error) {
	b.Run(func() { f(b) })
	seen := strings.Join(b.Lines, "; ")
	switch {
	case b.Failed:
		return Differs, seen, b.Err
	case b.Skipped:
		return Unknown, seen, nil
	}
	return OK, seen, nil
}

// must ends the check if there is an error.
func (b *bench) must(err error) { b.Must(err, "it could not be tried") }

// require ends the check with one text for both outcomes.
func (b *bench) require(ok bool, format string, args ...any) {
	if !ok {
		b.Fatalf(format, args...)
	}
	b.Logf(format, args...)
}

// tryDeclare makes a scratch queue. It is to be removed also where the answer does not arrive.
func (b *bench) tryDeclare(q topology.Queue) error {
	args := maps.Clone(q.Arguments)
	if args == nil {
		args = amqp.Table{}
	}
	args["x-expires"] = b.lifetime.Milliseconds()
	b.keep(&b.queues, q.Name)
	err := b.conn.Do(b.ctx, func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(q.Name, true, false, false, false, args)
		return err
	})
	if audit.IsCode(err, amqp.AccessRefused) {
		b.forget(q.Name)
	}
	return err
}

func (b *bench) declare(q topology.Queue) { b.must(b.tryDeclare(q)) }

// build declares all of a plan. Its exchanges go with their last binding, and so with their queues.
// A run that is killed between an exchange and its first binding leaves the exchange, which holds
// nothing.
func (b *bench) build(plan topology.Plan) {
	for _, q := range plan.Queues {
		b.declare(q)
	}
	for _, e := range plan.Exchanges {
		b.keep(&b.exchanges, e.Name)
		b.must(b.conn.Do(b.ctx, func(ch *amqp.Channel) error {
			err := ch.ExchangeDeclare(e.Name, e.Kind, true, true, false, true, e.Arguments)
			for _, bound := range plan.Bindings {
				if err == nil && bound.Exchange == e.Name {
					err = ch.QueueBind(bound.Queue, bound.RoutingKey, e.Name, false, nil)
				}
			}
			return err
		}))
	}
}

func (e *examiner) keep(list *[]string, name string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	*list = append(*list, name)
}

func (e *examiner) forget(queue string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.queues = slices.DeleteFunc(e.queues, func(q string) bool { return q == queue })
}

// put publishes a message, mandatory, and reports whether a queue has taken it.
func (b *bench) put(exchange, key string, m amqp.Publishing) (bool, error) {
	m.DeliveryMode = amqp.Persistent
	confirm, err := b.ch.PublishWithDeferredConfirmWithContext(b.ctx, exchange, key, true, false, m)
	if err != nil {
		return false, err
	}
	acked, err := confirm.WaitContext(b.ctx)
	switch {
	case err != nil:
		return false, err
	case !acked && b.ch.IsClosed():
		return false, ending(<-b.closed)
	}
	select {
	case <-b.returns:
		return false, nil
	default:
		return acked, nil
	}
}

// enter is put for a message that a queue must take.
func (b *bench) enter(exchange, key string, m amqp.Publishing) {
	taken, err := b.put(exchange, key, m)
	if b.must(err); !taken {
		b.Fatalf("queue %q has refused a message", key)
	}
}

// ending is the error of a channel that has ended; why is nil where the broker has said nothing.
func ending(why *amqp.Error) error {
	if why == nil {
		return errors.New("the channel was closed")
	}
	return why
}

// putAll publishes n messages to a queue and returns how many it has taken.
func (b *bench) putAll(queue string, n int) (taken int) {
	for i := range n {
		ok, err := b.put("", queue, amqp.Publishing{MessageId: fmt.Sprint(i)})
		if b.must(err); ok {
			taken++
		}
	}
	return taken
}

// taken is a message with the time when it was got.
type taken struct {
	amqp.Delivery
	at time.Time
}

// take gets up to n messages of a queue within the limit, and acks them.
func (b *bench) take(queue string, n int, limit time.Duration) (list []taken) {
	b.Until(limit, func() bool {
		for len(list) < n {
			d, ok, err := b.ch.Get(queue, true)
			if b.must(err); !ok {
				return false
			}
			list = append(list, taken{d, time.Now()})
		}
		return true
	})
	return list
}

// ready is the number of messages that the broker would deliver.
func (b *bench) ready(queue string) (int, error) {
	found, err := audit.Passive(b.ctx, b.conn.Do, queue)
	return found.Messages, err
}

// empties waits until the wait of the messages in a queue is over and none is ready.
func (b *bench) empties(queue topology.Queue) {
	// A count may be old: without this pause it may be from before the messages.
	b.Pause(queue.Delay + time.Second)
	left := 0
	empty := b.Until(arrival, func() bool {
		var err error
		left, err = b.ready(queue.Name)
		b.must(err)
		return left == 0
	})
	if !empty {
		b.must(fmt.Errorf("%d messages have not expired within %v", left, arrival))
	}
}

// removal bounds the removal of the scratch queues. A busy broker takes a second for each of them.
const removal = time.Minute

// remove deletes everything that the run has declared. The error names the rest.
func (e *examiner) remove(ctx context.Context) error {
	if len(e.queues)+len(e.exchanges) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, removal)
	defer cancel()
	b, end, err := e.bench(ctx)
	if err != nil {
		return e.left(append(e.queues, e.exchanges...), err)
	}
	defer end()
	var left []string
	var problems []error
	each := func(names []string, remove func(ch *amqp.Channel, name string) error) {
		for _, name := range names {
			err := b.conn.Do(ctx, func(ch *amqp.Channel) error { return remove(ch, name) })
			if err != nil && !audit.IsCode(err, amqp.NotFound) {
				left, problems = append(left, name), append(problems, err)
			}
		}
	}
	each(e.queues, func(ch *amqp.Channel, name string) error {
		_, err := ch.QueueDelete(name, false, false, false)
		return err
	})
	each(e.exchanges, func(ch *amqp.Channel, name string) error {
		return ch.ExchangeDelete(name, false, false)
	})
	if len(left) == 0 {
		return nil
	}
	return e.left(left, problems[0])
}

func (e *examiner) left(names []string, err error) error {
	return fmt.Errorf("these scratch queues and exchanges could not be removed: %s; they expire by "+
		"themselves within %v: %w", strings.Join(names, ", "), e.lifetime, err)
}
