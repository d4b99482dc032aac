package operate

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/internal/link"
	"github.com/millpond-go/millpond/internal/order"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
)

// ErrNotBlocked: no dead letter blocks the key, or another one does than the caller has seen.
var ErrNotBlocked = errors.New("the key is not blocked by this dead letter")

// ReleaseKey lets a key go on that a dead letter blocks. mark is OrderKey.Mark, so that a person
// never releases a key for a letter that came after the look. The letter stays in the dead-letter
// queue: ReplayKey replays it in its place before it releases the key.
//
// The error wraps ErrNotBlocked if the key is not blocked, or by another letter; then nothing was
// done. Without a process that leads the key goes on when one starts.
func (o *Operator) ReleaseKey(
	ctx context.Context, plan topology.Plan, key, mark string,
) error {
	k, err := o.FindKey(ctx, plan, key, "")
	switch {
	case err != nil:
	case k.Mark == "" || k.Mark != mark:
		err = ErrNotBlocked
	default:
		err = o.releaseKey(ctx, plan, key, order.ParseID(mark))
	}
	if err != nil {
		return fmt.Errorf("release a key of queue %q: %w", plan.Queue, err)
	}
	return nil
}

const (
	// releases is how often a release is published until the mark is gone: a process that reads the
	// line anew just then overlooks it.
	releases = 5
	// releasePause is the time between two of them.
	releasePause = 500 * time.Millisecond
)

// releaseKey takes a mark away, and returns when it is gone.
func (o *Operator) releaseKey(
	ctx context.Context, plan topology.Plan, key string, id order.ID,
) error {
	release := amqp.Publishing{
		DeliveryMode: amqp.Persistent,
		Headers: amqp.Table{
			keys.Line: order.Note{Kind: order.Release, ID: id}.String(), keys.Key: key,
		},
	}
	for range releases {
		blocked := false
		err := o.call(ctx, func(ctx context.Context, conn *link.Conn) error {
			if err := o.publishAs(ctx, conn.User(), plan.Line, release); err != nil {
				return err
			}
			k, believed, err := o.findKey(ctx, conn, plan, key, "")
			if err != nil {
				return fmt.Errorf("the release is in the line, and what became of it is not known: %w", err)
			}
			blocked = k.Mark == id.String()
			if blocked && !believed {
				err = unbelieved(conn)
			}
			return err
		})
		if err != nil || !blocked {
			return err
		}
		if err := sleep(ctx, releasePause); err != nil {
			return err
		}
	}
	return fmt.Errorf("the key is still blocked after %d releases: try again in a minute", releases)
}

func unbelieved(conn *link.Conn) error {
	return fmt.Errorf("the process that leads believes no release of user %q: use a user whom "+
		"topology.WithControlUsers names", conn.User())
}

// KeyOf returns the key of a dead letter of a queue that is handled in order; "" if it has none.
func KeyOf(l Letter) string {
	key, _ := l.Delivery.Headers[keys.DeadKey].(string)
	return key
}

// ReplayKey moves the dead letters of a key back in the order of the dead-letter queue, one after
// the other. The options are for Replay; To and Named must be empty.
//
// A letter that blocks its key has kept its place: its copy goes to the line, before all messages
// of the key that wait, and then the key is released. A letter whose key went on has lost its
// place: it goes to the queue, behind all messages of the key. An edited letter keeps key and
// place.
//
// A letter leaves the dead-letter queue after its copy is confirmed, and the key is released after
// that. So wherever ReplayKey is interrupted, even killed, no message overtakes the letter: it may
// be handled twice, one directly after the other, and the next ReplayKey ends the rest. A letter
// that is dead again is not replayed again.
//
// The error wraps ErrUnsafe if a letter blocks the key and is neither in the dead-letter queue nor
// in the line: it was discarded, or is on its way. ReleaseKey lets the key go on.
func (o *Operator) ReplayKey(
	ctx context.Context, plan topology.Plan, key string, options MoveOptions,
) (Progress, error) {
	k := &keyReplay{key: key, replay: o.moving(plan, options)}
	// One after the other: if the broker refuses a letter, no later letter is before it.
	k.mine, k.become, k.alone = k.isNext, k.inItsPlace, true
	err := k.run(ctx)
	if err != nil {
		err = fmt.Errorf("replay dead letters of a key of queue %q: %w", plan.Queue, err)
	}
	return k.now(), err
}

// errBlocks is the refusal of a letter that must go to the line.
var errBlocks = errors.New("it blocks the later messages of its key and would lose its place: " +
	"replay the key, with millpond order replay, Operator.ReplayKey, or on the page of waiting " +
	"messages")

// marks are the IDs of the dead letters that block their keys.
type marks map[string]bool

// learnMarks asks which letters block their keys, before the first letter of a key is replayed to
// the queue. A letter that the round has found was dead before, so its mark was there before.
func (r *replay) learnMarks(ctx context.Context, l Letter) error {
	toQueue := r.To == "" || r.To == r.plan.Queue
	if r.plan.Line == "" || !toQueue || r.marks != nil || l.Delivery.Headers[keys.DeadLine] == nil {
		return nil
	}
	state, err := r.operator.Order(ctx, r.plan)
	if err != nil {
		return err
	}
	found := marks{}
	for _, k := range state.BlockedKeys() {
		found[k.Mark] = true
	}
	if state.Others > 0 && len(found) == len(state.Keys) {
		return fmt.Errorf("%w: more than %d keys are blocked, and the others are not told: replay or "+
			"release these first", ErrUnsafe, len(found))
	}
	r.marks = found
	return nil
}

