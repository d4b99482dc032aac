package operate

import (
	"context"
	"fmt"
	"iter"

	"github.com/millpond-go/millpond/topology"
)

// Dead goes through the dead letters of a plan that filter chooses, oldest
// first. What it has taken it gives back when the loop ends, however it ends;
// until then nobody else gets it, so be quick. A letter may be kept after the loop
// went on, at the cost of memory.
//
// After an error the loop ends. See the package's documentation for what cannot
// be read.
func (o *Operator) Dead(ctx context.Context, plan topology.Plan, filter Filter) iter.Seq2[Letter, error] {
	return func(yield func(Letter, error) bool) {
		queue, err := deadQueue(plan)
		if err == nil {
			err = o.list(ctx, plan, queue, filter, func(l Letter) bool { return yield(l, nil) })
		}
		if err != nil {
			yield(Letter{}, fmt.Errorf("dead letters of queue %q: %w", plan.Queue, err))
		}
	}
}

// list shows the letters of a queue until show returns false.
func (o *Operator) list(ctx context.Context, plan topology.Plan, queue string, filter Filter, show func(Letter) bool) (err error) {
	t, err := o.take(ctx, plan, queue, -1)
	if err != nil {
		return err
	}
	listens := false // also where show panics
	defer func() {
		if back := t.giveBack(); err == nil && listens {
			err = back
		}
	}()
	for {
		d, ok, err := t.next()
		if err != nil || !ok {
			listens = true
			return err
		}
		t.Keep(d.DeliveryTag)
		if t.old() {
			return fmt.Errorf("%w: more than %v; take fewer, with a limit", ErrTooSlow, holdLimit)
		}
		if l := newLetter(d, t.Seen()); filter.Matches(l) && !show(l) {
			return nil
		}
	}
}

// deadQueue is the queue that keeps the plan's dead letters.
func deadQueue(plan topology.Plan) (string, error) {
	if plan.Dead.Exchange != "" || plan.Dead.RoutingKey == "" {
		return "", ErrNoQueue
	}
	return plan.Dead.RoutingKey, nil
}
