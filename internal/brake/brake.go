// Package brake is the part of an outage brake that one process has: whether the brake is stopped,
// which Subscriptions it stops, the probes, and the pace after a stop. Package fleet tells the
// other processes.
//
//	budget.Budget ──Trip──► Brake ◄──Set── fleet.Member
//	                        │   │ ──Probe─► tickets ─► Subscription ─► handler ─► Judge
//	           Seat.Shut ◄──┘   └─► Seat.Later: the pace while the rate ramps up
package brake

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millpond-go/millpond/internal/seam"
	"github.com/millpond-go/millpond/middleware/header"
)

// Config says how a brake probes and starts. All fields need a value, except Name.
type Config struct {
	// Name of the brake. Default: the queue; see Serves.
	Name string
	// Pause returns the pause before a probe, after so many probes in a row that did not succeed.
	Pause func(failed int) time.Duration
	// Successes in a row start the brake.
	Successes int
	// Ramp is the time in which the rate rises to the rate before the stop.
	Ramp time.Duration
	// Started is called when the brake starts: the counts from before mean nothing any more.
	Started func()
}

// Brake is one brake of this process. Many goroutines may use it.
type Brake struct {
	cfg     Config
	stopped atomic.Bool // state.Stopped
	joined  atomic.Bool // a fleet knows this instance
	pace    atomic.Pointer[pace]
	whole   atomic.Pointer[pace] // of queues with one active consumer
	trips   chan struct{}        // has a value when the brake has tripped
	keyNews chan seam.KeyNews
	heard   func(seam.KeyNews)
	setting sync.Mutex // changes of the state are told in their order

	mu        sync.Mutex
	state     header.BrakeState
	owner     any
	instance  string
	successes meter
	own       float64 // Rate at the stop
	row       int     // probes in a row that have succeeded, since the stop
	seats     []*Seat
	next      int           // of seats: gets the next ticket first
	open      []*ticket     // that have no end yet
	turns     int           // calls of Probe
	turn      chan struct{} // closed when this process probes no more; nil: it does not probe
	tell      func(state header.BrakeState, probing bool)
}

// New returns a brake that has not joined a fleet. It never stops before it has.
func New(cfg Config) *Brake {
	return &Brake{
		cfg: cfg, trips: make(chan struct{}, 1), keyNews: make(chan seam.KeyNews, mostKeyNews),
		state: header.BrakeState{Name: cfg.Name}, tell: func(header.BrakeState, bool) {},
	}
}

// Claim gives the brake to an owner, and reports whether it has no other.
func (b *Brake) Claim(owner any) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.owner == nil {
		b.owner = owner
	}
	return b.owner == owner
}

// Disclaim takes the brake from its owner.
func (b *Brake) Disclaim(owner any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.owner == owner {
		b.owner = nil
	}
}

// Serves reports whether the brake may stop the queue. A brake without a name has the name of its
// first queue, and serves no other.
func (b *Brake) Serves(queue string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.cfg.Name != "" {
		return true
	}
	if b.state.Name == "" {
		b.state.Name = queue
	}
	return b.state.Name == queue
}

// rests reports whether an operator has stopped the brake for a time that is not over.
func (b *Brake) rests() bool {
	state := b.State()
	return state.Stopped && state.Manual && time.Now().Before(state.Until)
}

// State returns the state of the brake.
func (b *Brake) State() header.BrakeState {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.state
}

// Stopped reports whether the brake is stopped.
func (b *Brake) Stopped() bool { return b.stopped.Load() }

// Joined reports whether other instances would hear of a stop. If not, the brake does not stop.
func (b *Brake) Joined() bool { return b.joined.Load() }

// Trips has a value after the brake has tripped in this process.
func (b *Brake) Trips() <-chan struct{} { return b.trips }

// Join notes that a fleet knows this instance from now on. tell is told of each change of the
// state, and whether this instance probes.
func (b *Brake) Join(instance string, tell func(state header.BrakeState, probing bool)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.instance, b.tell = instance, tell
	b.joined.Store(true)
}

// CauseUnused is the cause of a start because the last Subscription has ended.
const CauseUnused = "no Subscriber of this process uses the brake"

