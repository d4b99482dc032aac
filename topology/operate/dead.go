package operate

import (
	"context"
	"fmt"
	"iter"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/topology"
)

// Dead returns the dead letters of a plan that filter chooses, oldest first, up to limit of them if
// it is not 0. It gives back the messages that it has taken when the loop ends, however it ends. No
// other client gets them until then, so be quick. A letter may be kept after the loop went on, at
// the cost of memory.
//
// After an error the loop ends. A loop that ends by break does not see the error about messages
// that are not back; use limit instead.
func (o *Operator) Dead(
	ctx context.Context, plan topology.Plan, filter Filter, limit int,
) iter.Seq2[Letter, error] {
	return func(yield func(Letter, error) bool) {
		queue, err := deadQueue(plan)
		if err == nil {
			err = o.list(ctx, plan, queue, -1, newLetter, filter, limit, yield)
		}
		if err != nil {
			yield(Letter{}, fmt.Errorf("dead letters of queue %q: %w", plan.Queue, err))
		}
	}
}

// list shows up to limit letters of a queue, as read makes them, until show returns false. It takes
// up to most messages, or all.
func (o *Operator) list(
	ctx context.Context, plan topology.Plan, queue string, most int,
	read func(amqp.Delivery, int) Letter, filter Filter, limit int, show func(Letter, error) bool,
) (err error) {
	chooses, err := filter.Matcher()
	if err != nil {
		return err
	}
	t, err := o.take(ctx, plan, queue, most)
	if err != nil {
		return err
	}
	listens := false // the caller may see another error; also false where show panics
	defer func() {
		if back := t.giveBack(); err == nil && listens {
			err = back
		}
	}()
	for n := 0; ; {
		d, ok, err := t.next()
		if err != nil || !ok {
			listens = true
			return err
		}
		t.Keep(d.DeliveryTag)
		if t.old() {
			return fmt.Errorf("%w: more than %v; take fewer, with a limit", ErrTooSlow, holdLimit)
		}
		l := read(d, t.Seen())
		if !chooses(l) {
			continue
		}
		if !show(l, nil) {
			return nil
		}
		if n++; n == limit {
			listens = true
			return nil
		}
	}
}

// deadQueue returns the queue that keeps the plan's dead letters.
func deadQueue(plan topology.Plan) (string, error) {
	if plan.Dead.Exchange != "" || plan.Dead.RoutingKey == "" {
		return "", ErrNoQueue
	}
	return plan.Dead.RoutingKey, nil
}
