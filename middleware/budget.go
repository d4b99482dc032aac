package middleware

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/middleware/header"
)

// BudgetConfig says when failures and retries have cost a downstream service enough. Share,
// Retries or both must be set.
type BudgetConfig struct {
	// Window is the time over which the budget counts. At least 10 ms.
	//
	// Default: 10 s.
	Window time.Duration
	// Share of the deliveries in a window, above 0 and below 1. If more deliveries failed with
	// a retryable error, the budget closes. It opens at half the share, or after a window
	// without deliveries.
	//
	// Default: no share closes the budget.
	Share float64
	// Minimum is the number of deliveries in a window below which Share does not count.
	//
	// Default: 20.
	Minimum int
	// Retries is the number of retries that a window grants; further retries are over budget.
	//
	// Default: any number.
	Retries int
	// Delay of a retry that is over budget, unless the delay of its policy is longer.
	//
	// Default: the longest delay of the policies, which must be able to list their delays.
	Delay time.Duration
	// DeadLetter gives messages that are over budget up, with ReasonOverBudget, instead of
	// slowing them down.
	//
	// Default: false, no message is given up.
	DeadLetter bool
	// Probes is the number of deliveries that a window lets through to the handlers while Share
	// keeps the budget closed. The others are snoozed for Delay without an attempt, for as long
	// as WithSnoozeLimit allows.
	//
	// Default: all go through, and only retries are slowed down.
	Probes int
}

// Budget slows retries down while too many deliveries fail, so that a downstream service that
// is out of order gets fewer calls from all handlers that share the budget. No message is lost
// by it. A retry that would come too late for WithMaxAge or the message's own expiration is not
// slowed down.
//
// It counts in a sliding window, in this process. Many goroutines may use it.
type Budget struct {
	cfg BudgetConfig
	now func() time.Time

	mu      sync.Mutex
	slices  [budgetSlices]budgetSlice
	failing bool // closed by Share
	closed  bool // by either limit
}

// budgetSlices is the number of parts of the sliding window.
const budgetSlices = 10

// budgetSlice counts in one part of the window.
type budgetSlice struct {
	number                              int64 // since the epoch
	deliveries, failed, retries, probes int
}

// NewBudget returns a budget that is open. One error lists everything that is wrong with the
// configuration.
func NewBudget(cfg BudgetConfig) (*Budget, error) {
	var problems []error
	refuse := func(format string, args ...any) {
		problems = append(problems, fmt.Errorf(format, args...))
	}
	if cfg.Window == 0 {
		cfg.Window = 10 * time.Second
	}
	if cfg.Minimum == 0 {
		cfg.Minimum = 20
	}
	if cfg.Window < budgetSlices*time.Millisecond {
		refuse("window %v is shorter than %v", cfg.Window, budgetSlices*time.Millisecond)
	}
	if !(cfg.Share >= 0 && cfg.Share < 1) { // also NaN
		refuse("share %v is not between 0 and 1", cfg.Share)
	}
	for field, n := range map[string]int{
		"minimum": cfg.Minimum, "retries": cfg.Retries, "probes": cfg.Probes,
	} {
		if n < 0 {
			refuse("%s %d is negative", field, n)
		}
	}
	if cfg.Delay < 0 || cfg.Delay > backoff.MaxDelay {
		refuse("delay %v is not between 0 and %v", cfg.Delay, backoff.MaxDelay)
	}
	if cfg.Share == 0 && cfg.Retries == 0 {
		refuse("neither share nor retries is set: nothing would ever be over budget")
	}
	if cfg.Probes > 0 && cfg.Share == 0 {
		refuse("probes are for a budget with a share")
	}
	if cfg.DeadLetter && cfg.Probes > 0 {
		refuse("probes snooze the messages that DeadLetter gives up: set one of the two")
	}
	if len(problems) > 0 {
		return nil, fmt.Errorf("new budget: %w", errors.Join(problems...))
	}
	return &Budget{cfg: cfg, now: time.Now}, nil
}

// Closed reports whether retries are over budget, by either limit.
func (b *Budget) Closed() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.state(b.now()).closed
}

// Counts returns the deliveries that were handled in the window, the deliveries that failed
// with a retryable error, and the retries that were granted.
func (b *Budget) Counts() (deliveries, failed, retries int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.state(b.now())
	return s.deliveries, s.failed, s.retries
}

// budgetState is the sum of a window.
type budgetState struct {
	closed                      bool
	deliveries, failed, retries int
}

// budgetChange is the effect of a count on the budget.
type budgetChange struct {
	budgetState
	changed bool // it has closed or opened
}

// handled counts a delivery whose handler has returned.
func (b *Budget) handled(failed bool) budgetChange {
	return b.count(func(s *budgetSlice) {
		s.deliveries++
		if failed {
			s.failed++
		}
	})
}

