package job

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/millpond-go/millpond/cmd/millpond/internal/auditlog"
	"github.com/millpond-go/millpond/cmd/millpond/internal/lettertext"
	"github.com/millpond-go/millpond/cmd/millpond/internal/overview"
	"github.com/millpond-go/millpond/topology/operate"
)

// Rehearsal is what becomes of an action that is confirmed now.
type Rehearsal struct {
	Action
	// Found has the counts of the look, and of a replay its target and its obstacles.
	Found operate.Rehearsal
	// Notes are further sentences.
	Notes []string
	// Difference says how an Edit changes its letter.
	Difference []lettertext.Span
}

// Rehearse looks at the messages and moves none. The action that it returns waits for Start with
// its digest, for 15 minutes. tell gets its progress, and may be nil.
func (m *Manager) Rehearse(
	ctx context.Context, who string, r Request, tell func(operate.Progress),
) (Rehearsal, error) {
	r.Of, r.Runs = "", nil
	return m.rehearse(ctx, who, r, tell)
}

// Resume rehearses the rest of an action that was stopped, interrupted or has failed: its filter
// again. Letters that are dead again since its replay are passed over.
func (m *Manager) Resume(
	ctx context.Context, who, id string, tell func(operate.Progress),
) (Rehearsal, error) {
	a, err := m.Action(id)
	if err != nil {
		return Rehearsal{}, err
	}
	if !a.Resumable() {
		return Rehearsal{}, fmt.Errorf("resume: %w: it is %s: %s", ErrState, a.State, a.Outcome())
	}
	r := a.Request
	r.Of = a.ID
	if a.Progress.Ramp != nil {
		r.Runs = append(slices.Clip(r.Runs), a.Progress.Ramp.Run)
	}
	return m.rehearse(ctx, who, r, tell)
}

// Rehearsal returns a rehearsal that was not started yet.
func (m *Manager) Rehearsal(id string) (Rehearsal, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	a, err := m.find(id)
	if err != nil {
		return Rehearsal{}, err
	}
	if a.State != StateRehearsed {
		return Rehearsal{Action: a.Action}, fmt.Errorf("rehearsal: %w: it is %s", ErrState, a.State)
	}
	return a.result, nil
}

func (m *Manager) rehearse(
	ctx context.Context, who string, r Request, tell func(operate.Progress),
) (Rehearsal, error) {
	if err := r.check(); err != nil {
		return Rehearsal{}, err
	}
	if who == "" {
		return Rehearsal{}, fmt.Errorf("%w: the name of the person is missing", ErrRequest)
	}
	if r.Kind == Discard && m.store == nil {
		return Rehearsal{}, ErrNoFolder
	}
	a := &action{keys: []string{r.Queue}, tell: tell, Action: Action{
		ID: auditlog.NewID(), Who: who, Request: r, Source: r.Queue, State: StateRehearsed,
	}}
	if r.Kind != Return {
		var err error
		if a.plan, err = m.Plan(ctx, r.Queue); err != nil {
			return Rehearsal{}, err
		}
		dead := a.plan.Dead.RoutingKey
		if a.plan.Dead.Exchange != "" || dead == "" {
			return Rehearsal{}, operate.ErrNoQueue
		}
		a.keys, a.Source = []string{dead}, dead
	}
	switch r.Kind {
	case ReleaseKey:
		a.keys, a.Source = []string{a.plan.Line}, a.plan.Line
	case ReplayKey:
		a.keys = append(a.keys, a.plan.Line)
	case Release, Cancel:
		a.Source = r.Queue
		for _, q := range a.plan.Queues {
			if q.Delay > 0 {
				a.keys = append(a.keys, q.Name)
			}
		}
	}
	m.mu.Lock()
	err := m.reserve(a.keys, "a rehearsal of "+who)
	m.mu.Unlock()
	if err != nil {
		return Rehearsal{}, err
	}
	found, err := m.look(ctx, a)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.release(a.keys)
	if err != nil {
		return Rehearsal{}, err
	}
	a.Rehearsed, a.tell = time.Now(), nil
	a.Words = a.Request.words(a.Count, a.plan.Dead.RoutingKey)
	a.Digest = a.digest()
	found.Action = a.Action
	a.result = found
	m.actions = append(m.actions, a)
	m.prune()
	m.tell()
	return found, nil
}

