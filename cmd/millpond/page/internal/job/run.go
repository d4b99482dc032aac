package job

import (
	"context"
	"errors"
	"os"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/cmd/millpond/internal/lettertext"
	"github.com/millpond-go/millpond/topology/operate"
)

// move moves the messages of an action, or counts them.
func (a *action) move(
	ctx context.Context, o *operate.Operator, options operate.MoveOptions,
) (operate.Progress, error) {
	r := a.Request
	switch {
	case r.Kind == ReleaseKey && options.DryRun:
		return operate.Progress{Total: 1, Seen: 1, Chosen: 1}, nil
	case r.Kind == ReleaseKey:
		if err := o.ReleaseKey(ctx, a.plan, r.Key, r.Mark); err != nil {
			return operate.Progress{}, err
		}
		return operate.Progress{Total: 1, Seen: 1, Chosen: 1, Done: 1}, nil
	case r.Key != "":
		return o.ReplayKey(ctx, a.plan, r.Key, options)
	case r.Kind == Discard:
		return o.Discard(ctx, a.plan, options)
	case r.Kind == Return:
		return o.ReturnStranded(ctx, r.Queue, options)
	case r.Kind == Release:
		return o.Release(ctx, a.plan, options)
	case r.Kind == Cancel:
		return o.Cancel(ctx, a.plan, options)
	}
	return o.Replay(ctx, a.plan, options)
}

// options are the options of move. A discard passes over letters of other queues in the same
// dead-letter queue.
func (a *action) options(filter operate.Filter) operate.MoveOptions {
	r := a.Request
	o := operate.MoveOptions{Filter: filter, To: r.To, Rate: r.Rate, MaxReplays: r.MaxReplays}
	switch match := filter.Match; r.Kind {
	case Edit: // of one letter; others may be equal to it
		o.Limit, o.EditedBy = 1, a.Who
		o.Filter.Match = func(l operate.Letter) bool {
			return lettertext.Identity(l.Delivery) == r.Change.Letter
		}
	case Discard:
		o.Filter.Match = func(l operate.Letter) bool {
			return (l.Queue == "" || l.Queue == r.Queue) && (match == nil || match(l))
		}
	}
	return o
}

// run moves the messages of an action, no more than were rehearsed.
func (m *Manager) run(ctx context.Context, a *action) error {
	filter, err := a.Request.filter()
	if err != nil {
		return err
	}
	o, err := m.Operator(ctx)
	if err != nil {
		return err
	}
	options := a.options(filter)
	options.Limit = a.Count
	switch c := a.Request.Change; {
	case a.Request.watched():
		return m.ramp(ctx, o, a, options)
	case c != nil:
		options.Edit = func(_ operate.Letter, msg *amqp.Publishing) error {
			c.after.Put(msg)
			return nil
		}
	case a.Request.Kind == Discard:
		f, err := m.export(a)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }() // synced after each batch
		options.KeepIn = f
	}
	report := func(p operate.Progress) { m.progress(a, Progress{Progress: p}) }
	options.Progress = report
	p, err := a.move(ctx, o, options)
	report(p)
	if err == nil && p.Done == 0 && a.Request.Change != nil {
		err = ErrChanged
	}
	return err
}

// ramp replays letters and watches them.
func (m *Manager) ramp(
	ctx context.Context, o *operate.Operator, a *action, options operate.MoveOptions,
) error {
	ramp := a.Request.ramp(options)
	ramp.Report = func(res operate.RampResult) { m.progress(a, rampOf(res)) }
	ramp.Progress = func(p operate.Progress) { // more often than Report
		m.update(a, func(now *Progress) { now.Done = max(now.Done, p.Done) })
	}
	res, err := o.Ramp(ctx, a.plan, ramp)
	m.progress(a, rampOf(res))
	return err
}

// export makes the file for the letters of a discard, and notes it.
func (m *Manager) export(a *action) (*os.File, error) {
	f, err := m.store.export(a.ID)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	a.Export = f.Name()
	if err := m.store.note(&a.Action); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
