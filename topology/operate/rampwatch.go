package operate

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"strconv"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/audit"
	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/topology"
)

// watch knows where the letters of a ramp were seen. Letters are known by their numbers, so that a
// message that is there twice counts once.
type watch struct {
	numbers int // given to letters
	started int // letters to replay

	// Of the last look at the dead-letter queue.
	letters, left, spentLetters, foreign int
	dead                                 numberSet
	doneAtLook                           int
	looked                               pause

	// Of the wait queues: the letters that were in them at the last look, and when letters were seen
	// there last that are not any more. blind are the messages of queues that refuse a look.
	waits    []topology.Queue
	waiting  map[int]bool
	returned map[int]time.Time
	blind    int
	waited   pause

	ready, consumers int // of the queue
	samples          []sample
	current          bool // the result is as new as the last count

	before         int       // letters replayed when the round began
	asked, counted time.Time // when turn has counted
}

// sample is a moment: how many letters were replayed, and the ready messages of the queue.
type sample struct {
	at          time.Time
	done, ready int
}

// numberSet is a set of small numbers.
type numberSet struct {
	words []uint64
	n     int
}

func (s *numberSet) add(i int) {
	for len(s.words) <= i/64 {
		s.words = append(s.words, 0)
	}
	before := s.words[i/64]
	s.words[i/64] |= 1 << (i % 64)
	s.n += bits.OnesCount64(s.words[i/64]) - bits.OnesCount64(before)
}

func (s *numberSet) has(i int) bool { return i/64 < len(s.words) && s.words[i/64]>>(i%64)&1 == 1 }

// pause spaces looks.
type pause struct {
	ended time.Time
	took  time.Duration
}

func (p pause) next() time.Time { return p.ended.Add(p.took) }

func (p *pause) after(began time.Time, least time.Duration) {
	p.ended = time.Now()
	p.took = max(p.ended.Sub(began), least)
}

// numberOf returns the number of a letter of this run, or 0.
func (r *ramp) numberOf(headers amqp.Table) int {
	text, _ := headers[keys.Replay].(string)
	run, number, _ := strings.Cut(text, ".")
	n, err := strconv.Atoi(number)
	if run != r.result.Run || err != nil || n < 1 || n > r.numbers {
		return 0
	}
	return n
}

// left returns how many letters of the last look are still to replay.
func (r *ramp) left() int { return max(0, r.watch.left-(r.done()-r.doneAtLook)) }

// grownTo returns by how many letters the dead-letter queue has grown since the last look. total is
// its length, or its length if no letter had left it since done letters were replayed.
func (r *ramp) grownTo(total, done int) int { return total - (r.letters - (done - r.doneAtLook)) }

// lookDead looks at all dead letters.
func (r *ramp) lookDead(ctx context.Context) error {
	began := time.Now()
	w := watch{}
	chooses, err := r.Filter.Matcher()
	if err != nil {
		return err
	}
	see := func(l Letter, _ error) bool {
		w.letters++
		n := r.numberOf(l.Delivery.Headers)
		switch {
		case n > 0:
			w.dead.add(n)
		case !chooses(l):
		case r.moves.isForeign(l):
			w.foreign++
		case r.spent(l):
			w.spentLetters++
		default:
			w.left++
		}
		return true
	}
	m := r.moves
	if err := m.operator.list(ctx, m.plan, m.dead, newLetter, Filter{}, 0, see); err != nil {
		return err
	}
	r.letters, r.watch.left, r.spentLetters = w.letters, w.left, w.spentLetters
	r.foreign, r.dead, r.doneAtLook = w.foreign, w.dead, r.done()
	r.looked.after(began, 0)
	return nil
}

// findQueues looks for the queues of the plan, before anything moves: in a wait queue that is not
// there letters cannot be seen.
func (r *ramp) findQueues(ctx context.Context) error {
	if _, err := audit.Passive(ctx, r.conn.Do, r.moves.plan.Queue); err != nil {
		if audit.IsCode(err, amqp.NotFound) {
			err = fmt.Errorf("%w: %w", topology.ErrUnroutable, err)
		}
		return fmt.Errorf("queue %q: %w", r.moves.plan.Queue, err)
	}
	return eachWaitQueue(r.moves.plan, func(q topology.Queue) error {
		r.waits = append(r.waits, q)
		_, err := audit.Passive(ctx, r.conn.Do, q.Name)
		if audit.IsCode(err, amqp.NotFound) {
			err = fmt.Errorf("queue %q %w: %w", q.Name, errMissing, err)
		}
		return err
	})
}

// counts are the ready messages and the consumers of the plan's queues.
type counts struct {
	ready, consumers, dead int
	waits                  []int
}

func (c counts) waiting() int {
	sum := 0
	for _, n := range c.waits {
		sum += n
	}
	return sum
}

// count counts in the order in which a failed message passes the queues.
func (r *ramp) count(ctx context.Context) (c counts, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	names := []string{r.moves.plan.Queue}
	for _, q := range r.waits {
		names = append(names, q.Name)
	}
	names = append(names, r.moves.dead)
	found, _, err := audit.PassiveAll(ctx, r.conn.Do, names)
	for _, name := range names {
		if _, there := found[name]; !there && err == nil {
			err = errMissing
		}
		if err != nil {
			return c, fmt.Errorf("count queue %q: %w", name, err)
		}
	}
	c.ready, c.consumers = found[names[0]].Messages, found[names[0]].Consumers
	for _, q := range r.waits {
		c.waits = append(c.waits, found[q.Name].Messages)
	}
	c.dead = found[r.moves.dead].Messages
	return c, nil
}

