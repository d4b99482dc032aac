package operate

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/internal/wire"
	"github.com/millpond-go/millpond/middleware/header"
)

// Returned is the result of ReturnStranded.
type Returned struct {
	Progress
	// Left counts the chosen messages that stay because their queue does not exist, by queue in the
	// order of the names. After a thousand queues the others are counted under OtherQueues.
	Left []QueueCount `json:"left,omitempty"`
}

// OtherQueues stands in a QueueCount for all queues after the first thousand.
const OtherQueues = "(others)"

// QueueCount is a number of messages for a queue. Queue is empty for messages whose headers name
// none.
type QueueCount struct {
	Queue    string `json:"queue"`
	Messages int    `json:"messages"`
}

// ReturnStranded moves messages of a stranded queue to their queues: each is confirmed there before
// it leaves the stranded queue. Wherever it is interrupted, even killed, no message is lost; after
// a kill as many may be there twice as after one of Replay. They keep their order. A message whose
// queue does not exist stays, and the result counts it.
//
// The options are for Replay; Named, Edit and Originals must be empty. To is the queue that gets
// the messages, in place of the queue that the headers of each name; they name To then, so that the
// retry state counts there.
//
// The retry state stays: attempts go on where they were. Left out are the headers of the broker,
// CC, BCC, the user id and the expiration, as with every message that this library publishes again.
// With Via, a returned message comes to its queue alone, and so do its later retries.
//
// Any user who may publish to the wait queues or the stranded queue may have written the name of
// the queue into the headers. To return messages to chosen queues only, compare Letter.Queue in the
// filter's Match.
//
// ReturnStranded moves only messages that were in the queue at the beginning. Its errors are like
// Replay's, and Returned is right with every error.
func (o *Operator) ReturnStranded(
	ctx context.Context, queue string, options ReplayOptions,
) (Returned, error) {
	r := &returning{left: map[string]int{}, replay: &replay{
		operator: o, dead: queue, left: -1, pace: newPace(options.Rate), ReplayOptions: options,
	}}
	r.act, r.replay.unroutable = r.one, r.unroutable
	var err error
	switch {
	case r.To == queue:
		err = fmt.Errorf("%w: the messages are in queue %q already", ErrInvalidOptions, queue)
	case r.Edit != nil || r.Named || r.Originals != "":
		err = fmt.Errorf("%w: a stranded message is not edited, and Named is for dead letters",
			ErrInvalidOptions)
	default:
		err = r.check()
	}
	if err == nil {
		err = o.withCauses(ctx, func(c *causes) error {
			r.causes = c
			return r.run(ctx)
		})
	}
	if err != nil {
		err = strandedError("return", queue, err)
	}
	return r.result(), err
}

// returning is a replay of stranded messages.
type returning struct {
	*replay
	causes *causes
	taken  *taking        // whose messages are counted in left
	left   map[string]int // guarded by mu
}

func (r *returning) one(
	ctx context.Context, t *taking, m *mover, d amqp.Delivery,
) (moved bool, err error) {
	r.begin(t)
	l := newStranded(d, t.Seen())
	if !r.chooses(l) {
		return false, nil
	}
	r.count(func(p *Progress) { p.Chosen++ })
	target := cmp.Or(r.To, l.Queue)
	found := r.causes.queue(target)
	switch {
	case found.err == nil && !found.exists, target == r.dead:
		r.stays(target)
		return false, nil
	case r.DryRun && found.err != nil:
		return false, found.err
	case r.DryRun:
		r.moved++
		return false, nil
	}
	msg := returned(&d, r.To)
	if err := fit(&msg, t.frame); err != nil {
		r.refuse(l, err)
		return false, nil
	}
	if err := r.pace.wait(ctx); err != nil {
		return false, err
	}
	if err := m.move(d, "", target, msg); err != nil {
		return false, err
	}
	r.moved++
	return true, nil
}

// begin begins a new count for a new round.
func (r *returning) begin(t *taking) {
	if t == r.taken {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.taken = t
	clear(r.left)
}

// unroutable counts a message whose queue has vanished since it was asked for.
func (r *returning) unroutable(d amqp.Delivery) {
	queue, _ := d.Headers[header.Queue].(string)
	r.stays(cmp.Or(r.To, queue))
}

// stays counts a message that stays for want of its queue.
func (r *returning) stays(queue string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, known := r.left[queue]; !known && len(r.left) >= maxAnswers {
		queue = OtherQueues
	}
	r.left[queue]++
}

func (r *returning) result() Returned {
	result := Returned{Progress: r.now()}
	r.mu.Lock()
	defer r.mu.Unlock()
	for queue, n := range r.left {
		result.Left = append(result.Left, QueueCount{queue, n})
	}
	slices.SortFunc(result.Left, func(a, b QueueCount) int { return cmp.Compare(a.Queue, b.Queue) })
	return result
}

// returned makes the message that goes back with its retry state. In another queue than its own the
// state counts if it names that queue, and the way back through an exchange is not that queue's.
func returned(d *amqp.Delivery, to string) amqp.Publishing {
	queue, known := d.Headers[header.Queue].(string)
	moved := known && to != "" && to != queue
	var notes map[string]string
	if moved {
		notes = map[string]string{header.Queue: to}
	}
	msg := wire.Publishing(d, func(key string) bool { return moved && key == keys.Via }, notes)
	msg.Priority = wire.Priority(d, keys.Priority)
	return msg
}
