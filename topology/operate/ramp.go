package operate

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/audit"
	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/internal/link"
	"github.com/millpond-go/millpond/topology"
)

var (
	// ErrStopped: too many of the replayed letters are dead again. The rest stays where it is.
	ErrStopped = errors.New("too many of the replayed letters are dead again")
	// ErrUnsettled: a step was watched for as long as RampOptions.Watch allows, and it is still open
	// what becomes of its letters. The rest stays where it is.
	ErrUnsettled = errors.New("it is still open what becomes of the replayed letters")
)

// RampOptions say how Ramp replays. The zero value replays three letters, and the rest when all
// three are handled.
type RampOptions struct {
	// MoveOptions choose the letters and the rate. To and DryRun must not be set: Ramp watches the
	// queues of one plan, and Rehearse is the dry run.
	MoveOptions
	// Canary is the number of letters in the first step. Default: 3; none if it is negative.
	Canary int
	// Steps are the numbers of letters in the next steps. The rest follows at once, at Rate. Default:
	// none.
	Steps []int
	// StopAt is the share of the replayed letters, over 0 and up to 1, that may be dead again. Ramp
	// stops when there are more: within a second, because it asks before a letter moves whether the
	// dead-letter queue has grown, ten times a second. 1 never stops. Default: 0.05.
	StopAt float64
	// Settle is how long a letter must be seen nowhere before it counts as handled: longer than the
	// handler usually takes to fail. Default: 5 s.
	Settle time.Duration
	// Watch bounds the time that a step is watched, from its last letter on. A step is over when no
	// more than StopAt of all replayed letters are dead again, wait, or are unsettled. Default: 1 min.
	Watch time.Duration
	// Report is called with the counts as they are known, several times a second while something
	// happens, by the calling goroutine. Default: no call.
	Report func(RampResult)
}

// RampResult counts the letters of a Ramp:
//
//	Started = Handled + DeadAgain + Waiting + Unsettled + Left
//
// A replayed letter carries a mark of the run (header.Replay), by which it is known again in the
// dead-letter queue and in the wait queues. AMQP shows neither a message in the middle of a queue
// nor one at a handler, and a handler leaves no trace: so Handled counts letters that were seen
// nowhere else.
type RampResult struct {
	// Run is the name of this run, in the marks of its letters.
	Run string `json:"run"`
	// Step is the step that was reached: "canary", "step 1" and so on, "rest", "" before the first.
	Step string `json:"step,omitempty"`
	// Started are the letters that were chosen at the beginning, up to Limit, without letters that
	// another client has taken since.
	Started int `json:"started"`
	// Handled were replayed and then seen nowhere for RampOptions.Settle: neither in the queue, as far
	// as its count allows for them, nor in a wait queue of the plan, nor in its dead-letter queue. A
	// slow handler may still have up to AtHandler of them. A message that a handler passes on, or that
	// waits in a queue outside of the plan, counts here, too.
	Handled int `json:"handled"`
	// DeadAgain are back in the dead-letter queue.
	DeadAgain int `json:"dead_again"`
	// Waiting are in wait queues of the plan, after an attempt that failed.
	Waiting int `json:"waiting"`
	// Unsettled may be in the queue, at a handler, or in a wait queue that could not be looked at: the
	// most that the counts of these queues allow for, and all that had no time to settle.
	Unsettled int `json:"unsettled"`
	// Left were not replayed: they are in the dead-letter queue, where another call finds them.
	Left int `json:"left"`
	// AtHandler counts all messages of the queue that consumers hold, also others than these; it is
	// known from the management API alone, at the end.
	AtHandler Count `json:"at_handler"`
	// Spent, Foreign and Refused are in the dead-letter queue: passed over because of MaxReplays,
	// because their headers name another queue (or none, with Named), and because they cannot be
	// published. The first two are not part of Started.
	Spent   int `json:"spent,omitempty"`
	Foreign int `json:"foreign,omitempty"`
	Refused int `json:"refused,omitempty"`
	// Unseen says why the last look was not possible. Then letters that are dead again or wait may be
	// among Unsettled.
	Unseen error `json:"-"`
}