// A look at the wait queues holds their messages, so that there is a second between two looks at
// least, and looks take a fifth of the time at most. A look at dead letters harms no consumer: it
// may take half of the time.
const (
	waitLook  = time.Second
	waitShare = 4
)

// survey asks where the letters are, while nothing moves. Where a look is needed that is not due
// yet, the result stays as it is and is not current.
func (r *ramp) survey(ctx context.Context) error {
	r.current = false
	c, err := r.count(ctx)
	if err != nil {
		return err
	}
	now := time.Now()
	r.note(now, c)
	if c.waiting() > 0 && now.Before(r.waited.next()) {
		return nil
	}
	if err := r.lookWaits(ctx, c, now); err != nil {
		return err
	}
	if r.grownTo(c.dead, r.done()) != 0 {
		if now.Before(r.looked.next()) {
			return nil
		}
		if err := r.lookDead(ctx); err != nil {
			return err
		}
	}
	r.current = true
	r.account(now)
	return nil
}

// lookWaits looks at the wait queues that are not empty.
func (r *ramp) lookWaits(ctx context.Context, c counts, now time.Time) error {
	seen, blind := map[int]bool{}, 0
	for i, q := range r.waits {
		if c.waits[i] == 0 {
			continue
		}
		err := r.moves.operator.pass(ctx, r.moves.plan, q, func(t *taking, d amqp.Delivery) error {
			t.Keep(d.DeliveryTag)
			if n := r.numberOf(d.Headers); n > 0 {
				seen[n] = true
			}
			return nil
		})
		switch {
		case errors.Is(err, ErrUnsafe), errors.Is(err, ErrUnsafePeek), errors.Is(err, ErrUnreadable):
			blind += c.waits[i]
		case err != nil:
			return fmt.Errorf("wait queue %q: %w", q.Name, err)
		}
	}
	if c.waiting() > 0 {
		r.waited.after(now, max(waitLook, waitShare*time.Since(now)))
	}
	for n := range r.waiting {
		if !seen[n] {
			r.returned[n] = now
		}
	}
	r.waiting, r.blind = seen, blind
	return nil
}

// note keeps a sample, and forgets samples that no count needs any more.
func (r *ramp) note(now time.Time, c counts) {
	r.ready, r.consumers = c.ready, c.consumers
	r.samples = append(r.samples, sample{now, r.done(), c.ready})
	old := 0
	for old+1 < len(r.samples) && now.Sub(r.samples[old+1].at) >= r.Settle {
		old++
	}
	r.samples = r.samples[old:]
}

// account counts where the letters are. A letter that was in the queue at some time since the
// sample which is as old as Settle was in it then, was replayed since, or has come back from a wait
// since. Messages that a consumer gave back when it died are seen while there is no other.
func (r *ramp) account(now time.Time) {
	done, res := r.done(), &r.result
	for n, at := range r.returned {
		if now.Sub(at) >= r.Settle || r.waiting[n] || r.dead.has(n) {
			delete(r.returned, n)
		}
	}
	waiting := 0
	for n := range r.waiting {
		if !r.dead.has(n) {
			waiting++
		}
	}
	unsettled := done
	if len(r.samples) > 0 && now.Sub(r.samples[0].at) >= r.Settle {
		s := r.samples[0]
		unsettled = s.ready + done - s.done + len(r.returned) + r.blind
		if r.consumers == 0 {
			unsettled += r.ready
		}
	}
	// A publish with an unknown outcome has a number and does not count as replayed.
	res.DeadAgain = min(r.dead.n, done)
	res.Waiting = min(waiting, done-res.DeadAgain)
	open := done - res.DeadAgain - res.Waiting
	res.Unsettled = min(open, unsettled)
	res.Handled = open - res.Unsettled
	res.Left = min(r.started-done, r.left())
	res.Started = done + res.Left
	res.Spent, res.Foreign, res.Refused = r.spentLetters, r.foreign, r.moves.now().Refused
}

// closeLimit bounds the last look of a ramp that was interrupted.
const closeLimit = time.Minute

// close counts for the last time, however the ramp has ended. It opens another connection, because
// the first may be lost.
func (r *ramp) close(ctx context.Context, failed error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeLimit)
	defer cancel()
	if failed != nil || !r.current {
		r.waited, r.looked = pause{}, pause{}
		conn, end, err := r.moves.operator.connect(ctx)
		if err == nil {
			defer end()
			r.conn = conn
			err = r.survey(ctx)
		}
		if err != nil { // the last figures may not hold any more
			r.result.Unseen = err
			r.waiting, r.blind, r.samples = nil, 0, nil
			r.account(time.Now())
		}
	}
	if info, ok := r.moves.operator.manager(ctx).Queue(r.moves.plan.Queue); ok {
		r.result.AtHandler = managementCount(info.Unacked)
	}
	r.show()
}
