package operate

import (
	"context"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/topology"
)

const (
	// batchMessages and batchBytes bound the messages that are thrown away at once.
	batchMessages = 200
	batchBytes    = 8 << 20
)

// DiscardOptions say which messages Discard throws away. The zero value throws away every dead
// letter of the queue.
type DiscardOptions struct {
	// Filter chooses the letters. Default: all.
	Filter Filter
	// Limit is the most letters to throw away. Default: all.
	Limit int
	// DryRun counts and throws nothing away. Default: false.
	DryRun bool
	// Before is called with letters that are about to be thrown away, up to 200 at once; they go when
	// it has returned nil. If it stores them durably (Encode), each letter is in the file or in the
	// queue whenever the process ends, and letters of at most one call are in both. With an error they
	// stay, and Discard ends. Default: the letters are gone.
	Before func(letters []Letter) error
	// Progress is called after each message. Default: no call.
	Progress func(Progress)
}

// Discard throws dead letters away, also letters of other queues in the same dead-letter queue. It
// looks only at messages that were in the queue at the beginning.
func (o *Operator) Discard(
	ctx context.Context, plan topology.Plan, options DiscardOptions,
) (Progress, error) {
	var p Progress
	queue, err := deadQueue(plan)
	if err == nil {
		p, err = o.discard(ctx, plan, queue, newLetter, options)
	}
	if err != nil {
		return p, fmt.Errorf("discard dead letters of queue %q: %w", plan.Queue, err)
	}
	return p, nil
}

// discard throws letters of a queue away, which read makes of deliveries.
func (o *Operator) discard(
	ctx context.Context, plan topology.Plan, queue string, read func(amqp.Delivery, int) Letter,
	options DiscardOptions,
) (p Progress, err error) {
	if options.Limit < 0 {
		return p, fmt.Errorf("%w: limit %d: it cannot be negative", ErrInvalidOptions, options.Limit)
	}
	d := &discard{DiscardOptions: options, plan: plan, read: read}
	if d.chooses, err = options.Filter.Matcher(); err != nil {
		return p, err
	}
	for left, again := -1, true; again && err == nil; {
		left, again, err = d.round(ctx, o, queue, left)
	}
	return d.progress, err
}

type discard struct {
	DiscardOptions
	plan     topology.Plan
	chooses  func(Letter) bool
	read     func(amqp.Delivery, int) Letter
	progress Progress

	letters []Letter
	batch   []amqp.Delivery
	bytes   int
}

// round looks at up to left messages. Once messages have been held for as long as is safe, it
// returns again and the number of messages that are still to be looked at.
func (d *discard) round(
	ctx context.Context, o *Operator, queue string, left int,
) (_ int, again bool, err error) {
	t, err := o.take(ctx, d.plan, queue, left)
	if err != nil {
		return 0, false, err
	}
	before := d.progress.Done
	d.progress.Chosen = before
	again, err = d.pass(t)
	if err == nil {
		err = d.flush(t)
	}
	for _, kept := range d.batch {
		t.Keep(kept.DeliveryTag)
	}
	if back := t.giveBack(); err == nil {
		err = back
	}
	done := d.progress.Done - before
	if again && done == 0 && err == nil {
		err = fmt.Errorf("%w: %v, and nothing could be thrown away", ErrTooSlow, holdLimit)
	}
	return t.Total() - done, again, err
}

func (d *discard) pass(t *taking) (again bool, err error) {
	for {
		next, ok, err := t.next()
		if err != nil || !ok {
			return false, err
		}
		d.progress.Total = max(d.progress.Total, t.Total())
		d.progress.Seen = max(d.progress.Seen, d.progress.Total-t.Total()+t.Seen())
		if l := d.read(next, t.Seen()); d.chooses(l) {
			d.progress.Chosen++
			d.letters, d.batch = append(d.letters, l), append(d.batch, next)
			d.bytes += len(next.Body)
		} else {
			t.Keep(next.DeliveryTag)
		}
		enough := d.Limit > 0 && d.progress.Chosen == d.Limit
		if enough || len(d.batch) == batchMessages || d.bytes >= batchBytes {
			if err := d.flush(t); err != nil {
				return false, err
			}
		}
		d.tell()
		if enough || t.old() {
			return !enough, nil
		}
	}
}

// flush throws away the batch.
func (d *discard) flush(t *taking) error {
	if d.DryRun {
		for _, kept := range d.batch {
			t.Keep(kept.DeliveryTag)
		}
		d.letters, d.batch, d.bytes = nil, nil, 0
		return nil
	}
	if d.Before != nil && len(d.letters) > 0 {
		if err := d.Before(d.letters); err != nil {
			return err
		}
	}
	for _, gone := range d.batch {
		if err := gone.Ack(false); err != nil {
			return t.explain(err)
		}
		d.progress.Done++
	}
	d.letters, d.batch, d.bytes = nil, nil, 0
	d.tell()
	return t.explain(t.Flush())
}

func (d *discard) tell() {
	if d.Progress != nil {
		d.Progress(d.progress)
	}
}
