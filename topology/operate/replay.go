package operate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"sync"
	"time"

	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/audit"
	"github.com/millpond-go/millpond/internal/excerpt"
	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/internal/link"
	"github.com/millpond-go/millpond/internal/wire"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
)

// ReplayOptions say which messages Replay moves, and how. The zero value moves every dead letter of
// the queue back to it, as fast as the broker takes them.
type ReplayOptions struct {
	// Filter chooses the letters. Default: all.
	Filter Filter
	// To is the queue that gets them. Default: the queue of the plan, and only letters whose headers
	// name it or none.
	To string
	// Named chooses only letters whose headers name the queue of the plan, also with To. The others
	// count as foreign. It is for a dead-letter queue of several queues, where a letter that names no
	// queue may be of any of them. Default: false.
	Named bool
	// Rate is the number of letters a second. Default: as fast as possible.
	Rate float64
	// Limit is the most letters to move. Default: all.
	Limit int
	// DryRun counts and moves nothing. Edit is called, so that Refused counts as it will. Default:
	// false.
	DryRun bool
	// Edit repairs msg, which is published in place of a letter; letter is a copy. A message that it
	// has changed carries header.EditedAt and header.EditedBy. With an error the letter stays in its
	// queue, and the next one is looked at. Default: no change.
	Edit func(letter Letter, msg *amqp.Publishing) error
	// EditedBy names the editor in the header, in up to 255 bytes. Default: the name of the Operator.
	EditedBy string
	// Originals is the queue that keeps the letters that Edit has changed as they were, each confirmed
	// there before the repaired one is published. Default: <dead-letter queue>.originals, declared
	// like the dead-letter queue.
	Originals string
	// Progress is called after each message, by one goroutine at a time. It must be quick. Default: no
	// call.
	Progress func(Progress)
}

// Replay moves dead letters back to their queue, where their attempts start anew: each is confirmed
// there before it leaves the dead-letter queue. Wherever Replay is interrupted, even killed, no
// letter is lost and the rest stays. They keep their order.
//
// After a kill at most 64 letters are there twice, the batch that was open.
//
// Payload, properties and headers stay as they are, also the history of earlier attempts;
// header.Replays counts the replays. Left out are the headers of the broker, CC, BCC, the user id
// and the expiration, as with every message that this library publishes again. Where the headers
// leave too little room in a frame, the message loses the history, then the text of the error; a
// message that is too large all the same stays, and is counted as refused.
//
// Replay moves only messages that were in the queue at the beginning: it ends, even where every
// message fails again and comes back.
//
// A letter that blocks its key (inorder.Strategy with Block) is refused, because behind the waiting
// messages of the key it would have lost its place: see ReplayKey.
//
// After the first message that cannot be published Replay stops and says why;
// topology.ErrUnroutable means that the queue does not exist. When ctx is done, publishes under way
// are finished. Progress is right with every error.
func (o *Operator) Replay(
	ctx context.Context, plan topology.Plan, options ReplayOptions,
) (Progress, error) {
	r := &replay{
		operator: o, plan: plan, ReplayOptions: options, left: -1, pace: newPace(options.Rate),
	}
	r.act = r.one
	err := r.prepare(ctx)
	if err == nil {
		err = r.run(ctx)
	}
	if err != nil {
		return r.now(), fmt.Errorf("replay dead letters of queue %q: %w", plan.Queue, err)
	}
	return r.now(), nil
}

// run moves until the end.
func (r *replay) run(ctx context.Context) error {
	for {
		if again, err := r.round(ctx); err != nil {
			return err
		} else if !again {
			return r.refusal
		}
	}
}

type replay struct {
	ReplayOptions
	operator *Operator
	plan     topology.Plan
	dead     string
	chooses  func(Letter) bool
	pace     pace
	// act begins to move a message if it is to be moved.
	act func(ctx context.Context, t *taking, m *mover, d amqp.Delivery) (moved bool, err error)
	// unroutable is the hook of the mover.
	unroutable func(d amqp.Delivery)
	// end, if it is set, is called at the end of a round, with its error. It returns the error.
	end func(t *taking, err error) error

	marks   marks // of letters that block their keys; of one round
	left    int   // of the messages there at the beginning; -1 before
	moved   int   // begun to move
	refusal error // of the first letter that was refused

	// Of a ramp and a rehearsal; nil for none. turn is called before a letter is published and may
	// end the round with an error. mark names the replay in a letter. would sees the letters of a dry
	// run.
	turn  func(ctx context.Context, t *taking) error
	mark  func() string
	would func(l Letter)

	mu       sync.Mutex
	progress Progress
}

