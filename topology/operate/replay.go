package operate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
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

// MoveOptions say which messages a call moves, and how. The zero value moves all, as fast as the
// broker takes them. To, Named, MaxReplays, Edit and KeepIn give ErrInvalidOptions to a call that
// has no use for them.
type MoveOptions struct {
	// Filter chooses the messages. Default: all.
	Filter Filter
	// To is the queue that gets them, of Replay and ReturnStranded. Default: of Replay the queue of
	// the plan, and only letters whose headers name it or none.
	To string
	// Named lets Replay choose only letters whose headers name the queue of the plan, also with To.
	// The others count as foreign. It is for a dead-letter queue of several queues, where a letter
	// that names no queue may be of any of them. Default: false.
	Named bool
	// MaxReplays lets Replay pass over letters that were replayed so often before (Letter.Replays).
	// Default: no limit, and 5 with RampEvery.
	MaxReplays int
	// Rate is the number of messages a second. Default: as fast as possible.
	Rate float64
	// Limit is the most messages to move. Default: all.
	Limit int
	// DryRun counts and moves nothing. Edit is called, so that Refused counts as it will. Default:
	// false.
	DryRun bool
	// Edit lets Replay repair msg, which is published in place of a letter; letter is a copy. A
	// message that it has changed carries header.EditedAt and header.EditedBy. The letter as it was
	// is confirmed before in <dead-letter queue>.originals, declared like the dead-letter queue. With
	// an error the letter stays in its queue, and the next one is looked at. Default: no change.
	Edit func(letter Letter, msg *amqp.Publishing) error
	// EditedBy names the editor in the header, in up to 255 bytes. Default: the name of the Operator.
	EditedBy string
	// KeepIn is a file, to which Discard writes letters as Export does, up to 64 at once, before it
	// throws them away. Whenever the process ends, each letter is in the file or in the queue, and at
	// most 64 are in both. With an error of the file they stay, and Discard ends. Default: the letters
	// are gone.
	KeepIn interface {
		io.Writer
		Sync() error
	}
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
	ctx context.Context, plan topology.Plan, options MoveOptions,
) (Progress, error) {
	r := o.moving(plan, options)
	err := r.prepare(ctx)
	if err == nil {
		err = r.run(ctx)
	}
	if err != nil {
		err = fmt.Errorf("replay dead letters of queue %q: %w", plan.Queue, err)
	}
	return r.now(), err
}

// Discard throws dead letters away, also letters of other queues in the same dead-letter queue. It
// looks only at messages that were in the queue at the beginning.
func (o *Operator) Discard(
	ctx context.Context, plan topology.Plan, options MoveOptions,
) (Progress, error) {
	var p Progress
	queue, err := deadQueue(plan)
	if err == nil {
		p, err = o.discard(ctx, plan, queue, newLetter, options)
	}
	if err != nil {
		err = fmt.Errorf("discard dead letters of queue %q: %w", plan.Queue, err)
	}
	return p, err
}

// discard throws messages of a queue away.
func (o *Operator) discard(
	ctx context.Context, plan topology.Plan, queue string, read func(amqp.Delivery, int) Letter,
	options MoveOptions,
) (Progress, error) {
	r := o.moving(plan, options)
	r.source, r.read, r.become = queue, read, nil
	err := r.checkPlain(false)
	if err == nil {
		err = r.run(ctx)
	}
	return r.now(), err
}

// replay is a call that looks at the messages of a queue and moves some of them.
type replay struct {
	MoveOptions
	operator *Operator
	plan     topology.Plan
	source   string // the queue that the messages leave
	original string // the queue that keeps letters that were edited as they were
	read     func(d amqp.Delivery, position int) Letter
	match    func(Letter) bool // of the filter
	pace     pace
	// mine reports whether a message is chosen, in place of match. nil: match.
	mine func(ctx context.Context, l Letter) (bool, error)
	// become returns the message that is published in place of another one. An error of type stays
	// leaves that one where it is. nil: messages are thrown away.
	become func(ctx context.Context, l Letter, frame int) (copied, error)
	alone  bool // each message leaves the source before the next one is published

	marks   marks          // of letters that block their keys; of one round
	without map[string]int // messages that stay for want of a queue, by queue; of one round
	left    int            // of the messages there at the beginning; -1 before
	moved   int            // begun to move
	refusal error          // of the first letter that was refused

	// Of a ramp and a rehearsal; nil for none. turn is called before a letter is published and may
	// end the round with an error. mark names the replay in a letter. would sees the letters of a dry
	// run.
	turn  func(ctx context.Context, t *taking) error
	mark  func() string
	would func(l Letter)

	mu       sync.Mutex
	progress Progress
}

// copied is the message that is published in place of another one.
type copied struct {
	topology.Route
	msg    amqp.Publishing
	edited bool // the original is to be kept
}

// stays is the error about a message that stays. It is counted as refused, unless it is empty.
type stays struct{ error }

// moving returns a replay of dead letters.
func (o *Operator) moving(plan topology.Plan, options MoveOptions) *replay {
	r := &replay{
		operator: o, plan: plan, MoveOptions: options, read: newLetter, left: -1,
		pace: newPace(options.Rate),
	}
	r.become = r.toQueue
	return r
}

