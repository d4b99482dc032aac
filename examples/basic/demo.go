package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
)

var errInterrupted = errors.New("interrupted")

// demo is one run.
type demo struct {
	url      string
	strategy topology.PerQueue
	limit    time.Duration
	logger   watermill.LoggerAdapter

	mu  sync.Mutex // of out
	out io.Writer
}

func (d *demo) print(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	fmt.Fprintf(d.out, format, args...)
}

func (d *demo) run(ctx context.Context) error {
	queue := "millpond-demo-" + strings.ToLower(rand.Text()[:8])
	plan, err := d.strategy.Plan(queue, policy)
	if err != nil {
		return err
	}
	l := newLedger(policy, orders)
	s, err := startService(ctx, d.url, queue, d.strategy, d.handler(l), d.logger)
	if err != nil {
		return err
	}
	p, err := dialPlain(d.url)
	if err != nil {
		return errors.Join(err, s.close())
	}
	defer p.conn.Close()
	d.print("queue %s on %s, %s wait queues\n", queue, p.server(), d.strategy.Type)
	d.print("policy %v, so four attempts at most\n\n", policy)

	driven := d.drive(ctx, p, l, plan)
	failed := errors.Join(s.close(), d.inspect(p, l, plan))
	well := failed == nil && (driven == nil || errors.Is(driven, errInterrupted))
	return errors.Join(driven, failed, d.conclude(p, l, plan, well))
}

// handler is the demo's handler: it enters what the order's work came to.
func (d *demo) handler(l *ledger) message.NoPublishHandlerFunc {
	return func(msg *message.Message) error {
		began, attempt := time.Now(), middleware.Attempt(msg.Context())
		err := fmt.Errorf("unknown order %q", msg.Payload)
		for _, o := range orders {
			if o.name == string(msg.Payload) {
				err = o.work(attempt)
			}
		}
		d.print("%s", l.attempt(string(msg.Payload), attempt, began, time.Now(), err))
		return err
	}
}

// drive publishes the orders and waits until every one is decided.
func (d *demo) drive(ctx context.Context, p *plain, l *ledger, plan topology.Plan) error {
	vanished := plan.WaitSteps[0].RoutingKey
	if err := p.delete(vanished); err != nil {
		return err
	}
	d.print("%s was deleted while empty: the library has to notice\n\n", vanished)
	for _, o := range orders {
		d.print("%s %s\n", o.name, o.story)
	}
	d.print("\n"+line, "order", "attempt", "outcome", "asked", "measured")

	err := p.consume(plan.Dead.RoutingKey, func(m amqp.Delivery) {
		l.deadLetter(string(m.Body), text(m, header.DeadReason), text(m, header.DeadFailures), text(m, header.DeadError))
	})
	if err != nil {
		return err
	}
	for _, o := range orders {
		if err := p.publish(ctx, plan.Queue, o.name); err != nil {
			if ctx.Err() != nil {
				return errInterrupted
			}
			return err
		}
		l.published(o.name)
	}

	limit := time.After(d.limit)
	for !l.decided() {
		select {
		case <-ctx.Done():
			return errInterrupted
		case <-limit:
			return fmt.Errorf("not every order is decided after %v", d.limit)
		case <-time.After(20 * time.Millisecond):
		}
	}
	return nil
}

func text(m amqp.Delivery, header string) string { return fmt.Sprint(m.Headers[header]) }

// inspect looks a few times for orders that are still in the queue or wait: what
// comes back from a closed channel does so a moment later.
func (d *demo) inspect(p *plain, l *ledger, plan topology.Plan) error {
	for range 5 {
		time.Sleep(100 * time.Millisecond)
		for _, queue := range waiting(plan) {
			err := p.look(queue, func(m amqp.Delivery) { l.foundIn(queue, string(m.Body)) })
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// waiting are the queue and its wait queues.
func waiting(plan topology.Plan) []string {
	queues := []string{plan.Queue}
	for _, rung := range plan.WaitSteps {
		queues = append(queues, rung.RoutingKey)
	}
	return queues
}

// conclude prints the account, and deletes the queues unless something is wrong.
func (d *demo) conclude(p *plain, l *ledger, plan topology.Plan, well bool) error {
	d.print("\nin the dead-letter queue:\n")
	for _, letter := range l.deadLetters() {
		d.print("%s\n", letter)
	}
	var failed error
	for _, fault := range l.faults() {
		failed = errors.Join(failed, errors.New(fault))
	}
	t := l.tally()
	if t.lost > 0 {
		failed = errors.Join(failed, fmt.Errorf("lost %d of %d", t.lost, t.published))
	}

	queues := append(waiting(plan), plan.Dead.RoutingKey)
	if well && failed == nil {
		failed = p.delete(queues...)
	} else {
		failed = errors.Join(failed, fmt.Errorf("the queues are left as they are: %s", strings.Join(queues, " ")))
	}
	d.print("\n%v\n", t)
	return failed
}
