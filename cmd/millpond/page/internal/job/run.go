package job

import (
	"context"
	"fmt"
	"sync/atomic"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/cmd/millpond/internal/lettertext"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/operate"
)

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
	report := func(p operate.Progress) { m.progress(a, Progress{Progress: p}) }
	switch r := a.Request; r.Kind {
	case Replay:
		options := operate.ReplayOptions{Filter: filter, Rate: r.Rate, Limit: a.Count}
		if r.watched() {
			return m.ramp(ctx, o, a, options)
		}
		options.To, options.Progress = r.To, report
		p, err := o.Replay(ctx, a.plan, options)
		report(p)
		return err
	case Edit:
		return m.edit(ctx, o, a, filter)
	case ReleaseKey, ReplayKey:
		return m.onKey(ctx, o, a)
	case Discard:
		return m.discard(ctx, o, a, filter)
	case Return:
		res, err := o.ReturnStranded(ctx, r.Queue, operate.ReplayOptions{
			Filter: filter, To: r.To, Rate: r.Rate, Limit: a.Count, Progress: report,
		})
		report(res.Progress)
		return err
	}
	return m.endWait(ctx, o, a)
}

// ramp replays letters and watches them.
func (m *Manager) ramp(
	ctx context.Context, o *operate.Operator, a *action, options operate.ReplayOptions,
) error {
	ramp := a.Request.ramp(options)
	named := false
	ramp.Report = func(res operate.RampResult) {
		m.progress(a, rampOf(res))
		if !named { // the name of the run is in the journal before a letter has it
			named = true
			m.noteProgress(a)
		}
	}
	ramp.Progress = func(p operate.Progress) { m.moved(a, p.Done) }
	res, err := o.Ramp(ctx, a.plan, ramp)
	m.progress(a, rampOf(res))
	return err
}

// edit replays one letter with its change.
func (m *Manager) edit(
	ctx context.Context, o *operate.Operator, a *action, filter operate.Filter,
) error {
	c := a.Request.Change
	filter.Match = func(l operate.Letter) bool { return Identity(l) == c.Letter }
	replay := o.Replay
	if key := a.Request.Key; key != "" {
		replay = func(
			ctx context.Context, plan topology.Plan, options operate.ReplayOptions,
		) (operate.Progress, error) {
			return o.ReplayKey(ctx, plan, key, options)
		}
	}
	p, err := replay(ctx, a.plan, operate.ReplayOptions{
		Filter: filter, To: a.Request.To, Limit: 1, EditedBy: a.Who,
		Edit: func(_ operate.Letter, msg *amqp.Publishing) error {
			c.after.Put(msg)
			return nil
		},
	})
	m.progress(a, Progress{Progress: p})
	if err == nil && p.Done == 0 {
		err = ErrChanged
	}
	return err
}

// discard writes letters to a file and throws them away.
func (m *Manager) discard(
	ctx context.Context, o *operate.Operator, a *action, filter operate.Filter,
) (err error) {
	f, err := m.store.export(a.ID)
	if err != nil {
		return err
	}
	defer func() {
		if closeErr := f.Close(); err == nil {
			err = closeErr
		}
	}()
	m.mu.Lock()
	a.Export = f.Name()
	err = m.store.note(&a.Action)
	m.mu.Unlock()
	if err != nil {
		return err
	}
	p, err := o.Discard(ctx, a.plan, operate.DiscardOptions{
		Filter: a.own(filter), Limit: a.Count,
		Progress: func(p operate.Progress) { m.progress(a, Progress{Progress: p}) },
		Before: func(letters []operate.Letter) error {
			if err := context.Cause(ctx); err != nil { // stop between two batches
				return err
			}
			if err := lettertext.Append(f, letters); err != nil {
				return fmt.Errorf("write the letters to %q: %w", f.Name(), err)
			}
			return nil
		},
	})
	m.progress(a, Progress{Progress: p})
	return err
}

// endWait releases or cancels waiting messages.
func (m *Manager) endWait(ctx context.Context, o *operate.Operator, a *action) error {
	var chosen atomic.Int64
	choose := a.own(a.Request.Filter)
	own := choose.Match
	choose.Match = func(l operate.Letter) bool { return own(l) && chosen.Add(1) <= int64(a.Count) }
	act := o.Release
	if a.Request.Kind == Cancel {
		act = o.Cancel
	}
	p, err := act(ctx, a.plan, choose)
	m.progress(a, Progress{Progress: p})
	return err
}