func (r *replay) prepare(ctx context.Context) error {
	var err error
	if r.source, err = deadQueue(r.plan); err != nil {
		return err
	}
	target := cmp.Or(r.To, r.plan.Queue)
	if target == r.source {
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
	err = r.operator.checkPeek(ctx, r.plan, r.source) // before anything is declared
	if err != nil {
		return err
	}
	r.original = r.source + originals
	for _, q := range r.plan.Queues {
		if q.Name == r.source {
			q.Name, q.Adopt = r.original, true
			return r.operator.Declare(ctx, topology.Plan{Queue: r.plan.Queue, Queues: []topology.Queue{q}})
		}
	}
	return fmt.Errorf("%w: the plan has no queue %q, so no queue like it can keep the originals: use "+
		"topology.PlanFor or View.WithDead", ErrInvalidOptions, r.source)
}

// originals ends the name of the queue that keeps edited letters of a dead-letter queue.
const originals = ".originals"

// check reads the options that every call has.
func (r *replay) check() (err error) {
	if r.Limit < 0 || r.Rate < 0 || r.MaxReplays < 0 {
		return fmt.Errorf("%w: limit %d, rate %g, at most %d replays: none can be negative",
			ErrInvalidOptions, r.Limit, r.Rate, r.MaxReplays)
	}
	if r.KeepIn != nil && r.become != nil {
		return fmt.Errorf("%w: KeepIn is for messages that are thrown away", ErrInvalidOptions)
	}
	r.match, err = r.Filter.Matcher()
	return err
}

// checkPlain is check for a call that does not replay dead letters. Only a return goes to another
// queue.
func (r *replay) checkPlain(returns bool) error {
	if r.To != "" && !returns {
		return fmt.Errorf("%w: only a replay and a return go to another queue", ErrInvalidOptions)
	}
	if r.Edit != nil || r.Named || r.MaxReplays != 0 {
		return fmt.Errorf("%w: Edit, Named and MaxReplays are for replays of dead letters",
			ErrInvalidOptions)
	}
	return r.check()
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

// round moves until the end, or until messages have been held for as long as is safe; then it
// returns again.
func (r *replay) round(ctx context.Context) (again bool, err error) {
	t, err := r.operator.take(ctx, r.plan, r.source, r.left)
	if err != nil {
		return false, err
	}
	if r.Rate > 0 { // a message that is taken long before its turn is held for nothing
		t.LimitPage(int(r.Rate) + 1)
	}
	// They are counted again.
	r.count(func(p *Progress) { p.Chosen, p.Foreign, p.Spent, p.Refused = p.Done, 0, 0, 0 })
	r.marks = nil
	clear(r.without)
	before := r.now().Done
	m := newMover(ctx, r, t)
	again, err = r.pass(ctx, t, m)
	err = m.finish(err)
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
		err = r.one(ctx, t, m, d)
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

// one begins to move a message if it is to be moved, and keeps it otherwise.
func (r *replay) one(ctx context.Context, t *taking, m *mover, d amqp.Delivery) error {
	moved, err := r.move(ctx, t, m, d)
	if !moved {
		t.Keep(d.DeliveryTag)
	}
	return err
}

func (r *replay) move(
	ctx context.Context, t *taking, m *mover, d amqp.Delivery,
) (moved bool, err error) {
	l := r.read(d, t.Seen())
	if chosen, err := r.chosen(ctx, l); !chosen {
		return false, err
	}
	var c copied
	if r.become != nil {
		c, err = r.become(ctx, l, t.frame)
	}
	if stay := (stays{}); errors.As(err, &stay) {
		r.refuse(l, stay.error)
		return false, nil
	}
	if err != nil {
		return false, err
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
	if c.edited {
		original := wire.Publishing(&d, keys.IsLive, nil)
		if err := r.operator.publish(m.ctx, "", r.original, original); err != nil {
			return false, fmt.Errorf("keep the original of message %q in queue %q: %w",
				l.ID, r.original, err)
		}
	}
	if err := m.move(d, c); err != nil {
		return false, err
	}
	r.moved++
	return true, nil
}

// chosen reports whether a message is to be moved, and counts it.
func (r *replay) chosen(ctx context.Context, l Letter) (chosen bool, err error) {
	switch {
	case r.Limit > 0 && r.moved >= r.Limit: // a call that must look at all
		return false, nil
	case r.mine == nil:
		chosen = r.match(l)
	default:
		chosen, err = r.mine(ctx, l)
	}
	switch {
	case !chosen || err != nil:
		return false, err
	case r.isForeign(l):
		r.count(func(p *Progress) { p.Foreign++ })
		return false, nil
	case r.isSpent(l):
		r.count(func(p *Progress) { p.Spent++ })
		return false, nil
	}
	r.count(func(p *Progress) { p.Chosen++ })
	return true, nil
}

// isForeign reports whether a message is left to another plan.
func (r *replay) isForeign(l Letter) bool {
	return r.become != nil && r.plan.Queue != "" && l.Queue != r.plan.Queue &&
		(r.Named || r.To == "" && l.Queue != "")
}

// isSpent reports whether a letter was replayed too often before.
func (r *replay) isSpent(l Letter) bool { return r.MaxReplays > 0 && l.Replays >= r.MaxReplays }

// refuse counts a message that stays.
func (r *replay) refuse(l Letter, err error) {
	if err == nil {
		return
	}
	r.count(func(p *Progress) { p.Refused++ })
	if r.refusal == nil {
		r.refusal = fmt.Errorf("message %q stays: %w", l.ID, err)
	}
}

// toQueue lets a letter go to its queue. It asks for the letters that block their keys first.
func (r *replay) toQueue(ctx context.Context, l Letter, frame int) (c copied, err error) {
	if err := r.learnMarks(ctx, l); err != nil {
		return c, err
	}
	c.RoutingKey = cmp.Or(r.To, r.plan.Queue)
	c.msg, c.edited, err = r.compose(l, frame)
	if err == nil && r.marks.has(l) {
		err = stays{errBlocks}
	}
	return c, err
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
			return msg, false, stays{err}
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
		return stays{fmt.Errorf("%w: %d bytes, %d are left for them",
			topology.ErrTooLarge, size, frame-frameReserve)}
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
