package operate

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/audit"
	"github.com/millpond-go/millpond/internal/link"
	"github.com/millpond-go/millpond/internal/wire"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
)

// TakeBackOptions say which letters TakeBack takes back.
type TakeBackOptions struct {
	// Run is the replay to undo: RampResult.Run. It must be set.
	Run string
	// Limit is the most letters to move. Default: all.
	Limit int
	// DryRun counts and moves nothing. Default: false.
	DryRun bool
	// Progress is called after each message, by one goroutine at a time. It must be quick. Default:
	// no call.
	Progress func(Progress)
}

// maxTakeBack is the most ready messages of a queue that TakeBack looks at. The scan keeps the
// order of a quorum queue up to this number.
const maxTakeBack = 10_000

// endedLook is how long a consumer may still be counted after it has ended.
const endedLook = 3 * time.Second

// TakeBack undoes a Ramp as far as no handler got its letters: letters of the run that are ready in
// the plan's queue go back to its dead-letter queue, each confirmed there before it leaves the
// queue, as if they had not been replayed. Progress.Refused counts letters of the run that had an
// attempt since and are ready again; they stay. Wherever TakeBack is interrupted, even killed, no
// letter is lost; after a kill as many may be there twice as after one of Replay.
//
// To find the letters all ready messages of the queue have to be taken and the others given back,
// after which they carry the redelivered flag. So the error is ErrUnsafe, and nothing is moved,
// where that would harm them: while the queue has a consumer, which would get later messages first;
// above 10 000 ready messages, whose order could not be kept; and in a queue that ends with its
// last consumer. A queue whose delivery limit is within reach gives ErrUnsafePeek. TakeBack ends
// with ErrUnsafe when a consumer comes to a classic queue; the rest stays in the queue. A consumer
// that comes to a quorum queue meanwhile is not noticed: it may get younger messages first.
//
// A quorum queue before RabbitMQ 4.3 counts each message that is given back, and the Subscriber
// handles a message with five counts with care, alone: call TakeBack once or twice, not regularly.
func (o *Operator) TakeBack(
	ctx context.Context, plan topology.Plan, options TakeBackOptions,
) (Progress, error) {
	b := &takeBack{run: options.Run, replay: &replay{
		operator: o, plan: plan, dead: plan.Queue, left: -1,
		ReplayOptions: ReplayOptions{
			Limit: options.Limit, DryRun: options.DryRun, Progress: options.Progress,
		},
	}}
	b.act = b.one
	err := b.takeBack(ctx)
	if err != nil {
		err = fmt.Errorf("take letters of queue %q back: %w", plan.Queue, err)
	}
	return b.now(), err
}

// takeBack is a replay from the queue of the plan to its dead-letter queue.
type takeBack struct {
	*replay
	run   string
	conn  *link.Conn
	asked time.Time
	// blind says that the broker may count consumers of the scan that were cancelled, as long as
	// their messages are out, as a quorum queue does: always on 4.3.6, sometimes on 3.10.8.
	blind bool
}

func (b *takeBack) takeBack(ctx context.Context) (err error) {
	if b.To, err = deadQueue(b.plan); err != nil {
		return err
	}
	if b.run == "" || strings.Contains(b.run, ".") || b.Limit < 0 {
		return fmt.Errorf("%w: run %q, limit %d: name the run, and no negative limit",
			ErrInvalidOptions, b.run, b.Limit)
	}
	conn, end, err := b.operator.connect(ctx)
	if err != nil {
		return err
	}
	defer end()
	b.conn = conn
	if err := b.suits(ctx); err != nil {
		return err
	}
	return b.replay.run(ctx)
}

// suits returns ErrUnsafe for a queue whose messages must not be taken.
func (b *takeBack) suits(ctx context.Context) error {
	ready, err := b.unused(ctx)
	// A quorum queue still counts the consumer of a look that has just ended, as a rehearsal is.
	for began := time.Now(); errors.Is(err, ErrUnsafe) && time.Since(began) < endedLook; {
		if err := sleep(ctx, endedLook/30); err != nil {
			return err
		}
		ready, err = b.unused(ctx)
	}
	if err != nil {
		return err
	}
	if ready > maxTakeBack {
		return fmt.Errorf("%w: the queue has %d ready messages, and the order of at most %d is kept",
			ErrUnsafe, ready, maxTakeBack)
	}
	likely := amqp.Table{"x-queue-type": audit.Quorum}
	f, err := audit.LearnDeclared(ctx, b.conn.Do, b.plan.Queue, likely,
		audit.VersionOf(b.conn.Properties), b.operator.manager(ctx))
	switch {
	case err != nil:
		return err
	case f.Kind != audit.Classic && f.Kind != audit.Quorum:
		return fmt.Errorf("%w: the type of the queue is %q: it must be known, classic or quorum",
			ErrUnsafe, f.Kind)
	case !f.Known && f.Kind != audit.Quorum: // no quorum queue ends with its last consumer
		return fmt.Errorf("%w: whether the queue ends with its last consumer could not be seen: "+
			"grant the configure permission, or %s", ErrUnsafe, nameManagement)
	case f.Transient:
		return fmt.Errorf("%w: the queue is not durable, or it ends with its last consumer", ErrUnsafe)
	}
	b.blind = f.Kind == audit.Quorum
	return nil
}

// unused returns the number of ready messages, and ErrUnsafe while the queue has a consumer. The
// scan has none between two messages.
func (b *takeBack) unused(ctx context.Context) (ready int, err error) {
	ctx, cancel := context.WithTimeout(ctx, oneAnswer)
	defer cancel()
	b.asked = time.Now()
	q, err := audit.Passive(ctx, b.conn.Do, b.plan.Queue)
	if err == nil && q.Consumers > 0 {
		err = fmt.Errorf("%w: the queue has %s, to which messages go first that are younger than the "+
			"ones taken here: stop its service first", ErrUnsafe, plural(q.Consumers, "consumer"))
	}
	return q.Messages, err
}

func (b *takeBack) one(
	ctx context.Context, t *taking, m *mover, d amqp.Delivery,
) (moved bool, err error) {
	if !b.blind && time.Since(b.asked) >= askEvery {
		if _, err := b.unused(ctx); err != nil {
			return false, err
		}
	}
	get := textOf(&d)
	run, _ := get(header.Replay)
	if run, _, _ = strings.Cut(run, "."); run != b.run {
		return false, nil
	}
	if state := header.Parse(b.plan.Queue, get); state.HasWaited() {
		b.count(func(p *Progress) { p.Refused++ })
		return false, nil
	}
	b.count(func(p *Progress) { p.Chosen++ })
	if b.DryRun {
		b.moved++
		return false, nil
	}
	if err := m.move(d, "", b.To, unreplayed(&d)); err != nil {
		return false, err
	}
	b.moved++
	return true, nil
}

// unreplayed makes the dead letter that a replayed letter was.
func unreplayed(d *amqp.Delivery) amqp.Publishing {
	notes := map[string]string{}
	if n := header.ParseReplays(textOf(d)); n > 1 {
		notes[header.Replays] = strconv.Itoa(n - 1)
	}
	msg := wire.Publishing(d, func(key string) bool {
		return key == header.Replay || key == header.Replays || isLiveButOrigin(key)
	}, notes)
	msg.Priority = wire.Priority(d, header.Priority)
	return msg
}
