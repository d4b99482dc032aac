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
func atLeastOnce(b *bench) (Status, string) {
	const limit, more = 4, 3
	q := b.waiting(topology.Quorum, b.prefix+"absent", 300*time.Millisecond,
		amqp.Table{"x-max-length": limit})
	first := b.putAll(q.Name, limit+1) // one more than the limit fits (F39)
	if first < limit {
		return Differs, fmt.Sprintf("the wait queue has taken %d of %d messages", first, limit)
	}
	b.empties(q)
	if b.putAll(q.Name, more) == more {
		return Differs, fmt.Sprintf("the wait queue took %d messages and, when their wait was over, "+
			"%d more, with a limit of %d: it does not hold them", first, more, limit)
	}
	return OK, "the wait queue holds them: it is full while no message is ready"
}

// heldAgain lets the target appear when a message is held already.
func heldAgain(b *bench) (Status, string) {
	target := b.keeping(topology.Quorum, "appears")
	q := b.waiting(topology.Quorum, target.Name, 300*time.Millisecond, nil)
	b.enter("", q.Name, amqp.Publishing{})
	b.empties(q)
	b.declare(target)
	began := time.Now()
	switch back := b.take(target.Name, 1, b.patience); {
	case len(back) == 1:
		return OK, fmt.Sprintf("it arrived %v after its target appeared", rounded(time.Since(began)))
	case b.patience > deadLetterTimer+time.Minute:
		return Differs, fmt.Sprintf("it has not arrived within %v", b.patience)
	}
	return Unknown, fmt.Sprintf("not within %v; by default the broker tries again every 3 minutes: "+
		"a patience of 4m sees it", b.patience)
}

// deadLetterTimer is dead_letter_worker_publisher_confirm_timeout by default (F41).
const deadLetterTimer = 3 * time.Minute

// alternateExchange sends messages of two queues through the wait queue of Shared. One of the
// queues is missing.
func alternateExchange(b *bench) (Status, string) {
	const delay = time.Second
	queue := b.keeping(topology.Quorum, "bound")
	plan, err := topology.Shared{Prefix: strings.TrimSuffix(b.prefix, ".")}.Plan(
		queue.Name, []time.Duration{delay})
	b.must(err)
	plan.Queues = append(plan.Queues[:len(plan.Queues)-1], queue) // it needs no dead letters
	b.build(plan)
	for _, key := range []string{b.prefix + "unbound", queue.Name} {
		b.enter(plan.WaitSteps[0].Exchange, key, amqp.Publishing{})
	}
	if len(b.take(b.prefix+"stranded", 1, delay+arrival)) == 0 {
		return Differs, "the message without a queue has not reached the stranded queue"
	}
	if len(b.take(queue.Name, 1, arrival)) == 0 {
		return Differs, "the message behind it has not returned"
	}
	return OK, "the message without a queue is in the stranded queue, the other returned"
}

// keeps watches messages in a queue that keeps them.
func keeps(kind topology.QueueType) experiment {
	return func(b *bench) (Status, string) {
		queue := b.kept(kind, "kept."+string(kind))
		began := time.Now()
		put := b.putAll(queue, manyMessages)
		if put < manyMessages {
			return Differs, fmt.Sprintf("the queue has taken %d of %d messages", put, manyMessages)
		}
		fewer := 0 // looks in a row, because a count may be old
		b.until(b.patience, func() bool {
			left, err := b.ready(queue)
			if audit.IsCode(err, amqp.NotFound) {
				b.stop(Differs, "the queue was gone after %v", rounded(time.Since(began)))
			}
			b.must(err)
			if fewer++; left >= put {
				fewer = 0
			}
			if fewer < 3 {
				b.pause(50 * look)
			}
			return fewer == 3
		})
		after := rounded(time.Since(began))
		left := b.take(queue, put, late)
		return okIf(len(left) == put, "%d of %d messages were there after %v", len(left), put, after)
	}
}

// consumerTimeout keeps a delivery unacked.
func consumerTimeout(b *bench) (Status, string) {
	queue := b.kept(topology.Quorum, "unacked")
	b.enter("", queue, amqp.Publishing{})
	cancelled := b.ch.NotifyCancel(make(chan string, 1))
	arrived, err := b.ch.Consume(queue, "", false, false, false, false, nil)
	b.must(err)
	select {
	case _, ok := <-arrived:
		if !ok {
			b.must(ending(<-b.closed))
		}
	case <-time.After(arrival):
		return Differs, fmt.Sprintf("no consumer got the message within %v", arrival)
	case <-b.ctx.Done():
		b.must(context.Cause(b.ctx))
	}
	began := time.Now()
	const seen = "the broker took an unacked delivery back after %v"
	select {
	case <-cancelled: // 4.3 cancels the consumer (F33)
		return Differs, fmt.Sprintf(seen, rounded(time.Since(began)))
	case why := <-b.closed:
		if why == nil || why.Code != amqp.PreconditionFailed {
			b.must(ending(why))
		}
		return Differs, fmt.Sprintf(seen, rounded(time.Since(began)))
	case <-b.ctx.Done():
		b.must(context.Cause(b.ctx))
	case <-time.After(b.patience):
	}
	// Before 4.3 the broker looks once a minute.
	if b.patience >= audit.DefaultConsumerTimeout-time.Minute {
		return OK, fmt.Sprintf("a delivery stayed unacked for %v", b.patience)
	}
	return Unknown, fmt.Sprintf("longer than %v; the broker does not show it: on a node, "+
		"`rabbitmqctl environment` prints consumer_timeout", b.patience)
}

// rounded is a duration for people.
func rounded(d time.Duration) time.Duration { return d.Round(10 * time.Millisecond) }