// digest is over everything that a person confirms.
func (a *action) digest() string {
	change := ""
	if c := a.Request.Change; c != nil {
		change = c.Letter + c.Text
	}
	text, _ := json.Marshal([]any{ // of plain values
		a.ID, a.Who, a.Request, change, a.Source, a.Count, a.Words, a.Rehearsed,
	})
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// look counts the messages of an action, and moves none.
func (m *Manager) look(ctx context.Context, a *action) (found Rehearsal, err error) {
	filter, err := a.Request.filter()
	if err != nil {
		return found, err
	}
	filter = overview.Caused(filter, &a.Request.Cause)
	o, err := m.Operator(ctx)
	if err != nil {
		return found, err
	}
	switch a.Request.Kind {
	case Edit:
		return a.lookEdit(ctx, o, filter)
	case ReleaseKey, ReplayKey:
		return a.lookKey(ctx, o)
	}
	return a.count(ctx, o, filter)
}

// count rehearses move.
func (a *action) count(
	ctx context.Context, o *operate.Operator, filter operate.Filter,
) (found Rehearsal, err error) {
	options := a.options(filter)
	options.Progress = a.tell
	note := func(n int, text string) {
		if n > 0 {
			found.Notes = append(found.Notes, fmt.Sprintf("%d %s", n, text))
		}
	}
	if a.Request.Key != "" || a.Request.Kind != Replay && a.Request.Kind != Edit {
		options.DryRun = true
		p, err := a.move(ctx, o, options)
		a.Count, found.Found.Progress = p.Chosen-p.Refused, p
		if a.Request.Key != "" {
			found.Found.Target = a.plan.Queue
		}
		for _, left := range p.Left {
			a.Count -= left.Messages
			note(left.Messages, fmt.Sprintf("stay, because their queue %q does not exist", left.Queue))
		}
		return found, err
	}
	h, err := o.Rehearse(ctx, a.plan, a.Request.ramp(options))
	found.Found, a.Count = h, h.Chosen
	note(h.Foreign, "belong to another queue and stay")
	note(h.Spent, "were replayed too often before and stay")
	note(h.Refused, "are too large with the headers of a replay and stay")
	note(h.Expiring, "have an expiration, which a replay leaves out")
	return found, err
}

// lookKey looks at a key of a queue that is handled in order.
func (a *action) lookKey(ctx context.Context, o *operate.Operator) (found Rehearsal, err error) {
	k, err := o.FindKey(ctx, a.plan, a.Request.Key, "")
	if err != nil {
		return found, err
	}
	if k.Mark != a.Request.Mark {
		return found, fmt.Errorf("%w: another dead letter blocks the key, or none: look at the keys "+
			"of the queue again", ErrChanged)
	}
	found, err = a.count(ctx, o, operate.Filter{})
	if k.Mark != "" {
		found.Notes = append(found.Notes, fmt.Sprintf("the dead letter %q blocks the key; it came at "+
			"%s; messages of the key that wait behind it: %d", k.MessageID, overview.At(k.Blocked),
			k.Waiting))
	}
	if a.Count == 0 && k.Replayed {
		a.Count = 1
		found.Notes = append(found.Notes, "an earlier replay was interrupted: its letter is in the "+
			"line, and the key is released")
	}
	return found, err
}

// lookEdit looks for the letter that an edit is about. A letter with a key keeps its place.
func (a *action) lookEdit(
	ctx context.Context, o *operate.Operator, filter operate.Filter,
) (found Rehearsal, err error) {
	var letter *operate.Letter
	c := a.Request.Change
	for l, err := range o.Dead(ctx, a.plan, a.options(filter).Filter, 1) {
		if err != nil {
			return found, err
		}
		letter = &l
	}
	if letter == nil {
		return found, ErrChanged
	}
	if a.plan.Line != "" && a.Request.To == "" {
		a.Request.Key = operate.KeyOf(*letter)
	}
	found, err = a.count(ctx, o, filter)
	if err == nil && a.Count == 0 {
		err = ErrChanged
	}
	if err != nil {
		return found, err
	}
	if n := max(len(letter.Delivery.Body), len(c.Text)); n > maxEdited {
		return found, fmt.Errorf("%w: the letter has %d bytes, and at most %d are edited here: use "+
			"millpond dead replay --edit", ErrRequest, n, maxEdited)
	}
	before, _ := lettertext.Of(letter.Delivery.Headers, letter.Delivery.Body)
	c.after, err = lettertext.Parse(c.Text, before, c.NotJSON)
	switch {
	case errors.Is(err, lettertext.ErrNoJSON):
		return found, fmt.Errorf("%w: %w; to replay it all the same, check that it need not be JSON",
			ErrRequest, err)
	case err != nil:
		return found, fmt.Errorf("%w: %w", ErrRequest, err)
	}
	found.Difference, err = lettertext.Difference(before, c.after)
	if err == nil && len(found.Difference) == 0 {
		err = fmt.Errorf("%w: the edit changes nothing", ErrRequest)
	}
	return found, err
}
