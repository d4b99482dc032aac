package overview

import (
	"context"
	"errors"
	"time"

	"github.com/millpond-go/millpond/cmd/millpond/internal/auditlog"
	"github.com/millpond-go/millpond/internal/excerpt"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology/operate"
)

// FormerStop is the stop of a brake that a command replaces or ends.
type FormerStop header.BrakeState

// StoppedFirst orders stopped brakes before others.
func StoppedFirst(a, b header.BrakeState) int {
	rank := map[bool]int{false: 1}
	return rank[a.Stopped] - rank[b.Stopped]
}

// stopOf asks for the stop of a brake. A command for an outage goes on without an answer.
func stopOf(ctx context.Context, o *operate.Operator, name string) FormerStop {
	b, err := o.Brake(ctx, name)
	if err != nil || !b.Stopped || b.Since.IsZero() {
		return FormerStop{}
	}
	return FormerStop(b)
}

// Said says after the separator whose stop it was; nothing where there was none.
func (b FormerStop) Said(separator string) string {
	if !b.Stopped {
		return ""
	}
	text := "it was stopped"
	if b.By != "" {
		text += " by " + b.By
	}
	text += " since " + At(b.Since)
	if b.Manual {
		text += " until " + At(b.Until)
	}
	if b.Cause != "" {
		text += ": " + b.Cause
	}
	return separator + excerpt.OneLine(text)
}

// In adds the stop to the JSON of a result.
func (b FormerStop) In(result map[string]any) map[string]any {
	if b.Stopped {
		result["before"] = header.BrakeState(b)
	}
	return result
}

// StopBrake stops a brake, and notes in the entry whose stop that replaces. shared reports whether
// a process shares the brake.
func StopBrake(
	ctx context.Context, o *operate.Operator, e *auditlog.Entry, name, cause string,
	limit time.Duration,
) (before FormerStop, shared bool, err error) {
	before = stopOf(ctx, o, name)
	if shared, err = o.StopBrake(ctx, name, e.Who, cause, limit); err == nil {
		e.What += before.Said("; ")
	}
	return before, shared, err
}

// StartBrake starts a brake, and notes in the entry whose stop that ends. open reports that nothing
// had stopped it.
func StartBrake(
	ctx context.Context, o *operate.Operator, e *auditlog.Entry, name string,
) (before FormerStop, open bool, err error) {
	before = stopOf(ctx, o, name)
	err = o.StartBrake(ctx, name, e.Who)
	switch open = errors.Is(err, operate.ErrBrakeOpen); {
	case open:
		e.What += "; it was not stopped"
		return before, open, nil
	case err == nil:
		e.What += before.Said("; ")
	}
	return before, open, err
}
