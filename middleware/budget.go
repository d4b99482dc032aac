package middleware

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/millpond-go/millpond/backoff"
)

// BudgetConfig says when failures and retries have cost a downstream enough.
// Share, Retries or both must be set.
type BudgetConfig struct {
	// Window is the time over which is counted. Default: 10 s.
	Window time.Duration
	// Share of the deliveries in a window, above 0 and below 1: when more have failed
	// with a retryable error, the budget closes, until it is half as many or less,
	// or until there were no deliveries for a window. Default: no share closes it.
	Share float64
	// Minimum of deliveries in a window below which Share says nothing. Default: 20.
	Minimum int
	// Retries that a window grants; those beyond are over budget. Default: any number.
	Retries int
	// Delay of a retry that is over budget, where the policy's own is not longer.
	// Default: the longest delay of the policies, which must be able to list theirs.
	Delay time.Duration
	// DeadLetter gives up what is over budget, with ReasonOverBudget, instead of
	// slowing it down. Default: false, nothing is given up.
	DeadLetter bool
	// Probes are the deliveries that a window lets through to the handlers while
	// Share keeps the budget closed. The others are set aside for Delay without an
	// attempt, for as long as WithSnoozeLimit allows. Default: all go through, and only
	// retries are slowed down.
	Probes int
}

// BudgetState is what a budget has counted.
type BudgetState struct {
	// Closed says that retries are over budget, by whichever limit.
	Closed bool
	// Deliveries handled in the window, Failed those that failed with a retryable
	// error, Retries those that were granted.
	Deliveries, Failed, Retries int
}

// Budget slows retries down while too many deliveries fail, so that a downstream
// that is out is not hammered on: one for all handlers that share it. Nothing is
// lost by it; a retry that would come too late for WithMaxAge or the message's own
// expiration is not slowed down.
//
// It counts in a sliding window, in this process, and may be used by many
// goroutines.
type Budget struct {
	cfg BudgetConfig
	now func() time.Time

	mu      sync.Mutex
	slices  [budgetSlices]budgetSlice
	failing bool // closed by Share
	closed  bool // by whichever limit
}

// budgetSlices is into how many parts the window slides.
const budgetSlices = 10

// budgetSlice counts in one part of the window.
type budgetSlice struct {
	number                              int64 // since the epoch
	deliveries, failed, retries, probes int
}

// NewBudget returns a budget that is open. All that is wrong with the
// configuration is in one error.
func NewBudget(cfg BudgetConfig) (*Budget, error) {
	var problems []error
	refuse := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if cfg.Window == 0 {
		cfg.Window = 10 * time.Second
	}
	if cfg.Minimum == 0 {
		cfg.Minimum = 20
	}
	if cfg.Window < budgetSlices*time.Millisecond {
		refuse("window %v is shorter than %v", cfg.Window, budgetSlices*time.Millisecond)
	}
	if !(cfg.Share >= 0 && cfg.Share < 1) {
		refuse("share %v is not between 0 and 1", cfg.Share)
	}
	for what, n := range map[string]int{"minimum": cfg.Minimum, "retries": cfg.Retries, "probes": cfg.Probes} {
		if n < 0 {
			refuse("%s %d is negative", what, n)
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
		refuse("probes set aside what a budget with DeadLetter gives up: set one")
	}
	if len(problems) > 0 {
		return nil, fmt.Errorf("new budget: %w", errors.Join(problems...))
	}
	return &Budget{cfg: cfg, now: time.Now}, nil
}

// State returns what the budget has counted, and whether it is closed.
func (b *Budget) State() BudgetState {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.state(b.now())
}

// budgetChange is what a count has made of the budget.
type budgetChange struct {
	BudgetState
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

// count changes the counts of now by change, which sees the budget as it is now.
func (b *Budget) count(change func(*budgetSlice)) budgetChange {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	before := b.closed
	b.closed = b.state(now).Closed
	change(&b.slices[b.number(now)%budgetSlices])
	state := b.state(now)
	b.closed = state.Closed
	return budgetChange{state, b.closed != before}
}

// state sums the window up. b.mu is held.
func (b *Budget) state(now time.Time) BudgetState {
	var s BudgetState
	number := b.number(now)
	for i := range b.slices {
		slice := &b.slices[i]
		if slice.number <= number-budgetSlices || slice.number > number {
			*slice = budgetSlice{}
		}
		s.Deliveries += slice.deliveries
		s.Failed += slice.failed
		s.Retries += slice.retries
	}
	b.slices[number%budgetSlices].number = number

	share := float64(s.Failed)
	switch limit := b.cfg.Share * float64(s.Deliveries); {
	case b.cfg.Share == 0:
	case b.failing:
		b.failing = s.Deliveries > 0 && share > limit/2
	default:
		b.failing = s.Deliveries >= b.cfg.Minimum && share > limit
	}
	s.Closed = b.failing || b.cfg.Retries > 0 && s.Retries >= b.cfg.Retries
	return s
}

func (b *Budget) number(now time.Time) int64 {
	return now.UnixNano() / int64(b.cfg.Window/budgetSlices)
}