// noteOf returns the note of a letter's place in the line.
func noteOf(l Letter) (note order.Note, text string) {
	text, _ = l.Delivery.Headers[keys.DeadLine].(string)
	return order.ParseNote(text), text
}

// has reports whether a letter blocks its key.
func (m marks) has(l Letter) bool {
	note, _ := noteOf(l)
	return m[note.ID.String()]
}

// keyReplay replays the letters of one key. It looks at the dead-letter queue once, or again for
// each letter that blocks the key: the place of a letter is known only while the key is blocked.
type keyReplay struct {
	*replay
	key string

	first bool            // the first look
	rest  map[string]bool // by their notes: letters that were there at the first look, and are left

	// Of one look.
	asked   bool
	state   OrderKey // since the look has begun
	found   bool     // the letter that blocks the key
	blocked bool     // a copy of it is in the line, so that the key is to be released
}

func (k *keyReplay) run(ctx context.Context) error {
	if k.plan.Line == "" || k.key == "" || k.To != "" || k.Named {
		return fmt.Errorf("%w: name a queue that is handled in order and a key, and leave To and "+
			"Named out", ErrInvalidOptions)
	}
	if err := k.prepare(ctx); err != nil {
		return err
	}
	k.rest = map[string]bool{}
	for k.first = true; k.first || len(k.rest) > 0; k.first = false {
		k.asked, k.found, k.blocked = false, false, false
		before := len(k.rest)
		for again := true; again; {
			var err error
			if again, err = k.round(ctx); err != nil {
				return err
			}
		}
		if k.DryRun {
			break
		}
		if err := k.free(ctx); err != nil {
			return err
		}
		if !k.first && len(k.rest) == before || k.Limit > 0 && k.moved == k.Limit {
			break // the letters that are left are gone, or more than the limit
		}
	}
	return k.refusal
}

// free releases the key if its letter is in the line.
func (k *keyReplay) free(ctx context.Context) error {
	if err := k.ask(ctx); err != nil {
		return err
	}
	switch {
	case k.state.Mark == "", !k.blocked && (k.found || !k.first):
		return nil // it goes on, or its letter was not chosen
	case !k.blocked && !k.state.Replayed: // else an earlier replay was interrupted
		return fmt.Errorf("%w: the dead letter %q blocks the key since %s, and it is neither in queue "+
			"%q nor in the line: it was discarded, moved, or is on its way; release the key if it is to go "+
			"on without it", ErrUnsafe, k.state.MessageID, k.state.Blocked.UTC().Format(time.RFC3339),
			k.source)
	}
	return k.operator.releaseKey(ctx, k.plan, k.key, order.ParseID(k.state.Mark))
}

// ask asks for the state of the key, once for each look. A letter that the look finds was dead
// before, so its mark was in the line before.
func (k *keyReplay) ask(ctx context.Context) error {
	if k.asked {
		return nil
	}
	err := k.operator.call(ctx, func(ctx context.Context, conn *link.Conn) (err error) {
		var believed bool
		k.state, believed, err = k.operator.findKey(ctx, conn, k.plan, k.key, "")
		if err == nil && k.state.Mark != "" && !believed {
			err = unbelieved(conn)
		}
		return err
	})
	k.asked = err == nil
	return err
}

// isNext reports whether a letter is of the key and its turn has come.
func (k *keyReplay) isNext(ctx context.Context, l Letter) (bool, error) {
	if KeyOf(l) != k.key {
		return false, nil
	}
	if err := k.ask(ctx); err != nil {
		return false, err
	}
	_, text := noteOf(l)
	name, isMark := l.ID+"\x00"+text, k.isMark(l)
	k.found = k.found || isMark
	if !k.first && !k.rest[name] || !k.match(l) {
		return false, nil
	}
	if k.state.Mark != "" && !isMark && k.first && !k.DryRun && !k.isForeign(l) {
		k.rest[name] = true // later
		return false, nil
	}
	delete(k.rest, name)
	return true, nil
}

// isMark reports whether a letter blocks the key.
func (k *keyReplay) isMark(l Letter) bool {
	note, _ := noteOf(l)
	return k.state.Mark != "" && note.ID.String() == k.state.Mark
}

// inItsPlace lets a letter that blocks its key go to the line, and another one to the queue.
func (k *keyReplay) inItsPlace(_ context.Context, l Letter, frame int) (c copied, err error) {
	c.RoutingKey = k.plan.Queue
	c.msg, c.edited, err = k.compose(l, frame)
	if err != nil || !k.isMark(l) {
		return c, err
	}
	c.RoutingKey = k.plan.Line
	if c.msg.Headers == nil {
		c.msg.Headers = amqp.Table{}
	}
	note, _ := noteOf(l)
	note.Kind = order.Wait
	c.msg.Headers[header.Queue] = k.plan.Queue
	c.msg.Headers[keys.Key] = k.key
	c.msg.Headers[keys.Line] = note.String()
	if c.msg.Priority > 0 { // it must not change places with the release
		c.msg.Headers[keys.Priority] = strconv.Itoa(int(c.msg.Priority))
		c.msg.Priority = 0
	}
	err = fit(&c.msg, frame)
	k.blocked = err == nil // a letter that does not fit stays, and blocks its key
	return c, err
}