func (r *replay) prepare(ctx context.Context) error {
	var err error
	if r.dead, err = deadQueue(r.plan); err != nil {
		return err
	}
	target := cmp.Or(r.To, r.plan.Queue)
	if target == r.dead {
		return fmt.Errorf("%w: the letters are in queue %q already", ErrInvalidOptions, target)
	}
	if err := r.check(); err != nil {
		return err
	}
	if r.Edit == nil || r.DryRun {
		return nil
	}
	if err := r.operator.findTarget(ctx, target); err != nil { // before an original is written
		return err
	}
	if r.Originals != "" {
		return nil
	}
	if err := r.operator.checkPeek(ctx, r.plan, r.dead); err != nil { // before anything is declared
		return err
	}
	r.Originals = r.dead + ".originals"
	for _, q := range r.plan.Queues {
		if q.Name == r.dead {
			q.Name, q.Adopt = r.Originals, true
			return r.operator.Declare(ctx, topology.Plan{Queue: r.plan.Queue, Queues: []topology.Queue{q}})
		}
	}
	return fmt.Errorf("%w: name the queue that keeps the originals, because the plan does not have "+
		"queue %q", ErrInvalidOptions, r.dead)
}

// check reads the options that every replay has.
func (r *replay) check() (err error) {
	if r.Limit < 0 || r.Rate < 0 {
		return fmt.Errorf("%w: limit %d, rate %g: neither can be negative", ErrInvalidOptions, r.Limit,
			r.Rate)
	}
	r.chooses, err = r.Filter.Matcher()
	return err
}

// findTarget returns topology.ErrUnroutable if the queue does not exist. A queue of another
// connection alone takes messages, too, and a user without the right to ask may publish.
func (o *Operator) findTarget(ctx context.Context, queue string) error {
	err := o.call(ctx, func(ctx context.Context, conn *link.Conn) error {
		_, err := audit.Passive(ctx, conn.Do, queue)
		return err
	})
	switch {
	case audit.IsCode(err, amqp.NotFound):
		return fmt.Errorf("queue %q: %w: %w", queue, topology.ErrUnroutable, err)
	case audit.IsCode(err, amqp.ResourceLocked), audit.IsCode(err, amqp.AccessRefused):
		return nil
	}
	return err
}

// round moves until the end, or until messages have been held for as long as is safe; then it
// returns again.
func (r *replay) round(ctx context.Context) (again bool, err error) {
	t, err := r.operator.take(ctx, r.plan, r.dead, r.left)
	if err != nil {
		return false, err
	}
	if r.Rate > 0 { // a message that is taken long before its turn is held for nothing
		t.LimitPage(int(r.Rate) + 1)
	}
	// They are counted again.
	r.count(func(p *Progress) { p.Chosen, p.Foreign, p.Refused = p.Done, 0, 0 })
	r.marks = nil
	before := r.now().Done
	m := newMover(ctx, r.operator, t, func() { r.count(func(p *Progress) { p.Done++ }) })
	m.unroutable = r.unroutable
	again, err = r.pass(ctx, t, m)
	if moveErr := m.finish(); err == nil || errors.Is(err, errStopped) {
		err = moveErr
	}
	if r.end != nil {
		err = r.end(t, err)
	}
	if back := t.giveBack(); err == nil {
		err = back
	}
	done := r.now().Done - before
	r.left = t.Total() - done
	if again && done == 0 && err == nil {
		err = fmt.Errorf("%w: %v, and nothing could be done", ErrTooSlow, holdLimit)
	}
	return again, err
}

// errStopped: the mover takes no more; it knows why.
var errStopped = errors.New("stopped")

// pass looks at the messages of a round.
func (r *replay) pass(ctx context.Context, t *taking, m *mover) (again bool, err error) {
	for {
		d, ok, err := t.next()
		if err != nil || !ok {
			return false, err
		}
		r.count(func(p *Progress) {
			p.Total = max(p.Total, t.Total())
			p.Seen = max(p.Seen, p.Total-t.Total()+t.Seen())
		})
		moved, err := r.act(ctx, t, m, d)
		if !moved {
			t.Keep(d.DeliveryTag)
		}
		switch {
		case err != nil:
			return false, err
		case r.Limit > 0 && r.moved == r.Limit:
			return false, nil
		case t.old():
			return true, nil
		}
		select {
		case <-m.failed:
			return false, errStopped
		default:
		}
	}
}

