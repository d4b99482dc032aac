package job

import (
	"context"
	"fmt"

	"github.com/millpond-go/millpond/topology/operate"
)

// lookKey looks at a key of a queue that is handled in order.
func (a *action) lookKey(
	ctx context.Context, o *operate.Operator,
) (found Rehearsal, err error) {
	r := a.Request
	k, err := o.FindKey(ctx, a.plan, r.Key, "")
	if err != nil {
		return found, err
	}
	if k.Mark != r.Mark {
		return found, fmt.Errorf("%w: another dead letter blocks the key, or none: look at the keys "+
			"of the queue again", ErrChanged)
	}
	found.Target = a.plan.Queue
	if k.Mark != "" {
		found.Notes = append(found.Notes, fmt.Sprintf("the dead letter %q blocks the key since %s; "+
			"messages of the key that wait behind it: %d", k.MessageID,
			k.Blocked.UTC().Format("2006-01-02 15:04:05 UTC"), k.Waiting))
	}
	if r.Kind == ReleaseKey {
		a.Count, found.Found = 1, Progress{Progress: operate.Progress{Total: 1, Seen: 1, Chosen: 1}}
		return found, nil
	}
	p, err := o.ReplayKey(ctx, a.plan, r.Key, operate.ReplayOptions{DryRun: true})
	a.Count, found.Found = p.Chosen-p.Refused, Progress{Progress: p}
	if a.Count == 0 && k.Replayed {
		a.Count = 1
		found.Notes = append(found.Notes, "an earlier replay was interrupted: its letter is in the "+
			"line, and the key is released")
	}
	return found, err
}

// keyOf returns the key of the letter that an edit is about; "" if it has no place to keep.
func (a *action) keyOf(
	ctx context.Context, o *operate.Operator, filter operate.Filter,
) (string, error) {
	if a.plan.Line == "" || a.Request.To != "" {
		return "", nil
	}
	for l, err := range o.Dead(ctx, a.plan, filter, 1) {
		return operate.KeyOf(l), err
	}
	return "", nil
}

// onKey releases a key, or replays its letters.
func (m *Manager) onKey(ctx context.Context, o *operate.Operator, a *action) error {
	r := a.Request
	if r.Kind == ReleaseKey {
		err := o.ReleaseKey(ctx, a.plan, r.Key, r.Mark)
		if err == nil {
			m.progress(a, Progress{Progress: operate.Progress{Total: 1, Seen: 1, Chosen: 1, Done: 1}})
		}
		return err
	}
	p, err := o.ReplayKey(ctx, a.plan, r.Key, operate.ReplayOptions{
		Limit: a.Count, Progress: func(p operate.Progress) { m.progress(a, Progress{Progress: p}) },
	})
	m.progress(a, Progress{Progress: p})
	return err
}
