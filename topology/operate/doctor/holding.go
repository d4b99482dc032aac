package doctor

import (
	"context"
	"fmt"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/audit"
	"github.com/millpond-go/millpond/topology"
)

// atLeastOnce finds out without the target whether a wait queue holds messages whose wait is over.
// AMQP does not count them, but the queue's limit does: a queue that holds messages refuses others.
// The broker would deliver the held messages at its next try, up to three minutes later (F5).
func atLeastOnce(ctx context.Context, b *bench) (Status, string, error) {
	const limit = 4
	q, err := waiting(topology.Quorum, b.prefix+"absent", 300*time.Millisecond,
		amqp.Table{"x-max-length": limit})
	if err == nil {
		err = b.declare(ctx, q)
	}
	if err != nil {
		return "", "", err
	}
	// One more than the limit fits (F39).
	first, err := b.putAll(ctx, q.Name, limit+1)
	if err != nil {
		return "", "", err
	}
	if first < limit {
		return Differs, fmt.Sprintf("the wait queue has taken %d of %d messages", first, limit), nil
	}
	if err := b.empties(ctx, q); err != nil {
		return "", "", err
	}
	const more = 3
	then, err := b.putAll(ctx, q.Name, more)
	if err != nil {
		return "", "", err
	}
	if then == more {
		return Differs, fmt.Sprintf("the wait queue took %d messages and, when their wait was over, "+
			"%d more, with a limit of %d: it does not hold them", first, then, limit), nil
	}
	return OK, "the wait queue holds them: it is full while no message is ready", nil
}

// heldAgain lets the target appear when a message is held already.
func heldAgain(ctx context.Context, b *bench) (Status, string, error) {
	target, err := keeping(topology.Quorum, b.prefix+"appears")
	if err != nil {
		return "", "", err
	}
	q, err := waiting(topology.Quorum, target.Name, 300*time.Millisecond, nil)
	if err == nil {
		err = b.declare(ctx, q)
	}
	if err != nil {
		return "", "", err
	}
	if ok, err := b.put(ctx, "", q.Name, amqp.Publishing{}); err != nil || !ok {
		return Differs, "the wait queue has refused the message", err
	}
	if err := b.empties(ctx, q); err != nil {
		return "", "", err
	}
	if err := b.declare(ctx, target); err != nil {
		return "", "", err
	}
	began := time.Now()
	back, err := b.take(ctx, target.Name, 1, b.patience)
	switch {
	case err != nil:
		return "", "", err
	case len(back) == 1:
		return OK, fmt.Sprintf("it arrived %v after its target appeared", rounded(time.Since(began))), nil
	case b.patience > deadLetterTimer+time.Minute:
		return Differs, fmt.Sprintf("it has not arrived within %v", b.patience), nil
	}
	return Unknown, fmt.Sprintf("not within %v; by default the broker tries again every 3 minutes: "+
		"a patience of 4m sees it", b.patience), nil
}

// deadLetterTimer is dead_letter_worker_publisher_confirm_timeout by default (F41).
const deadLetterTimer = 3 * time.Minute

// alternateExchange sends messages of two queues through the wait queue of Shared. One of the
// queues is missing.
func alternateExchange(ctx context.Context, b *bench) (Status, string, error) {
	const delay = time.Second
	queue, err := keeping(topology.Quorum, b.prefix+"bound")
	if err != nil {
		return "", "", err
	}
	name := strings.TrimSuffix(b.prefix, ".")
	plan, err := topology.Shared{Prefix: name}.Plan(queue.Name, []time.Duration{delay})
	if err != nil {
		return "", "", err
	}
	plan.Queues = append(plan.Queues[:len(plan.Queues)-1], queue) // it needs no dead letters
	if err := b.build(ctx, plan); err != nil {
		return "", "", err
	}
	for _, key := range []string{b.prefix + "unbound", queue.Name} {
		ok, err := b.put(ctx, plan.WaitSteps[0].Exchange, key, amqp.Publishing{})
		if err != nil || !ok {
			return Differs, "the wait queue has refused a message", err
		}
	}
	stranded, err := b.take(ctx, b.prefix+"stranded", 1, delay+arrival)
	if err != nil {
		return "", "", err
	}
	back, err := b.take(ctx, queue.Name, 1, arrival)
	switch {
	case err != nil:
		return "", "", err
	case len(stranded) == 0:
		return Differs, "the message without a queue has not reached the stranded queue", nil
	case len(back) == 0:
		return Differs, "the message behind it has not returned", nil
	}
	return OK, "the message without a queue is in the stranded queue, the other returned", nil
}

