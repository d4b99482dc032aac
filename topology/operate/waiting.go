package operate

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/audit"
	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/internal/wire"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
)

const (
	// maxWaiting is the most messages of a wait queue that is looked at. All of them must be taken:
	// a quorum queue puts messages that are given back behind messages that were not taken, and they
	// expire after them.
	maxWaiting = 5000
	// waitHold is how long messages that wait are held.
	waitHold = 5 * time.Second
)

// Waiter is a message that waits.
type Waiter struct {
	// ID is read like the ID of a Letter.
	ID string `json:"id"`
	// WaitQueue is the wait queue it is in, and Delay the delay of that queue.
	WaitQueue string        `json:"wait_queue"`
	Delay     time.Duration `json:"-"`
	// Queue is the queue it returns to, by its headers: with topology.Shared not always the queue of
	// the plan.
	Queue string `json:"queue,omitempty"`
	// Failures so far, the last error and its class.
	Failures int          `json:"failures"`
	Error    string       `json:"error,omitempty"`
	Class    header.Class `json:"class,omitempty"`
	// Due is when it returns to its queue, counted from the last failure; later where it waits in
	// rounds. Zero where the headers do not say.
	Due time.Time `json:"due,omitzero"`
	// Size of the payload, in bytes.
	Size int `json:"size"`
}

// newWaiter reads a message of a wait queue, which has the headers of a stranded one.
func newWaiter(d amqp.Delivery, position int, q topology.Queue) (Letter, Waiter) {
	l := newStranded(d, position)
	l.waits = q.Delay
	n := header.Parse(l.Queue, textOf(&d))
	w := Waiter{
		ID: l.ID, WaitQueue: q.Name, Delay: q.Delay, Queue: l.Queue, Failures: n.Failures,
		Error: n.Error, Class: n.Class, Due: n.NotBefore, Size: len(d.Body),
	}
	if last := len(n.History) - 1; last >= 0 && w.Due.IsZero() && n.Snoozed == 0 {
		w.Due = n.History[last].At.Add(n.Delay)
	}
	return l, w
}

// Waiting returns the messages in the wait queues of a plan that filter chooses, by delay, oldest
// first.
//
// Looking does not change when a message returns, unless that is due while it is held: then it
// returns when it is given back. A queue with more than 5000 messages is not touched, and the error
// is ErrUnsafe, with the messages of the other queues; the same holds for a queue that takes longer
// than 5 s. Where a look is cut off, because the process is killed or the connection is lost, the
// messages may return late, by at most the delay of their queue; none is lost. docs/operations.md
// says how that was measured.
func (o *Operator) Waiting(
	ctx context.Context, plan topology.Plan, filter Filter,
) (found []Waiter, err error) {
	chooses, err := filter.Matcher()
	if err == nil {
		err = eachWaitQueue(plan, func(q topology.Queue) error {
			return o.pass(ctx, plan, q, func(t *taking, d amqp.Delivery) error {
				t.Keep(d.DeliveryTag)
				if l, w := newWaiter(d, t.Seen(), q); chooses(l) {
					found = append(found, w)
				}
				return nil
			})
		})
	}
	if err != nil {
		return found, fmt.Errorf("messages that wait%s: %w", forQueue(plan), err)
	}
	return found, nil
}

// forQueue names the queue of a plan, if it has one.
func forQueue(plan topology.Plan) string {
	if plan.Queue == "" {
		return ""
	}
	return fmt.Sprintf(" for queue %q", plan.Queue)
}

// eachWaitQueue calls f for each wait queue of a plan. It returns the first error, and names all
// wait queues that are missing.
func eachWaitQueue(plan topology.Plan, f func(topology.Queue) error) error {
	var first, notFound error
	var missing []string
	for _, q := range plan.Queues {
		if q.Delay <= 0 {
			continue
		}
		switch err := f(q); {
		case errors.Is(err, errMissing):
			missing, notFound = append(missing, strconv.Quote(q.Name)), err
		case err != nil && first == nil:
			first = fmt.Errorf("wait queue %q: %w", q.Name, err)
		}
	}
	if notFound != nil {
		notFound = fmt.Errorf("could not look at wait queues %s: use the plan of the service's policy, "+
			"with millpond --policy: %w", strings.Join(missing, ", "), notFound)
	}
	return errors.Join(first, notFound)
}

