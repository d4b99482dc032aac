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
) (Progress, error) {
	d := &discard{read: read, before: options.Before, replay: &replay{
		operator: o, plan: plan, dead: queue, left: -1, ReplayOptions: ReplayOptions{
			Filter: options.Filter, Limit: options.Limit, DryRun: options.DryRun,
			Progress: options.Progress,
		},
	}}
	d.act, d.end = d.one, d.flush
	err := d.check()
	if err == nil {
		err = d.run(ctx)
	}
	return d.now(), err
}

// discard is a replay to nowhere.
type discard struct {
	*replay
	read   func(amqp.Delivery, int) Letter
	before func([]Letter) error

	letters []Letter // a batch
	bytes   int
	batch   []amqp.Delivery
}

// one adds a chosen letter to the batch.
func (d *discard) one(
	_ context.Context, t *taking, _ *mover, next amqp.Delivery,
) (moved bool, err error) {
	l := d.read(next, t.Seen())
	if !d.chooses(l) {
		return false, nil
	}
	d.moved++
	d.count(func(p *Progress) { p.Chosen++ })
	if d.DryRun {
		return false, nil
	}
	d.letters, d.batch = append(d.letters, l), append(d.batch, next)
	if d.bytes += len(next.Body); len(d.batch) == batchMessages || d.bytes >= batchBytes {
		err = d.flush(t, nil)
	}
	return true, err
}

// flush throws away the batch. With an error, or after one, the rest of the batch stays.
func (d *discard) flush(t *taking, err error) error {
	if len(d.batch) == 0 {
		return err
	}
	if err == nil && d.before != nil {
		err = d.before(d.letters)
	}
	for _, gone := range d.batch {
		if err == nil {
			err = t.explain(gone.Ack(false))
		}
		if err != nil {
			t.Keep(gone.DeliveryTag)
			continue
		}
		d.count(func(p *Progress) { p.Done++ })
	}
	d.letters, d.batch, d.bytes = nil, nil, 0
	if err != nil {
		return err
	}
	return t.explain(t.Flush())
}