// kept watches messages in a queue that keeps them.
func kept(kind topology.QueueType) func(context.Context, *bench) (Status, string, error) {
	return func(ctx context.Context, b *bench) (Status, string, error) {
		q, err := keeping(kind, b.prefix+"kept."+string(kind))
		if err == nil {
			err = b.declare(ctx, q)
		}
		if err != nil {
			return "", "", err
		}
		began := time.Now()
		put, err := b.putAll(ctx, q.Name, manyMessages)
		if err != nil {
			return "", "", err
		}
		if put < manyMessages {
			return Differs, fmt.Sprintf("the queue has taken %d of %d messages", put, manyMessages), nil
		}
		fewer := 0 // looks in a row, because a count may be old
		err = until(ctx, b.patience, func() (bool, error) {
			left, err := b.ready(ctx, q.Name)
			if left < put {
				fewer++
			} else {
				fewer = 0
			}
			if err != nil || fewer == 3 {
				return true, err
			}
			return false, pause(ctx, 50*look)
		})
		if audit.IsCode(err, amqp.NotFound) {
			return Differs, fmt.Sprintf("the queue was gone after %v", rounded(time.Since(began))), nil
		}
		if err != nil {
			return "", "", err
		}
		after := rounded(time.Since(began))
		left, err := b.take(ctx, q.Name, put, late)
		if err != nil {
			return "", "", err
		}
		seen := fmt.Sprintf("%d of %d messages were there after %v", len(left), put, after)
		if len(left) < put {
			return Differs, seen, nil
		}
		return OK, seen, nil
	}
}

// consumerTimeout keeps a delivery unacked.
func consumerTimeout(ctx context.Context, b *bench) (Status, string, error) {
	q, err := keeping(topology.Quorum, b.prefix+"unacked")
	if err == nil {
		err = b.declare(ctx, q)
	}
	if err != nil {
		return "", "", err
	}
	if ok, err := b.put(ctx, "", q.Name, amqp.Publishing{}); err != nil || !ok {
		return Differs, "the queue has refused the message", err
	}
	cancelled := b.ch.NotifyCancel(make(chan string, 1))
	arrived, err := b.ch.Consume(q.Name, "", false, false, false, false, nil)
	if err != nil {
		return "", "", err
	}
	select {
	case _, ok := <-arrived:
		if !ok {
			return "", "", ending(<-b.closed)
		}
	case <-time.After(arrival):
		return Differs, fmt.Sprintf("no consumer got the message within %v", arrival), nil
	case <-ctx.Done():
		return "", "", context.Cause(ctx)
	}
	began := time.Now()
	const seen = "the broker took an unacked delivery back after %v"
	select {
	case <-cancelled: // 4.3 cancels the consumer (F33)
		return Differs, fmt.Sprintf(seen, rounded(time.Since(began))), nil
	case why := <-b.closed:
		if why == nil || why.Code != amqp.PreconditionFailed {
			return "", "", ending(why)
		}
		return Differs, fmt.Sprintf(seen, rounded(time.Since(began))), nil
	case <-ctx.Done():
		return "", "", context.Cause(ctx)
	case <-time.After(b.patience):
	}
	// Before 4.3 the broker looks once a minute.
	if b.patience >= audit.DefaultConsumerTimeout-time.Minute {
		return OK, fmt.Sprintf("a delivery stayed unacked for %v", b.patience), nil
	}
	return Unknown, fmt.Sprintf("longer than %v; the broker does not show it: on a node, "+
		"`rabbitmqctl environment` prints consumer_timeout", b.patience), nil
}

// rounded is a duration for people.
func rounded(d time.Duration) time.Duration { return d.Round(10 * time.Millisecond) }
