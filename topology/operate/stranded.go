package operate

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"iter"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/audit"
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
			return o.list(ctx, topology.Plan{}, queue, newStranded, filter, limit, show)
		})
		if err != nil {
			yield(StrandedMessage{}, strandedError("look at", queue, err))
		}
	}
}

// ExportStranded writes messages of a stranded queue as Export writes dead letters, and returns
// their number. They stay in the queue.
func (o *Operator) ExportStranded(
	ctx context.Context, queue string, filter Filter, limit int, w io.Writer,
) (int, error) {
	n, writeErr, err := export(w, func(yield func(Letter, error) bool) {
		if err := o.list(ctx, topology.Plan{}, queue, newStranded, filter, limit, yield); err != nil {
			yield(Letter{}, err)
		}
	})
	if err = cmp.Or(writeErr, err); err != nil {
		err = strandedError("export", queue, err)
	}
	return n, err
}

// DiscardStranded throws messages of a stranded queue away, as Discard does with dead letters.
func (o *Operator) DiscardStranded(
	ctx context.Context, queue string, options DiscardOptions,
) (Progress, error) {
	p, err := o.discard(ctx, topology.Plan{}, queue, newStranded, options)
	if err != nil {
		err = strandedError("discard", queue, err)
	}
	return p, err
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
	d.Acknowledger = nil
	get := textOf(&d)
	queue, _ := get(header.Queue)
	state := header.Parse(queue, get)
	l := Letter{
		ID: idOf(&d), Position: position, Queue: queue, Attempts: state.Failures, Error: state.Error,
		Class: state.Class, Deadline: state.Deadline, DeadlineFrom: state.DeadlineFrom,
		Replays: header.ParseReplays(get), History: state.History,
		OriginExchange: state.OriginExchange, OriginRoutingKey: state.OriginRoutingKey, Delivery: d,
	}
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