var errMissing = errors.New("does not exist or cannot be reached")

// pass takes all messages of a wait queue, shows them, and gives back the messages that were kept.
func (o *Operator) pass(
	ctx context.Context, plan topology.Plan, q topology.Queue,
	show func(*taking, amqp.Delivery) error,
) (err error) {
	t, err := o.take(ctx, plan, q.Name, -1)
	if audit.IsCode(err, amqp.NotFound) {
		return fmt.Errorf("queue %q %w: %w", q.Name, errMissing, err)
	}
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
	return fmt.Errorf("%w: %d messages wait; to see one, all have to be taken, at most %d and for no "+
		"longer than %v", ErrUnsafe, n, maxWaiting, waitHold)
}

// Release ends the wait of chosen messages: each is confirmed in the plan's queue before it leaves
// its wait queue, with its retry state, so that its attempts go on. The other messages are treated
// as by Waiting, and a queue that Waiting refuses is refused. A message whose headers name another
// queue stays: it is neither seen nor part of the total, and foreign if the filter chooses it. If
// the process is killed, at most 64 messages come twice, and none is lost. To, Edit, Named and
// MaxReplays must be empty.
func (o *Operator) Release(
	ctx context.Context, plan topology.Plan, options MoveOptions,
) (Progress, error) {
	return o.takeOut(ctx, plan, options, "release", topology.Route{RoutingKey: plan.Queue}, released)
}

// Cancel ends the wait of chosen messages like Release, but they become dead letters, with the
// reason header.ReasonCancelled.
func (o *Operator) Cancel(
	ctx context.Context, plan topology.Plan, options MoveOptions,
) (Progress, error) {
	return o.takeOut(ctx, plan, options, "cancel", plan.Dead, cancelled)
}

// takeOut moves chosen messages from the wait queues of a plan to a route.
func (o *Operator) takeOut(
	ctx context.Context, plan topology.Plan, options MoveOptions, verb string, route topology.Route,
	change func(d *amqp.Delivery, queue string) amqp.Publishing,
) (Progress, error) {
	r := o.moving(plan, options)
	r.become = func(_ context.Context, l Letter, _ int) (copied, error) {
		return copied{Route: route, msg: change(&l.Delivery, plan.Queue)}, nil
	}
	err := r.checkPlain(false)
	if err == nil {
		err = eachWaitQueue(plan, func(q topology.Queue) error {
			var m *mover
			r.read = func(d amqp.Delivery, position int) Letter {
				l, _ := newWaiter(d, position, q)
				return l
			}
			return o.pass(ctx, plan, q, func(t *taking, d amqp.Delivery) error {
				if m == nil {
					m = newMover(ctx, r, t)
					t.before = func() error { return m.finish(nil) }
					r.count(func(p *Progress) { p.Total += t.Total() })
				}
				r.count(func(p *Progress) {
					if queue, named := textOf(&d)(header.Queue); named && queue != plan.Queue {
						p.Total-- // it only shares the wait queue
					} else {
						p.Seen++
					}
				})
				return r.one(ctx, t, m, d)
			})
		})
	}
	if err != nil {
		err = fmt.Errorf("%s messages that wait for queue %q: %w", verb, plan.Queue, err)
	}
	return r.now(), err
}

// released makes a message whose wait is over. A not-before would send it to wait again.
func released(d *amqp.Delivery, _ string) amqp.Publishing {
	msg := wire.Publishing(d, func(key string) bool { return key == keys.NotBefore }, nil)
	msg.Priority = wire.Priority(d, keys.Priority)
	return msg
}

// cancelled makes a dead letter of a message.
func cancelled(d *amqp.Delivery, queue string) amqp.Publishing {
	n := header.Parse(queue, textOf(d))
	n.Reason, n.DeadAt = header.ReasonCancelled, time.Now()
	headers := n.DeadHeaders(queue)
	headers[wmiddleware.ReasonForPoisonedKey] = n.Error
	headers[wmiddleware.PoisonedTopicKey] = queue
	msg := wire.Publishing(d, keys.IsState, headers)
	msg.Priority = wire.Priority(d, keys.Priority)
	return msg
}