// Replayed returns how many letters were confirmed in their queue and left the dead-letter queue.
func (r RampResult) Replayed() int { return r.Handled + r.DeadAgain + r.Waiting + r.Unsettled }

// String returns the sum in one line.
func (r RampResult) String() string {
	unsettled := ""
	if r.Unsettled > 0 {
		unsettled = fmt.Sprintf(" + unsettled %d", r.Unsettled)
	}
	return fmt.Sprintf("started %d = handled %d + dead again %d + waiting %d%s + left %d",
		r.Started, r.Handled, r.DeadAgain, r.Waiting, unsettled, r.Left)
}

// Ramp replays dead letters with care: a few first, which are watched until they are handled or
// dead again, then the rest in steps. It replays as Replay does, letters that were in the queue at
// the beginning, each confirmed in its queue before it leaves the dead-letter queue; a letter that
// is dead again is not replayed again by the same call.
//
// Ramp ends with ErrStopped when too many letters are dead again, after it has given the letters
// under way twice the time of Settle; with ErrUnsettled when a step takes too long; and with the
// cause of ctx. In each case the rest is where it was, so that another call goes on with it, and
// the result counts all letters.
//
// A look at the whole dead-letter queue, two to five seconds for 10 000 letters, is needed at the
// beginning and whenever its count has grown so much that the new letters could be too many; until
// it is done nothing moves. Wait queues are looked at as by Waiting, and only while they are not
// empty.
func (o *Operator) Ramp(
	ctx context.Context, plan topology.Plan, options RampOptions,
) (RampResult, error) {
	r, err := o.runRamp(ctx, plan, options)
	return r.result, err
}

func (o *Operator) runRamp(
	ctx context.Context, plan topology.Plan, options RampOptions,
) (*ramp, error) {
	r, err := newRamp(o, plan, options)
	if err == nil {
		err = r.ramp(ctx)
	}
	if err != nil {
		return r, fmt.Errorf("replay dead letters of queue %q: %w", plan.Queue, err)
	}
	return r, nil
}

const (
	defaultCanary = 3
	defaultStopAt = 0.05
	defaultSettle = 5 * time.Second
	defaultWatch  = time.Minute
)

// ramp moves letters step by step with its replay, and watches them with its watch.
type ramp struct {
	RampOptions
	moves *replay
	watch
	// conn is for counts, because a look opens another one.
	conn   *link.Conn
	result RampResult
}

// checked returns the options with their defaults, or an error if they make no sense.
func (o RampOptions) checked() (RampOptions, error) {
	o.Canary, o.StopAt = cmp.Or(o.Canary, defaultCanary), cmp.Or(o.StopAt, defaultStopAt)
	o.Settle, o.Watch = cmp.Or(o.Settle, defaultSettle), cmp.Or(o.Watch, defaultWatch)
	switch {
	case !(o.StopAt > 0 && o.StopAt <= 1):
		return o, fmt.Errorf("%w: StopAt %g is not over 0 and up to 1", ErrInvalidOptions, o.StopAt)
	case o.Settle < 0 || o.Watch < o.Settle:
		return o, fmt.Errorf("%w: settle %v, watch %v: neither can be negative, and watch not less "+
			"than settle", ErrInvalidOptions, o.Settle, o.Watch)
	case slices.ContainsFunc(o.Steps, func(n int) bool { return n <= 0 }):
		return o, fmt.Errorf("%w: steps of %d letters", ErrInvalidOptions, o.Steps)
	}
	return o, nil
}