// Forget notes the end of an instance's part, unless this process has joined as another since. No
// news of a start would come any more, so a brake that is stopped starts.
func (b *Brake) Forget(instance string) {
	b.setting.Lock()
	defer b.setting.Unlock()
	if b.Instance() != instance {
		return
	}
	b.joined.Store(false)
	b.startAlone(CauseUnused)
}

// Leave notes that no fleet knows this instance. A brake that is stopped starts, without a ramp: no
// other instance would start it.
func (b *Brake) Leave() {
	b.setting.Lock()
	defer b.setting.Unlock()
	b.joined.Store(false)
	b.startAlone("this instance has left the fleet of the brake")
}

// startAlone starts a brake that is stopped, in this process alone. b.setting is held.
func (b *Brake) startAlone(cause string) {
	state := b.State()
	if state.Stopped {
		state.Stopped, state.Since, state.Rate, state.Prober = false, time.Now().UTC(), 0, ""
		state.Manual, state.Until = false, time.Time{}
		state.Cause = cause
		b.set(state)
	}
}

// Trip stops the brake because of failures, and reports whether it did. It does nothing if the
// brake is stopped, or has joined no fleet.
func (b *Brake) Trip(cause string) bool {
	b.setting.Lock()
	defer b.setting.Unlock()
	if !b.Joined() || b.Stopped() {
		return false
	}
	b.set(header.BrakeState{
		Stopped: true, Since: time.Now().UTC(), By: b.Instance(), Cause: cause, Rate: b.Rate(),
	})
	select {
	case b.trips <- struct{}{}:
	default:
	}
	return true
}

// Instance returns the name of this instance.
func (b *Brake) Instance() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.instance
}

// Set takes a state. A brake that starts ramps the rate up, if state.Rate is known.
func (b *Brake) Set(state header.BrakeState) {
	b.setting.Lock()
	defer b.setting.Unlock()
	b.set(state)
}

// set is Set. b.setting is held.
func (b *Brake) set(state header.BrakeState) {
	if b.Stopped() && !state.Stopped {
		b.cfg.Started() // before a handler counts again: the old failures would stop the brake again
	}
	b.mu.Lock()
	before, tell := b.state, b.tell
	state.Name = before.Name
	b.state = state
	switch {
	case !state.Stopped && before.Stopped:
		if state.Rate > 0 {
			// A process that has handled nothing before takes an equal part: it may stand in for another.
			rate := b.own
			if rate == 0 {
				rate = state.Rate / float64(max(1, state.Members))
			}
			now := time.Now()
			b.pace.Store(newPace(now, b.cfg.Ramp, rate))
			b.whole.Store(newPace(now, b.cfg.Ramp, max(state.Rate, b.own)))
		}
		b.successes = meter{} // the time of the stop does not count
	case state.Stopped && !before.Stopped:
		b.own, b.row = b.rate(), 0
		b.pace.Store(nil)
		b.whole.Store(nil)
	}
	b.stopped.Store(state.Stopped)
	if before.Stopped != state.Stopped {
		for _, s := range b.seats {
			s.change(state.Stopped)
		}
	}
	changed := before.Stopped != state.Stopped || before.Prober != state.Prober ||
		before.Manual != state.Manual || !before.Until.Equal(state.Until)
	probing := state.Stopped && state.Prober != "" && state.Prober == b.instance
	b.mu.Unlock()
	if changed {
		tell(state, probing)
	}
}

// Succeeded counts a message that was handled: Rate needs it.
func (b *Brake) Succeeded(now time.Time) {
	if b.Stopped() {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.successes.count(now)
}

// Rate returns how many messages a second this process has handled lately. The time since the last
// success does not count, because the downstream may have been out since then. While a pace holds
// the process back, the rate before counts: otherwise it would sink with each stop.
func (b *Brake) Rate() float64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.rate()
}

// rate is Rate. b.mu is held.
func (b *Brake) rate() float64 {
	rate, now := b.successes.rate(), time.Now()
	if paceOf(&b.pace, now) != nil || paceOf(&b.whole, now) != nil {
		rate = max(rate, b.own)
	}
	return rate
}

// paceOf returns the pace, or nil if there is none any more.
func paceOf(of *atomic.Pointer[pace], now time.Time) *pace {
	p := of.Load()
	if p != nil && p.unused(now) {
		of.CompareAndSwap(p, nil)
		return nil
	}
	return p
}

