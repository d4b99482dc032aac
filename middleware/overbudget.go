package middleware

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/middleware/header"
)

// errOverBudget is logged for a message that is not handled now.
var errOverBudget = errors.New("retry budget is closed")

// WithBudget slows retries down, or gives them up, while they are over budget;
// see Budget. Handlers that share a downstream may share one: here, or in several
// DelayedRetry. Without it every retry comes after the delay that its policy says.
func WithBudget(budget *Budget) Option {
	return func(s *settings) {
		if budget == nil {
			s.refuse("WithBudget: budget is nil")
			return
		}
		s.budget.Budget = budget
	}
}

// spending is a budget as one DelayedRetry spends it.
type spending struct {
	*Budget               // nil: everything is granted
	slow    time.Duration // the delay of what is over budget
}

// checkBudget finds the delay of what is over budget.
func (s *settings) checkBudget() {
	if s.budget.Budget == nil {
		return
	}
	s.budget.slow = s.budget.cfg.Delay
	if s.budget.slow > 0 || s.budget.cfg.DeadLetter {
		return
	}
	for _, policy := range s.limits.policies() {
		delays, known := backoff.Delays(policy)
		if !known {
			s.refuse("WithBudget: a policy cannot list its delays, so the longest is not known: set Delay of the BudgetConfig")
			return
		}
		if len(delays) > 0 {
			s.budget.slow = max(s.budget.slow, slices.Max(delays))
		}
	}
}

// spend takes a retry that was decided on from the budget.
func (r *DelayedRetry) spend(ctx context.Context, delivery *Delivery, f failure, d *decision) {
	granted, change := r.budget.grant()
	r.tellOfBudget(ctx, delivery, change)
	if granted {
		return
	}
	d.overBudget = true
	if r.budget.cfg.DeadLetter {
		d.reason, d.delay = header.ReasonOverBudget, 0
		return
	}
	slow := max(d.delay, r.budget.slow)
	if r.limits.tooLate(f.next(slow), d.first, f.notes.Deadline) == "" {
		d.delay = slow
	}
}

// holdBack sets a message aside that its handler is not to see while the budget
// is closed. It returns false where that cannot be, and the handler is called.
func (r *DelayedRetry) holdBack(ctx context.Context, d *Delivery) (held bool, err error) {
	admitted, change := r.budget.admit()
	r.tellOfBudget(ctx, d, change)
	if admitted {
		return false, nil
	}
	f := failure{
		err: errOverBudget, mark: mark{class: header.ClassRetryable, floor: r.budget.slow, later: true},
		notes: d.State, now: r.now().UTC(), given: d.Given,
	}
	decided := decision{overBudget: true}
	if !r.limits.setAside(f, &decided) || !decided.aside {
		return false, nil
	}
	d.attempt.told = true
	return true, orNack(d.msg, func() error {
		log := r.newReport(ctx, d, errOverBudget, errOverBudget.Error())
		log.decided(f, decided)
		notes := f.recordAside(decided.delay)
		notes.Interruptions = d.State.Interruptions // nothing was handled that would clear it
		return r.handOver(ctx, d, log, &transfer{notes: notes, delay: decided.delay, aside: true, overBudget: true, now: f.now})
	})
}

// tellOfBudget tells of a budget that has changed over the message.
func (r *DelayedRetry) tellOfBudget(ctx context.Context, d *Delivery, c budgetChange) {
	if !c.changed {
		return
	}
	kind := EventBudgetOpened
	if c.Closed {
		kind = EventBudgetClosed
	}
	r.observe(ctx, d, kind, d.msg.Nack, func(*Event) {})
	fields := watermill.LogFields{"deliveries": c.Deliveries, "failed": c.Failed, "retries": c.Retries}
	if c.Closed {
		r.logger.Error("Retry budget is closed", errOverBudget, fields)
		return
	}
	r.logger.Info("Retry budget is open again", fields)
}
