package operate

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"slices"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/audit"
	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/internal/wire"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
)

// StrandedMessage is a message in a stranded queue: its wait was over, and it found no way to its
// queue.
type StrandedMessage struct {
	// Letter is the message with its retry state. Queue is the queue that it waited for, as its
	// headers name it, and DeadAt the time at which it was stranded, as the broker noted it; both are
	// zero where that was not noted. Attempts counts the failures so far. Reason is empty.
	Letter
	// WaitQueue is the wait queue that it came from; empty where that was not noted.
	WaitQueue string `json:"wait_queue,omitempty"`
	// Cause says why the message does not reach its queue, as far as the broker shows it now.
	Cause Cause `json:"cause,omitempty"`
	// Why is the cause in words, with names.
	Why string `json:"why,omitempty"`
}

// Stranded returns the messages of a stranded queue that filter chooses, oldest first, up to limit
// of them if it is not 0. queue is the queue's name: "millpond.stranded" unless the strategy has
// another Prefix. Since and Until of the filter bound the time at which a message was stranded.
//
// A message is read as Dead reads it. For the cause, AMQP is asked whether its queue exists, and
// the management API for the binding; see Cause.
func (o *Operator) Stranded(
	ctx context.Context, queue string, filter Filter, limit int,
) iter.Seq2[StrandedMessage, error] {
	return func(yield func(StrandedMessage, error) bool) {
		err := o.withCauses(ctx, func(c *causes) error {
			show := func(l Letter, _ error) bool { return yield(c.of(l), nil) }
			return o.list(ctx, topology.Plan{}, queue, -1, newStranded, filter, limit, show)
		})
		if err != nil {
			yield(StrandedMessage{}, strandedError("look at", queue, err))
		}
	}
}

// DiscardStranded throws messages of a stranded queue away, as Discard does with dead letters.
func (o *Operator) DiscardStranded(
	ctx context.Context, queue string, options MoveOptions,
) (Progress, error) {
	p, err := o.discard(ctx, topology.Plan{}, queue, newStranded, options)
	if err != nil {
		err = strandedError("discard", queue, err)
	}
	return p, err
}

// OtherQueues stands in a QueueCount for all queues after the first thousand.
const OtherQueues = "(others)"

// QueueCount is a number of messages for a queue. Queue is empty for messages whose headers name
// none.
type QueueCount struct {
	Queue    string `json:"queue"`
	Messages int    `json:"messages"`
}

// ReturnStranded moves messages of a stranded queue to their queues: each is confirmed there before
// it leaves the stranded queue. Wherever it is interrupted, even killed, no message is lost; after
// a kill as many may be there twice as after one of Replay. They keep their order. A message whose
// queue does not exist stays, and the result counts it.
//
// Edit, Named and MaxReplays must be empty. To is the queue that gets the messages, in
// place of the queue that the headers of each name; they name To then, so that the retry state
// counts there.
//
// The retry state stays: attempts go on where they were. Left out are the headers of the broker,
// CC, BCC, the user id and the expiration, as with every message that this library publishes again.
// With Via, a returned message comes to its queue alone, and so do its later retries.
//
// Any user who may publish to the wait queues or the stranded queue may have written the name of
// the queue into the headers. To return messages to chosen queues only, compare Letter.Queue in the
// filter's Match.
//
// ReturnStranded moves only messages that were in the queue at the beginning. Its errors are like
// Replay's, and Progress is right with every error.
func (o *Operator) ReturnStranded(
	ctx context.Context, queue string, options MoveOptions,
) (Progress, error) {
	r := o.moving(topology.Plan{}, options)
	r.source, r.read, r.without = queue, newStranded, map[string]int{}
	err := r.checkPlain(true)
	if r.To == queue {
		err = fmt.Errorf("%w: the messages are in queue %q already", ErrInvalidOptions, queue)
	}
	if err == nil {
		err = o.withCauses(ctx, func(c *causes) error {
			r.become = func(_ context.Context, l Letter, frame int) (copied, error) {
				return r.toTheirs(c, l, frame)
			}
			return r.run(ctx)
		})
	}
	if err != nil {
		err = strandedError("return", queue, err)
	}
	p := r.now()
	for name, n := range r.without {
		p.Left = append(p.Left, QueueCount{name, n})
	}
	slices.SortFunc(p.Left, func(a, b QueueCount) int { return cmp.Compare(a.Queue, b.Queue) })
	return p, err
}

// toTheirs lets a stranded message go to its queue, where that exists.
func (r *replay) toTheirs(asked *causes, l Letter, frame int) (c copied, err error) {
	c.RoutingKey = cmp.Or(r.To, l.Queue)
	switch found := asked.queue(c.RoutingKey); {
	case found.err == nil && !found.exists, c.RoutingKey == r.source:
		r.leave(&l.Delivery)
		return c, stays{}
	case r.DryRun && found.err != nil:
		return c, found.err
	}
	c.msg = returned(&l.Delivery, r.To)
	return c, fit(&c.msg, frame)
}

// leave counts a message that stays for want of its queue, where the call counts such messages. The
// queue may have vanished since it was asked for.
func (r *replay) leave(d *amqp.Delivery) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.without == nil {
		return false
	}
	queue, _ := d.Headers[header.Queue].(string)
	queue = cmp.Or(r.To, queue)
	if _, known := r.without[queue]; !known && len(r.without) >= maxAnswers {
		queue = OtherQueues
	}
	r.without[queue]++
	return true
}

// returned makes the message that goes back with its retry state. In another queue than its own the
// state counts if it names that queue, and the way back through an exchange is not that queue's.
func returned(d *amqp.Delivery, to string) amqp.Publishing {
	queue, known := d.Headers[header.Queue].(string)
	moved := known && to != "" && to != queue
	var notes map[string]string
	if moved {
		notes = map[string]string{header.Queue: to}
	}
	msg := wire.Publishing(d, func(key string) bool { return moved && key == keys.Via }, notes)
	msg.Priority = wire.Priority(d, keys.Priority)
	return msg
}

func strandedError(verb, queue string, err error) error {
	if audit.IsCode(err, amqp.NotFound) {
		return fmt.Errorf("%s stranded messages: queue %q %w: name the prefix that the strategy of the "+
			"service has: %w", verb, queue, errMissing, err)
	}
	return fmt.Errorf("%s stranded messages of queue %q: %w", verb, queue, err)
}

// newStranded reads a message of a stranded queue. It has the headers of a message that waits.
// Headers of an earlier death say nothing about this one.
func newStranded(d amqp.Delivery, position int) Letter {
	get := textOf(&d)
	queue, _ := get(header.Queue)
	l := letterOf(d, position, queue, header.Parse(queue, get))
	l.DeadAt, _ = lastDeath(&d)["time"].(time.Time)
	if last := len(l.History) - 1; last >= 0 {
		l.Handler = l.History[last].Handler
	}
	return l
}

// lastDeath returns the newest entry of x-death. It describes how the message left its last wait
// queue, because no copy takes the header into a wait queue.
func lastDeath(d *amqp.Delivery) amqp.Table {
	deaths, _ := d.Headers["x-death"].([]any)
	if len(deaths) == 0 {
		return nil
	}
	death, _ := deaths[0].(amqp.Table)
	return death
}
