package operate

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"time"

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
	// ReplayOptions choose the letters and the rate. To and DryRun must not be set: Ramp watches the
	// queues of one plan, and Rehearse is the dry run.
	ReplayOptions
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
	// MaxReplays passes over letters that were replayed so often before (Letter.Replays). Default: no
	// limit, and 5 with RampEvery.
	MaxReplays int
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
	AtHandler Count `json:"-"`
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

// check returns an error for options that make no sense. Zero values are their defaults.
func (o RampOptions) check() error {
	switch stopAt := cmp.Or(o.StopAt, defaultStopAt); {
	case !(stopAt > 0 && stopAt <= 1):
		return fmt.Errorf("%w: StopAt %g is not over 0 and up to 1", ErrInvalidOptions, o.StopAt)
	case o.Settle < 0 || cmp.Or(o.Watch, defaultWatch) < cmp.Or(o.Settle, defaultSettle) ||
		o.MaxReplays < 0:
		return fmt.Errorf("%w: settle %v, watch %v, at most %d replays: none can be negative, "+
			"and watch not less than settle", ErrInvalidOptions, cmp.Or(o.Settle, defaultSettle),
			cmp.Or(o.Watch, defaultWatch), o.MaxReplays)
	}
	for _, n := range o.Steps {
		if n <= 0 {
			return fmt.Errorf("%w: a step of %d letters", ErrInvalidOptions, n)
		}
	}
	return nil
}

func newRamp(o *Operator, plan topology.Plan, options RampOptions) (*ramp, error) {
	run := make([]byte, 6)
	_, _ = rand.Read(run) // never fails
	r := &ramp{result: RampResult{Run: hex.EncodeToString(run), AtHandler: unknown}}
	if options.To != "" && options.To != plan.Queue || options.DryRun {
		return r, fmt.Errorf("%w: neither another queue than the plan's nor a dry run can be watched: "+
			"use Replay or Rehearse", ErrInvalidOptions)
	}
	if err := options.check(); err != nil {
		return r, err
	}
	options.Canary = cmp.Or(options.Canary, defaultCanary)
	options.StopAt = cmp.Or(options.StopAt, defaultStopAt)
	options.Settle = cmp.Or(options.Settle, defaultSettle)
	options.Watch = cmp.Or(options.Watch, defaultWatch)
	r.RampOptions = options
	r.returned = map[int]time.Time{}
	r.moves = &replay{
		operator: o, plan: plan, ReplayOptions: options.ReplayOptions, left: -1,
		pace: newPace(options.Rate), turn: r.turn, mark: r.mark,
	}
	r.moves.act, r.moves.Filter.Match = r.moves.one, r.fresh
	return r, nil
}

// fresh reports whether a letter was not replayed by this run nor too often before, and whether the
// caller's own condition chooses it.
func (r *ramp) fresh(l Letter) bool {
	match := r.Filter.Match
	return r.numberOf(l.Delivery.Headers) == 0 && !r.spent(l) && (match == nil || match(l))
}

func (r *ramp) spent(l Letter) bool { return r.MaxReplays > 0 && l.Replays >= r.MaxReplays }

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
	sizes, names := []int{}, []string{}
	if r.Canary > 0 {
		sizes, names = append(sizes, r.Canary), append(names, "canary")
	}
	for i, n := range r.Steps {
		sizes, names = append(sizes, n), append(names, fmt.Sprintf("step %d", i+1))
	}
	for i, n := range sizes {
		r.result.Step = names[i]
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
		r.blind = c.waiting() // until the wait queues are looked at
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