func newRamp(o *Operator, plan topology.Plan, options RampOptions) (*ramp, error) {
	run := make([]byte, 6)
	_, _ = rand.Read(run) // never fails
	r := &ramp{result: RampResult{Run: hex.EncodeToString(run), AtHandler: unknown}}
	if options.To != "" && options.To != plan.Queue || options.DryRun {
		return r, fmt.Errorf("%w: neither another queue than the plan's nor a dry run can be watched: "+
			"use Replay or Rehearse", ErrInvalidOptions)
	}
	var err error
	if r.RampOptions, err = options.checked(); err != nil {
		return r, err
	}
	r.returned = map[int]time.Time{}
	r.moves = o.moving(plan, options.MoveOptions)
	r.moves.turn, r.moves.mark = r.turn, r.mark
	r.moves.mine = func(_ context.Context, l Letter) (bool, error) {
		return r.numberOf(l.Delivery.Headers) == 0 && r.moves.match(l), nil
	}
	return r, nil
}

// mark returns the mark of the next letter.
func (r *ramp) mark() string {
	r.numbers++
	return r.result.Run + "." + strconv.Itoa(r.numbers)
}

func (r *ramp) ramp(ctx context.Context) error {
	conn, end, err := r.moves.operator.connect(ctx)
	if err != nil {
		return err
	}
	defer end()
	r.conn = conn
	if err := r.moves.prepare(ctx); err != nil {
		return err
	}
	if err := r.findQueues(ctx); err != nil {
		return err
	}
	if err := r.lookDead(ctx); err != nil {
		return err
	}
	r.started = r.left()
	if r.Limit > 0 {
		r.started = min(r.started, r.Limit)
	}
	r.account(time.Now())
	if r.started == 0 {
		return nil
	}
	err = r.steps(ctx)
	if errors.Is(err, ErrStopped) {
		r.linger(ctx)
	}
	r.close(ctx, err)
	return err
}

// linger lets the letters settle that were on their way at a stop. An error shows in close.
func (r *ramp) linger(ctx context.Context) {
	for end := time.Now().Add(2 * r.Settle); time.Now().Before(end); {
		err := r.survey(ctx)
		if err != nil || r.current && r.result.Waiting+r.result.Unsettled == 0 {
			return
		}
		r.show()
		if sleep(ctx, askEvery) != nil {
			return
		}
	}
}

// steps replays all letters.
func (r *ramp) steps(ctx context.Context) error {
	for i, n := range append([]int{r.Canary}, r.Steps...) {
		if n <= 0 { // no canary
			continue
		}
		r.result.Step = fmt.Sprintf("step %d", i)
		if i == 0 {
			r.result.Step = "canary"
		}
		if err := r.step(ctx, min(n, r.started-r.done())); err != nil {
			return err
		}
		if r.done() >= r.started {
			break
		}
		if err := r.settle(ctx, false); err != nil {
			return err
		}
	}
	if rest := r.started - r.done(); rest > 0 {
		r.result.Step = "rest"
		if err := r.step(ctx, rest); err != nil {
			return err
		}
	}
	if err := r.settle(ctx, true); err != nil {
		return err
	}
	return r.moves.refusal
}

// errGrown: the dead-letter queue has grown so much that the ramp may have to stop.
var errGrown = errors.New("the dead-letter queue has grown")

