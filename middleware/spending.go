package middleware

import (
	"errors"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/nils"
	"github.com/millpond-go/millpond/internal/seam"
	"github.com/millpond-go/millpond/middleware/header"
)

var (
	// errOverBudget is logged for a message that is not handled now.
	errOverBudget = errors.New("retry budget is closed")
	// errKeyStopped is logged for a message whose key is stopped.
	errKeyStopped = errors.New("too many deliveries with this key have failed")
)

// Budget says whether deliveries and retries have cost a downstream service enough. It is a
// *budget.Budget of package middleware/budget.
type Budget interface{ Seam() seam.Budget }

// WithBudget slows retries down, gives them up, or stops consuming, while they are over budget; see
// budget.Budget. Handlers that call the same downstream service may share a budget, also in several
// DelayedRetry.
//
// Selectors name the failures that count against the budget: a failure must match one. A
// delivery at another place does not count at all. A failure with another error counts as a
// delivery that did not fail. Several WithBudget give a handler several budgets, one for each of
// the services that it calls for example. At most one of them has a Key.
//
// Default: every retry comes after the delay of its policy.
func WithBudget(budget Budget, only ...Selector) Option {
	return func(s *settings) error {
		if nils.Is(budget) {
			return errors.New("WithBudget: budget is nil")
		}
		spent := spending{Budget: budget.Seam()}
		for _, selector := range only {
			if selector.empty() {
				return errors.New("WithBudget: a selector is empty: leave it out")
			}
			if selector.Error != nil && nils.Is(selector.Error) {
				return errors.New("WithBudget: classifier of a selector is nil")
			}
			spent.only = append(spent.only, rule{Selector: selector})
		}
		isSame := func(other spending) bool { return other.Budget == spent.Budget }
		if slices.ContainsFunc(s.budgets, isSame) {
			return errors.New("WithBudget: the same budget is given twice: give it all selectors at once")
		}
		if spent.Keyed() && slices.ContainsFunc(s.budgets, spending.Keyed) {
			return errors.New("WithBudget: a second budget has a Key")
		}
		s.budgets = append(s.budgets, spent)
		return nil
	}
}

// spending is a budget as one DelayedRetry spends it.
type spending struct {
	seam.Budget
	only []rule        // empty: everything counts
	slow time.Duration // the delay of a retry that is over budget
}

// brakeStopped reports whether the brake is stopped.
func (b *spending) brakeStopped() bool {
	brake := b.Brake()
	return brake != nil && brake.Stopped()
}

// checkBudgets finds the delay of a retry that is over budget.
func (s *settings) checkBudgets() error {
	for i := range s.budgets {
		b := &s.budgets[i]
		b.slow = b.Delay()
		if b.slow > 0 || b.GivesUp() {
			continue
		}
		var known bool
		if b.slow, known = longest(s.limits.policies()); !known {
			return errors.New("WithBudget: a policy cannot list its delays, so the longest is not " +
				"known: set Delay of the budget.Config")
		}
	}
	return nil
}

// longest returns the longest delay of the policies.
func longest(policies []backoff.Policy) (delay time.Duration, known bool) {
	for _, policy := range policies {
		delays, known := backoff.Delays(policy)
		if !known {
			return 0, false
		}
		if len(delays) > 0 {
			delay = max(delay, slices.Max(delays))
		}
	}
	return delay, true
}

// isFor reports whether deliveries at the place count. Without selectors the place is not needed.
func (b *spending) isFor(at place) bool {
	return len(b.only) == 0 ||
		slices.ContainsFunc(b.only, func(r rule) bool { return r.matches(at) })
}

// blames reports whether the failure counts against the budget.
func (b *spending) blames(at place, err error) bool {
	return len(b.only) == 0 || slices.ContainsFunc(b.only, func(r rule) (matched bool) {
		if !r.matches(at) || r.Error == nil {
			return r.matches(at)
		}
		contain(func() { _, matched = r.Error.Classify(err) })
		return matched
	})
}

// placeForBudgets returns the place if a budget has selectors: asking the context is slow.
func (a *attempt) placeForBudgets() (at place) {
	for i := range a.r.budgets {
		if len(a.r.budgets[i].only) > 0 {
			return a.d.Place(a.ctx)
		}
	}
	return at
}