// one begins to move a message if it is to be moved.
func (r *replay) one(
	ctx context.Context, t *taking, m *mover, d amqp.Delivery,
) (moved bool, err error) {
	l := newLetter(d, t.Seen())
	if !r.chooses(l) {
		return false, nil
	}
	if r.isForeign(l) {
		r.count(func(p *Progress) { p.Foreign++ })
		return false, nil
	}
	r.count(func(p *Progress) { p.Chosen++ })
	if err := r.learnMarks(ctx, l); err != nil {
		return false, err
	}
	msg, edited, err := r.compose(l, t.frame)
	if err == nil {
		err = r.marks.refuse(l)
	}
	if err != nil {
		r.refuse(l, err)
		return false, nil
	}
	if r.DryRun {
		if r.would != nil {
			r.would(l)
		}
		r.moved++
		return false, nil
	}
	if err := r.pace.wait(ctx); err != nil {
		return false, err
	}
	if r.turn != nil {
		if err := r.turn(ctx, t); err != nil {
			return false, err
		}
	}
	if edited {
		original := wire.Publishing(&d, keys.IsLive, nil)
		if err := r.operator.publish(m.ctx, "", r.Originals, original); err != nil {
			return false, fmt.Errorf("keep the original of message %q in queue %q: %w",
				l.ID, r.Originals, err)
		}
	}
	if err := m.move(d, "", cmp.Or(r.To, r.plan.Queue), msg); err != nil {
		return false, err
	}
	r.moved++
	return true, nil
}

// isForeign reports whether a letter is left to another plan.
func (r *replay) isForeign(l Letter) bool {
	return l.Queue != r.plan.Queue && (r.Named || r.To == "" && l.Queue != "")
}

// refuse counts a message that stays.
func (r *replay) refuse(l Letter, err error) {
	r.count(func(p *Progress) { p.Refused++ })
	if r.refusal == nil {
		r.refusal = fmt.Errorf("message %q stays: %w", l.ID, err)
	}
}

// compose returns the message that is published in place of a letter, and whether Edit has changed
// it.
func (r *replay) compose(l Letter, frame int) (msg amqp.Publishing, edited bool, err error) {
	counted := map[string]string{header.Replays: strconv.Itoa(l.Replays + 1)}
	if r.mark != nil {
		counted[keys.Replay] = r.mark()
	}
	msg = wire.Publishing(&l.Delivery, isLiveButOrigin, counted)
	if r.Edit != nil {
		before := msg
		own := wire.Clone(&l.Delivery)
		msg = wire.Publishing(&own, isLiveButOrigin, counted)
		copied := l
		copied.Delivery = wire.Clone(&l.Delivery)
		if err := r.Edit(copied, &msg); err != nil {
			return msg, false, err
		}
		if edited = !reflect.DeepEqual(before, msg); edited {
			if msg.Headers == nil {
				msg.Headers = amqp.Table{}
			}
			msg.Headers[header.EditedAt] = time.Now().UTC().Format(time.RFC3339Nano)
			msg.Headers[header.EditedBy] = excerpt.Of(
				cmp.Or(r.EditedBy, r.operator.opts.name), maxName)
		}
	}
	return msg, edited, fit(&msg, frame)
}

// isLiveButOrigin reports whether a key is a header of a live message that a dead letter must not
// have.
func isLiveButOrigin(key string) bool {
	return keys.IsLive(key) && key != keys.OriginExchange && key != keys.OriginRoutingKey
}

// frameReserve is the room of a frame for its own bytes, the nonce, and the counts of a quorum
// queue (F25).
const frameReserve = 8 + 64 + 64

// fit leaves out headers until msg fits in a frame.
func fit(msg *amqp.Publishing, frame int) error {
	for _, key := range []string{
		keys.DeadHistory, wmiddleware.ReasonForPoisonedKey, header.DeadError,
	} {
		if wire.PropertiesSize(msg) <= frame-frameReserve {
			return nil
		}
		delete(msg.Headers, key)
	}
	if size := wire.PropertiesSize(msg); size > frame-frameReserve {
		return fmt.Errorf("%w: %d bytes, %d are left for them",
			topology.ErrTooLarge, size, frame-frameReserve)
	}
	return nil
}

// count changes the progress and reports it.
func (r *replay) count(change func(*Progress)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(&r.progress)
	if r.Progress != nil {
		r.Progress(r.progress)
	}
}

func (r *replay) now() Progress {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.progress
}