// grant counts a retry if the window grants it, and reports whether it does.
func (b *Budget) grant() (granted bool, change budgetChange) {
	change = b.count(func(s *budgetSlice) {
		if granted = !b.closed; granted {
			s.retries++
		}
	})
	return granted, change
}

// admit reports whether a delivery goes on to its handler.
func (b *Budget) admit() (admitted bool, change budgetChange) {
	change = b.count(func(s *budgetSlice) {
		probes := 0
		for i := range b.slices {
			probes += b.slices[i].probes
		}
		if admitted = !b.failing || probes < b.cfg.Probes; admitted && b.failing {
			s.probes++
		}
	})
	return admitted, change
}

// count changes the counts of now by change, which sees the budget of now.
func (b *Budget) count(change func(*budgetSlice)) budgetChange {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	before := b.closed
	b.closed = b.state(now).closed
	change(&b.slices[b.number(now)%budgetSlices])
	state := b.state(now)
	b.closed = state.closed
	return budgetChange{state, b.closed != before}
}

// state sums the window up. b.mu is held.
func (b *Budget) state(now time.Time) budgetState {
	var s budgetState
	number := b.number(now)
	for i := range b.slices {
		slice := &b.slices[i]
		if slice.number <= number-budgetSlices || slice.number > number {
			*slice = budgetSlice{}
		}
		s.deliveries += slice.deliveries
		s.failed += slice.failed
		s.retries += slice.retries
	}
	b.slices[number%budgetSlices].number = number

	share := float64(s.failed)
	switch limit := b.cfg.Share * float64(s.deliveries); {
	case b.cfg.Share == 0:
	case b.failing:
		b.failing = s.deliveries > 0 && share > limit/2
	default:
		b.failing = s.deliveries >= b.cfg.Minimum && share > limit
	}
	s.closed = b.failing || b.cfg.Retries > 0 && s.retries >= b.cfg.Retries
	return s
}

func (b *Budget) number(now time.Time) int64 {
	return now.UnixNano() / int64(b.cfg.Window/budgetSlices)
}

// errOverBudget is logged for a message that is not handled now.
var errOverBudget = errors.New("retry budget is closed")

// WithBudget slows retries down, or gives them up, while they are over budget; see Budget.
// Handlers that call the same downstream service may share a budget, also in several
// DelayedRetry.
//
// Default: every retry comes after the delay of its policy.
func WithBudget(budget *Budget) Option {
	return func(s *settings) error {
		s.budget.Budget = budget
		if budget == nil {
			return errors.New("WithBudget: budget is nil")
		}
		return nil
	}
}

// spending is a budget as one DelayedRetry spends it.
type spending struct {
	*Budget               // nil: everything is granted
	slow    time.Duration // the delay of a retry that is over budget
}

// checkBudget finds the delay of a retry that is over budget.
func (s *settings) checkBudget() error {
	if s.budget.Budget == nil {
		return nil
	}
	s.budget.slow = s.budget.cfg.Delay
	if s.budget.slow > 0 || s.budget.cfg.DeadLetter {
		return nil
	}
	for _, policy := range s.limits.policies() {
		delays, known := backoff.Delays(policy)
		if !known {
			return errors.New("WithBudget: a policy cannot list its delays, so the longest is not " +
				"known: set Delay of the BudgetConfig")
		}
		if len(delays) > 0 {
			s.budget.slow = max(s.budget.slow, slices.Max(delays))
		}
	}
	return nil
}

// spend takes a retry that was decided on from the budget.
func (f *failed) spend(seen failure, o *outcome) {
	granted, change := f.r.budget.grant()
	f.reportBudget(change)
	if granted {
		return
	}
	o.overBudget = true
	if f.r.budget.cfg.DeadLetter {
		o.reason, o.delay = header.ReasonOverBudget, 0
		return
	}
	slow := max(o.delay, f.r.budget.slow)
	if f.r.limits.tooLate(seen.next(slow), o.first, seen.state.Deadline) == "" {
		o.delay = slow
	}
}

// holdBack returns the snooze of a message that its handler must not see while the budget is
// closed. It returns nil if the handler is called: the budget admits the message, or the
// message may not snooze.
func (a *attempt) holdBack() *outcome {
	admitted, change := a.r.budget.admit()
	a.reportBudget(change)
	if admitted {
		return nil
	}
	f := failure{
		mark: snoozeFor(a.r.budget.slow), state: a.d.State, now: a.r.now().UTC(), given: a.d.Given,
	}
	o := &outcome{overBudget: true, why: errOverBudget}
	if !a.r.limits.snooze(&f, o) || !o.snoozed {
		return nil
	}
	o.record(f, "")
	o.state.Interruptions = a.d.State.Interruptions // no handler has cleared it of suspicion
	return o
}