// The ends of Probe, beside the end of its context.
var (
	// ErrNothing says that no queue of this process has a message that shows whether the downstream
	// works.
	ErrNothing = errors.New("no message to probe with")
	// ErrStuck says that a probe does not end.
	ErrStuck = errors.New("a probe does not end")
)

const (
	// emptyRounds is how often the seats may have no message that decides, before another process
	// should try.
	emptyRounds = 4
	// longestProbe is how long a probe may take before another process should try.
	longestProbe = 30 * time.Second
	// soon is the pause between the probes of a row of successes.
	soon = 10 * time.Millisecond
	// turnGrace is how long the turn of a process outlives Probe: a process that is alone begins
	// again at once, and keeps its consumers of ordered queues.
	turnGrace = time.Second
)

// Probe offers tickets to the seats, one at a time, until so many probes in a row have succeeded
// that the brake starts: then it returns nil. This instance must have the token until ctx is
// done.
func (b *Brake) Probe(ctx context.Context) error {
	defer b.beginTurn()()
	failed, empty := 0, 0
	pause := b.cfg.Pause(failed)
	for {
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if b.inARow(Undecided) { // with the help of a probe that ended late
			return nil
		}
		verdict, err := b.probeOnce(ctx)
		if err != nil {
			return err
		}
		if b.inARow(verdict) {
			return nil
		}
		switch verdict {
		case Succeeded:
			failed, empty, pause = 0, 0, soon
		case Failed:
			failed, empty = failed+1, 0
			pause = b.cfg.Pause(failed)
		default:
			if empty++; empty >= emptyRounds {
				return ErrNothing
			}
			pause = b.cfg.Pause(failed)
		}
	}
}

// beginTurn begins the turn of this process, or goes on with it. The turn is over when no Probe has
// begun within turnGrace after end.
func (b *Brake) beginTurn() (end func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.turn == nil {
		b.turn = make(chan struct{})
	}
	b.turns++
	this := b.turns
	return func() {
		time.AfterFunc(turnGrace, func() {
			b.mu.Lock()
			defer b.mu.Unlock()
			if b.turns == this {
				close(b.turn)
				b.turn = nil
			}
		})
	}
}

// inARow counts a verdict, and reports whether enough probes in a row have succeeded. The row
// outlives Probe: where messages are rare, this process gets the token several times before it has
// enough of them.
func (b *Brake) inARow(verdict Verdict) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.count(verdict)
	return b.row >= b.cfg.Successes
}

// count counts a verdict. b.mu is held.
func (b *Brake) count(verdict Verdict) {
	switch verdict {
	case Succeeded:
		b.row++
	case Failed:
		b.row = 0
	}
}

// probeOnce asks the seats in turn, until one of them has a message.
func (b *Brake) probeOnce(ctx context.Context) (Verdict, error) {
	b.mu.Lock()
	seats := make([]*Seat, 0, len(b.seats))
	for i := range b.seats {
		seats = append(seats, b.seats[(b.next+i)%len(b.seats)])
	}
	b.next++
	b.mu.Unlock()
	for _, s := range seats {
		if s.rests(b) {
			continue
		}
		verdict, err := b.offer(ctx, s)
		if err != nil || verdict != Empty {
			return verdict, err
		}
	}
	return Empty, nil
}

// offer gives a ticket to a seat and waits for its end.
func (b *Brake) offer(ctx context.Context, s *Seat) (Verdict, error) {
	t := &ticket{of: b, ended: make(chan struct{})}
	b.mu.Lock()
	t.turn = b.turn
	b.open = append(b.open, t)
	b.mu.Unlock()
	limit := time.NewTimer(longestProbe)
	defer limit.Stop()
	select {
	case s.tickets <- t:
	case <-time.After(takeLimit): // it cannot consume, or still finishes messages
		t.close()
		return Empty, nil
	case <-ctx.Done():
		t.close()
		return 0, context.Cause(ctx)
	}
	select {
	case <-t.ended:
		return t.verdict, nil
	case <-limit.C:
		t.abandon()
		return 0, ErrStuck
	case <-ctx.Done():
		t.abandon()
		return 0, context.Cause(ctx)
	}
}

// Judge tells the brake how the handler of a probe ended. A probe of another brake counts, too, if
// it reached this one's downstream.
func (b *Brake) Judge(succeeded bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, t := range b.open {
		t.judged = Failed
		if succeeded {
			t.judged = Succeeded
		}
	}
}