// step replays up to n letters.
func (r *ramp) step(ctx context.Context, n int) error {
	r.moves.left, r.moves.Limit = -1, r.moves.moved+n
	for again := true; again; {
		r.before = r.done()
		var err error
		if again, err = r.moves.round(ctx); errors.Is(err, errGrown) {
			again, r.moves.left, err = true, -1, r.decide(ctx)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// decide looks whether the ramp has to stop.
func (r *ramp) decide(ctx context.Context) error {
	if err := sleep(ctx, time.Until(r.looked.next())); err != nil {
		return err
	}
	if err := r.lookDead(ctx); err != nil {
		return err
	}
	return r.stopped()
}

// tooMany reports whether n of the replayed letters are more than may be dead again.
func (r *ramp) tooMany(n int) bool { return float64(n) > r.StopAt*float64(r.done()) }

// stopped returns ErrStopped if too many letters are dead again.
func (r *ramp) stopped() error {
	if n := min(r.dead.n, r.done()); r.tooMany(n) {
		return fmt.Errorf("%w: %d of %d, and %g%% may be", ErrStopped, n, r.done(), 100*r.StopAt)
	}
	return nil
}

// The times between two counts of the dead-letter queue and of all queues while letters move.
const (
	askEvery   = 100 * time.Millisecond
	countEvery = time.Second
)

// turn counts the dead-letter queue before a letter is replayed, and ends the round if it has grown
// too much. The messages that the round has taken are not ready.
func (r *ramp) turn(ctx context.Context, t *taking) error {
	now := time.Now()
	if now.Sub(r.asked) < askEvery {
		return nil
	}
	r.asked = now
	if now.Sub(r.counted) >= countEvery {
		r.counted = now
		c, err := r.count(ctx)
		if err != nil {
			return err
		}
		r.note(now, c)
		r.blind = r.inWaits(c) // until the wait queues are looked at
		r.account(now)
	}
	r.show()
	ready, err := t.Ready()
	if err != nil {
		return t.explain(err)
	}
	grown := r.grownTo(ready+t.Total()-t.Rest(), r.before)
	if r.done() > 0 && r.tooMany(r.dead.n+max(grown, 0)) {
		return errGrown
	}
	return nil
}

// settle watches the replayed letters until the step is over. The last one is watched until nothing
// is open, for as long as Watch allows.
func (r *ramp) settle(ctx context.Context, last bool) error {
	for began := time.Now(); ; {
		if err := r.survey(ctx); err != nil {
			return err
		}
		r.show()
		open := r.result.Waiting + r.result.Unsettled
		late := time.Since(began) >= r.Watch
		enough := r.current && !r.tooMany(r.result.DeadAgain+open)
		switch {
		case r.stopped() != nil && (!last || late || open == 0):
			return r.stopped()
		case enough && (!last || late || open == 0):
			return nil
		case late:
			return fmt.Errorf("%w after %v: %d wait for their next attempt, %d are unsettled, and the "+
				"queue holds %s and has %s: watch for longer, or see to its consumers", ErrUnsettled,
				r.Watch, r.result.Waiting, r.result.Unsettled, plural(r.ready, "message"),
				plural(r.consumers, "consumer"))
		}
		if err := sleep(ctx, askEvery); err != nil {
			return err
		}
	}
}

func plural(n int, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %ss", n, one)
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// done returns how many letters were replayed.
func (r *ramp) done() int { return r.moves.now().Done }

func (r *ramp) show() {
	if r.Report != nil {
		r.Report(r.result)
	}
}

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

// numberSet is a set of small numbers, of which there may be a million.
type numberSet struct {
	in []bool
	n  int
}

func (s *numberSet) add(i int) {
	if s.has(i) {
		return
	}
	s.in = append(s.in, make([]bool, max(0, i+1-len(s.in)))...)
	s.in[i], s.n = true, s.n+1
}

func (s *numberSet) has(i int) bool { return i < len(s.in) && s.in[i] }

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
	see := func(l Letter, _ error) bool {
		w.letters++
		n := r.numberOf(l.Delivery.Headers)
		switch {
		case n > 0:
			w.dead.add(n)
		case !r.moves.match(l):
		case r.moves.isForeign(l):
			w.foreign++
		case r.moves.isSpent(l):
			w.spentLetters++
		default:
			w.left++
		}
		return true
	}
	m := r.moves
	if err := m.operator.list(ctx, m.plan, m.source, -1, newLetter, Filter{}, 0, see); err != nil {
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

// counts are the ready messages and the consumers of the plan's queues, by their names.
type counts map[string]amqp.Queue

// inWaits returns how many messages are in the wait queues.
func (r *ramp) inWaits(c counts) (sum int) {
	for _, q := range r.waits {
		sum += c[q.Name].Messages
	}
	return sum
}

// count counts in the order in which a failed message passes the queues.
func (r *ramp) count(ctx context.Context) (counts, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	names := []string{r.moves.plan.Queue}
	for _, q := range r.waits {
		names = append(names, q.Name)
	}
	names = append(names, r.moves.source)
	found, _, err := audit.PassiveAll(ctx, r.conn.Do, names)
	for _, name := range names {
		if _, there := found[name]; !there && err == nil {
			err = errMissing
		}
		if err != nil {
			return nil, fmt.Errorf("count queue %q: %w", name, err)
		}
	}
	return found, nil
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
	if r.inWaits(c) > 0 && now.Before(r.waited.next()) {
		return nil
	}
	if err := r.lookWaits(ctx, c, now); err != nil {
		return err
	}
	if r.grownTo(c[r.moves.source].Messages, r.done()) != 0 {
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
	for _, q := range r.waits {
		if c[q.Name].Messages == 0 {
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
			blind += c[q.Name].Messages
		case err != nil:
			return fmt.Errorf("wait queue %q: %w", q.Name, err)
		}
	}
	if r.inWaits(c) > 0 {
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
	q := c[r.moves.plan.Queue]
	r.ready, r.consumers = q.Messages, q.Consumers
	r.samples = append(r.samples, sample{now, r.done(), r.ready})
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

// RepeatOptions say how RampEvery repeats a Ramp.
type RepeatOptions struct {
	RampOptions
	// Every is the time from the end of a run to the start of the next. At least 1 s. Default: 10 min.
	Every time.Duration
	// UntilEmpty ends RampEvery when a run finds no letter to replay, or has seen all its letters
	// handled and none left, also none beyond Limit. Default: it goes on until ctx is done.
	UntilEmpty bool
	// Ran is called with the outcome of each run. Default: no call.
	Ran func(RampResult, error)
}

const (
	defaultEvery      = 10 * time.Minute
	defaultMaxReplays = 5
)

// RampEvery replays dead letters by themselves, without a storm: run after run of Ramp, each with
// its canary. A run that has stopped is no error, and the next one begins with its canary again, so
// that during an outage an interval costs as few letters as the canary has. A letter that failed
// again is not replayed again before the next run, and not more than MaxReplays times in its life.
// The oldest letters are the canary, and a letter that is dead again is the youngest, so that
// letters which always fail do not keep the others from their turn for long.
//
// A broker that cannot be reached is tried again by the next run. RampEvery returns the cause of
// ctx, nil with UntilEmpty, and errors that another run cannot mend: ErrInvalidOptions, ErrNoQueue
// and ErrUnsafePeek.
func (o *Operator) RampEvery(
	ctx context.Context, plan topology.Plan, options RepeatOptions,
) error {
	every := cmp.Or(options.Every, defaultEvery)
	options.MaxReplays = cmp.Or(options.MaxReplays, defaultMaxReplays)
	if every < time.Second {
		return fmt.Errorf("replay dead letters of queue %q: %w: every %v: at least 1s",
			plan.Queue, ErrInvalidOptions, every)
	}
	for {
		run, err := o.runRamp(ctx, plan, options.RampOptions)
		r := run.result
		if options.Ran != nil {
			options.Ran(r, err)
		}
		switch {
		case ctx.Err() != nil:
			return fmt.Errorf("replay dead letters of queue %q: %w", plan.Queue, context.Cause(ctx))
		case errors.Is(err, ErrInvalidOptions), errors.Is(err, ErrNoQueue),
			errors.Is(err, ErrUnsafePeek), errors.Is(err, topology.ErrClosed):
			return err
		case options.UntilEmpty && err == nil && r.Started == r.Handled && run.left() == 0:
			return nil
		}
		if err := sleep(ctx, every); err != nil {
			return fmt.Errorf("replay dead letters of queue %q: %w", plan.Queue, err)
		}
	}
}
