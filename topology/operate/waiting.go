package operate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
)

const (
	// maxWaiting is how many messages a wait queue may hold that is looked at. All
	// of them must be taken: those of a quorum queue that are given back stand
	// behind those that were not taken, and expire after them.
	maxWaiting = 5000
	// waitHold is how long messages that wait are held.
	waitHold = 5 * time.Second
)

// Waiter is a message that waits.
type Waiter struct {
	// ID as that of a Letter.
	ID string
	// WaitQueue it is in, and the delay of that.
	WaitQueue string
	Delay     time.Duration
	// Queue it returns to, as its notes say: with topology.Shared not always that of
	// the plan.
	Queue string
	// Failures so far, the last error and its class.
	Failures int
	Error    string
	Class    header.Class
	// Due is when it returns to its queue, reckoned from the last failure; later
	// where it waits in rounds. Zero where the notes do not say.
	Due time.Time
	// Size of the payload, in bytes.
	Size int
}

func newWaiter(d *amqp.Delivery, q topology.Queue) Waiter {
	get := func(key string) (string, bool) {
		text, ok := d.Headers[key].(string)
		return text, ok
	}
	queue, _ := get(header.Queue)
	n := header.Parse(queue, get)
	w := Waiter{
		ID: idOf(d), WaitQueue: q.Name, Delay: q.Delay, Queue: queue,
		Failures: n.Failures, Error: n.Error, Class: n.Class, Due: n.NotBefore, Size: len(d.Body),
	}
	if last := len(n.History) - 1; last >= 0 && w.Due.IsZero() && n.Snoozed == 0 {
		w.Due = n.History[last].At.Add(n.Delay)
	}
	return w
}

// Waiting returns what waits in the wait queues of a plan, by delay, oldest first.
//
// Looking does not change when a message returns, unless that is due while it is
// held: then it returns when it is given back. A queue with more than 5000 messages
// is not touched, and the error is ErrUnsafe, with the messages of the others; so
// is one that takes longer than 5 s. Where a look is cut off, because the process
// is killed or the connection is lost, what was looked at may return late, by at
// most the delay of its queue; nothing is lost. See docs/operations.md for how
// that was measured.
func (o *Operator) Waiting(ctx context.Context, plan topology.Plan) ([]Waiter, error) {
	var found []Waiter
	err := eachWaitQueue(plan, func(q topology.Queue) error {
		return o.pass(ctx, plan, q, func(t *taking, d amqp.Delivery) error {
			t.Keep(d.DeliveryTag)
			found = append(found, newWaiter(&d, q))
			return nil
		})
	})
	if err != nil {
		return found, fmt.Errorf("what waits for queue %q: %w", plan.Queue, err)
	}
	return found, nil
}

// eachWaitQueue calls f for each wait queue of a plan, and returns the first error.
func eachWaitQueue(plan topology.Plan, f func(topology.Queue) error) error {
	var first error
	for _, q := range plan.Queues {
		if q.Delay > 0 {
			if err := f(q); err != nil && first == nil {
				first = fmt.Errorf("wait queue %q: %w", q.Name, err)
			}
		}
	}
	return first
}

// pass takes all messages of a wait queue, shows them, and gives back those that
// were kept.
func (o *Operator) pass(ctx context.Context, plan topology.Plan, q topology.Queue, show func(*taking, amqp.Delivery) error) (err error) {
	t, err := o.take(ctx, plan, q.Name, -1)
	if err != nil {
		return err
	}
	defer func() {
		if back := t.giveBack(); err == nil {
			err = back
		}
	}()
	t.Hurry(250 * time.Millisecond) // they return by themselves meanwhile
	if n, err := t.Ready(); err != nil || n > maxWaiting {
		return errors.Join(err, tooMany(n))
	}
	for {
		d, ok, err := t.next()
		if err != nil || !ok {
			return err
		}
		if t.Total() > maxWaiting || time.Since(t.began) > waitHold {
			t.Keep(d.DeliveryTag)
			t.Stop()
			return tooMany(t.Total())
		}
		if err := show(t, d); err != nil {
			return err
		}
	}
}

func tooMany(n int) error {
	return fmt.Errorf("%w: %d messages wait; to see one all have to be taken, at most %d and for no longer than %v", ErrUnsafe, n, maxWaiting, waitHold)
}

// Choosing says which of the messages that wait Release and Cancel take. With
// neither IDs nor Match that is none.
type Selection struct {
	// IDs: the message's ID is one of them.
	IDs []string
	// Match chooses others.
	Match func(Waiter) bool
}

func (c Selection) chooses(w Waiter) bool {
	return slices.Contains(c.IDs, w.ID) || c.Match != nil && c.Match(w)
}

// Release ends the wait of chosen messages: each is confirmed in the plan's queue
// before it leaves its wait queue, with its notes, so that its attempts go on.
// What is passed over is treated as by Waiting, and what is refused there is
// refused here. A message whose notes name another queue is counted as foreign and
// stays. Killed in the middle, a message may come twice, and none is lost.
func (o *Operator) Release(ctx context.Context, plan topology.Plan, choose Selection) (Progress, error) {
	p, err := o.takeOut(ctx, plan, choose, topology.Route{RoutingKey: plan.Queue}, released)
	if err != nil {
		return p, fmt.Errorf("release what waits for queue %q: %w", plan.Queue, err)
	}
	return p, nil
}

// Cancel ends the wait of chosen messages as Release does, but they become dead
// letters, with the reason middleware.ReasonCancelled.
func (o *Operator) Cancel(ctx context.Context, plan topology.Plan, choose Selection) (Progress, error) {
	p, err := o.takeOut(ctx, plan, choose, plan.Dead, cancelled)
	if err != nil {
		return p, fmt.Errorf("cancel what waits for queue %q: %w", plan.Queue, err)
	}
	return p, nil
}
