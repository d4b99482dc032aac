package operate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/audit"
	"github.com/millpond-go/millpond/internal/link"
	"github.com/millpond-go/millpond/topology"
)

// proof is how long a queue must be seen empty. Only the management API sees messages that a
// consumer holds unacked or that the broker holds for a missing target, and it is up to 5 s late.
var proof = 12 * time.Second

// PruneOptions say which wait queues Prune deletes.
type PruneOptions struct {
	// Queues are the names of the wait queues. Default: none.
	Queues []string
	// NobodyPublishes is the caller's word that no running service publishes to them any more. AMQP
	// cannot prove or enforce it: a quorum queue cannot be deleted only if it is empty (F10), and a
	// message that is confirmed between the proof and the deletion would be lost. Default: nothing is
	// deleted.
	NobodyPublishes bool
	// DryRun looks, and deletes nothing. Default: false.
	DryRun bool
	// Wait bounds the wait for messages that are still in them. Default: no wait.
	Wait time.Duration
}

// Pruned is the outcome for one queue.
type Pruned struct {
	Queue string
	// Deleted says that it was deleted; in a dry run, that it would be.
	Deleted bool
	// Why says why it was not deleted.
	Why string
}

// Prune deletes wait queues that no plan uses any more. A message in such a queue would be lost
// with it (F10). So each queue must have been empty for 12 s, by AMQP and by the management API
// (WithManagement), without consumers, and belong to none of the plans; and the caller must state
// NobodyPublishes. Otherwise the queue stays, Why says so, and the error is ErrUnsafe. A classic
// queue is then deleted only if the broker finds it empty in that very moment.
func (o *Operator) Prune(
	ctx context.Context, plans []topology.Plan, options PruneOptions,
) ([]Pruned, error) {
	results := make([]Pruned, len(options.Queues))
	errs := make([]error, len(results))
	var group sync.WaitGroup
	for i, name := range options.Queues {
		p := &results[i]
		p.Queue = name
		switch used := usedBy(plans, name); {
		case used != "":
			p.Why = fmt.Sprintf("the plan of queue %q uses it", used)
		case !options.NobodyPublishes:
			p.Why = "it is not stated that no service publishes to it " +
				"(NobodyPublishes, --nobody-publishes)"
		default:
			group.Go(func() { p.Why, errs[i] = o.prove(ctx, name, options.Wait) })
		}
	}
	group.Wait()
	if err := errors.Join(errs...); err != nil {
		return results, fmt.Errorf("prune: %w", err)
	}
	stay := false
	for i := range results {
		p := &results[i]
		if p.Deleted = p.Why == ""; p.Deleted && !options.DryRun {
			if err := o.deleteEmpty(ctx, p.Queue); err != nil {
				p.Deleted, p.Why = false, err.Error()
			}
		}
		stay = stay || !p.Deleted && p.Why != gone
	}
	if stay {
		return results, fmt.Errorf("prune: %w: not all queues can be deleted", ErrUnsafe)
	}
	return results, nil
}

// usedBy returns the queue of the plan that uses a queue, "" for none.
func usedBy(plans []topology.Plan, name string) string {
	for _, plan := range plans {
		named := func(q topology.Queue) bool { return q.Name == name }
		if plan.Queue == name || plan.Dead.RoutingKey == name ||
			slices.ContainsFunc(plan.Queues, named) {
			return plan.Queue
		}
	}
	return ""
}

// uncounted: the management API takes a few seconds to see a queue.
const uncounted = "the management API has not counted its messages"

const (
	// gone: there is nothing to delete.
	gone = "it does not exist"

	uncountable = "messages that are unacked or held are in no count of AMQP"
)

// prove looks at a queue until it was empty for long enough, or until why says that it is not.
func (o *Operator) prove(
	ctx context.Context, queue string, wait time.Duration,
) (why string, err error) {
	began, empty := time.Now(), time.Time{} // since when
	for {
		problem, final, err := o.occupied(ctx, queue)
		limit := wait
		if problem == uncounted {
			limit = max(wait, proof)
		}
		switch {
		case err != nil:
			return "", err
		case problem != "" && (final || time.Since(began) > limit):
			return problem, nil
		case problem != "":
			empty = time.Time{}
		case empty.IsZero():
			empty = time.Now()
		case time.Since(empty) >= proof:
			return "", nil
		}
		if err := sleep(ctx, time.Second); err != nil {
			return "", err
		}
	}
}

// occupied says why a queue must not be deleted now; final says that waiting does not help.
func (o *Operator) occupied(
	ctx context.Context, queue string,
) (problem string, final bool, err error) {
	report, err := o.Inspect(ctx, topology.Plan{Queue: queue})
	if err != nil {
		return "", false, err
	}
	q := report.Queues[0]
	switch {
	case q.Missing:
		return gone, true, nil
	case q.Consumers.N > 0:
		return fmt.Sprintf("it is consumed, by %d", q.Consumers.N), true, nil
	case report.ManagementErr != nil:
		return fmt.Sprintf("%s, and %v", uncountable, report.ManagementErr), true, nil
	case q.Ready.N > 0:
		return fmt.Sprintf("%d messages wait in it", q.Ready.N), false, nil
	case o.opts.management == "":
		return uncountable + ": name the management API", true, nil
	case !q.Total.Known():
		return uncounted, false, nil
	case q.Total.N > 0:
		const text = "%d messages are in it, unacked or held for a queue that is missing"
		return fmt.Sprintf(text, q.Total.N), false, nil
	}
	return "", false, nil
}

// deleteEmpty deletes a queue that was proven empty. The broker deletes a classic queue only if it
// is empty; it refuses that condition of a quorum queue with 540.
func (o *Operator) deleteEmpty(ctx context.Context, queue string) error {
	err := o.onChannel(ctx, func(ch *amqp.Channel) error {
		_, err := ch.QueueDelete(queue, true, true, false)
		return err
	})
	if !audit.IsCode(err, amqp.NotImplemented) {
		return err
	}
	if err := o.checkPeek(ctx, topology.Plan{}, queue); err != nil { // the get below is a look
		return err
	}
	return o.onChannel(ctx, func(ch *amqp.Channel) error {
		q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
		if err != nil {
			return err
		}
		if q.Messages > 0 || q.Consumers > 0 {
			return fmt.Errorf("%w: %d messages and %d consumers came while it was looked at",
				ErrUnsafe, q.Messages, q.Consumers)
		}
		if _, ok, err := ch.Get(queue, false); ok || err != nil { // exact, where a count may be late
			came := fmt.Errorf("%w: a message came while it was looked at", ErrUnsafe)
			return errors.Join(err, came, ch.Nack(0, true, true))
		}
		_, err = ch.QueueDelete(queue, false, false, false)
		return err
	})
}

// onChannel runs f on a channel of another connection.
func (o *Operator) onChannel(ctx context.Context, f func(*amqp.Channel) error) error {
	return o.call(ctx, func(ctx context.Context, conn *link.Conn) error { return conn.Do(ctx, f) })
}