// holdBack returns the snooze of a message that its handler must not see while a budget is closed.
// It returns nil if the handler is called: the budgets admit the message, or it may not snooze.
func (a *attempt) holdBack() *outcome {
	at := a.placeForBudgets()
	for i := range a.r.budgets {
		b := &a.r.budgets[i]
		if !b.isFor(at) {
			continue
		}
		why := errOverBudget
		if b.Keyed() {
			a.key, why = b.Key(a.d.Message), errKeyStopped
		}
		admitted, probe, change := b.Admit(a.key)
		a.keyProbe = a.keyProbe || probe
		a.reportBudget(b, change)
		if !admitted {
			if o := a.setAside(b.slow, why); o != nil {
				return o
			}
		}
	}
	return nil
}

// setAside returns the snooze of a message that is not handled now, or nil if it may not snooze.
func (a *attempt) setAside(slow time.Duration, why error) *outcome {
	f := failure{
		mark: snoozeFor(slow), state: a.d.State, now: a.r.now().UTC(), given: a.d.Given,
	}
	o := &outcome{overBudget: true, why: why}
	if !a.r.limits.snooze(&f, o) || !o.snoozed {
		return nil
	}
	o.record(f, "")
	o.state.Interruptions = a.d.State.Interruptions // no handler has cleared it of suspicion
	return o
}

// countHandled counts a success in all budgets.
func (a *attempt) countHandled() {
	at := a.placeForBudgets()
	for i := range a.r.budgets {
		if b := &a.r.budgets[i]; b.isFor(at) {
			a.count(b, false)
		}
	}
}

// count counts a delivery in one budget.
func (a *attempt) count(b *spending, failed bool) {
	a.reportBudget(b, b.Handled(seam.Handled{
		Key: a.key, Failed: failed, Probe: a.d.Probe, KeyProbe: a.keyProbe,
	}))
}

// countFailed counts a failure in all budgets. If a brake is stopped that the failure counts
// against, the failure spends no attempt: countFailed returns the delay of the snooze.
func (f *failed) countFailed(seen *failure) (slow time.Duration, stopped bool) {
	retryable := seen.mark.class == header.ClassRetryable
	for i := range f.r.budgets {
		b := &f.r.budgets[i]
		if !b.isFor(f.at) {
			continue
		}
		blamed := retryable && b.blames(f.at, f.err)
		if !blamed && b.Keyed() && f.keyProbe {
			b.Undecided(f.key)
			continue
		}
		if !blamed && f.d.Probe && b.brakeStopped() {
			continue // it does not show that the downstream works
		}
		f.count(b, blamed)
		if blamed && b.Stopped(f.key) {
			slow, stopped = max(slow, b.slow), true
		}
	}
	return slow, stopped
}

// spend takes a retry that was decided on from the budgets.
func (f *failed) spend(seen failure, o *outcome) {
	for i := range f.r.budgets {
		b := &f.r.budgets[i]
		if b.Keyed() || !b.isFor(f.at) || !b.blames(f.at, f.err) {
			continue
		}
		granted, change := b.Grant()
		f.reportBudget(b, change)
		if granted {
			continue
		}
		o.overBudget = true
		if b.GivesUp() {
			o.reason, o.delay = header.ReasonOverBudget, 0
			return
		}
		slow := max(o.delay, b.slow)
		if f.r.limits.tooLate(seen.next(slow), o.first, seen.state.Deadline) == "" {
			o.delay = slow
		}
	}
}

// reportBudget tells of a budget that has closed or opened with this message.
func (a *attempt) reportBudget(b *spending, c seam.Change) {
	if !c.Closed && !c.Opened {
		return
	}
	if b.Keyed() {
		a.reportKey(b, c)
		return
	}
	fields := watermill.LogFields{
		"deliveries": c.Deliveries, "failed": c.Failed, "retries": c.Retries,
	}
	kind := EventBudgetOpened
	if c.Closed {
		kind = EventBudgetClosed
		a.r.logger.Error("Retry budget is closed", errOverBudget, fields)
	} else {
		a.r.logger.Info("Retry budget is open again", fields)
	}
	if a.r.events != nil {
		a.tell(a.event(kind), a.d.Message.Nack)
	}
}

// reportKey tells of a key that has stopped or started with this message.
func (a *attempt) reportKey(b *spending, c seam.Change) {
	fields := watermill.LogFields{"brake": b.Brake().State().Name, "key": a.key}
	if c.Opened {
		a.r.logger.Info("Messages with this key are handled again", fields)
		return
	}
	a.r.logger.Error("Messages with this key are set aside: too many of them fail", errKeyStopped,
		fields.Add(watermill.LogFields{"deliveries": c.Deliveries, "failed": c.Failed}))
}
