package job

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/millpond-go/millpond/cmd/millpond/internal/auditlog"
	"github.com/millpond-go/millpond/cmd/millpond/internal/overview"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/operate"
)

const (
	// maxActions bounds the actions that have ended, in memory and at a start in the journal.
	// maxRehearsed bounds the rehearsals: each may be of an edit, which holds a text of up to
	// maxEdited bytes.
	maxActions   = 200
	maxRehearsed = 20
	maxEdited    = 1 << 20
	// rehearsedFor is how long a rehearsal can be confirmed.
	rehearsedFor = 15 * time.Minute
	// noteEvery is how often the progress is written to the journal, and tellEvery how often
	// listeners are told of it at most.
	noteEvery = 250 * time.Millisecond
	tellEvery = 100 * time.Millisecond
)

var (
	errStop    = errors.New("stopped by a person")
	errClosing = errors.New("the process is ending")
)

// Options of a Manager.
type Options struct {
	// Operator returns what does the work. The caller closes it, after the Manager.
	Operator func(ctx context.Context) (*operate.Operator, error)
	// Plan returns the plan of a queue.
	Plan func(ctx context.Context, queue string) (topology.Plan, error)
	// Folder keeps the journal, the audit log and the letters that were discarded; it is made with
	// the rights 0700. One Manager uses it at a time. Default: everything is in memory, an
	// interrupted action is forgotten, nothing can be discarded, and there is no audit log.
	Folder string
	// Audit is the file of the audit log, which other processes may share. Default: audit.jsonl in
	// the Folder.
	Audit string
}

// Manager runs actions. Its methods may be called from many goroutines.
type Manager struct {
	Options
	ctx    context.Context // of all actions
	cancel context.CancelCauseFunc
	store  *store        // nil without a folder
	log    *auditlog.Log // nil without a file
	group  sync.WaitGroup

	mu      sync.Mutex
	actions []*action         // oldest first
	busy    map[string]string // by queue: who works on its messages
	changed chan struct{}
	noted   []auditlog.Entry
}

// action is an Action with what only the process needs.
type action struct {
	Action
	plan   topology.Plan
	keys   []string // queues that no other action may use
	cancel context.CancelCauseFunc
	told   time.Time
	tell   func(operate.Progress) // of its rehearsal
	result Rehearsal
}

// Open returns a Manager. It reads the journal: actions that were under way when the last process
// ended become StateInterrupted.
func Open(options Options) (*Manager, error) {
	m := &Manager{Options: options, busy: map[string]string{}, changed: make(chan struct{}, 1)}
	m.ctx, m.cancel = context.WithCancelCause(context.Background())
	if m.Audit == "" && m.Folder != "" {
		m.Audit = filepath.Join(m.Folder, auditName)
	}
	var known []Action
	var err error
	if m.Folder != "" {
		if m.store, known, err = openStore(m.Folder); err != nil {
			return nil, fmt.Errorf("actions: folder %q: %w", m.Folder, err)
		}
	}
	if m.Audit != "" {
		m.log, err = auditlog.Open(m.Audit)
	}
	for i := range known {
		if known[i].Active() && err == nil {
			known[i].State = StateInterrupted
			err = errors.Join(m.audit("interrupted", known[i].Who, &known[i]), m.store.put(&known[i]))
		}
	}
	if err != nil {
		return nil, fmt.Errorf("actions: audit log %q: %w", m.Audit, errors.Join(err, m.closeFiles()))
	}
	for _, a := range known {
		m.actions = append(m.actions, &action{Action: a})
	}
	return m, nil
}

// audit writes a line to the audit log: who did what, to how many messages.
func (m *Manager) audit(event, who string, a *Action) error {
	if m.log == nil {
		return nil
	}
	r := &a.Request
	return m.log.Append(auditlog.Entry{
		Event: event, Who: who, Action: a.ID, Kind: string(r.Kind), Queue: r.Queue, What: a.Words,
		Filter: overview.Chosen(r.Filter, r.Cause), Count: a.Count, Done: a.Progress.Done,
		Error: a.Error, Of: r.Of, Export: a.Export,
	})
}

// Note does something that is no action, and notes in the audit log that it begins and how it ends.
// If the log cannot be written, nothing is done.
func (m *Manager) Note(who, kind, what string, do func(e *auditlog.Entry) error) error {
	note := func(auditlog.Entry) error { return nil }
	if m.log != nil {
		note = m.log.Append
	}
	e := auditlog.Entry{
		Event: "started", Who: who, Action: auditlog.NewID(), Kind: kind, What: what,
	}
	if err := note(e); err != nil {
		return fmt.Errorf("the audit log cannot be written, so nothing was done: %w", err)
	}
	err := do(&e)
	if e.Event = "done"; err != nil {
		e.Event, e.Error = "failed", err.Error()
	}
	e.At = time.Now()
	m.mu.Lock()
	m.noted = append(m.noted[max(len(m.noted)-mostNoted+1, 0):], e)
	m.mu.Unlock()
	return errors.Join(err, note(e))
}

// mostNoted is how many of the things that were noted last Noted returns.
const mostNoted = 20

// Noted returns what Note has noted last, the oldest first.
func (m *Manager) Noted() []auditlog.Entry {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.noted)
}

// Close stops every action, waits until none moves messages any more, and closes the files. The
// actions become StateInterrupted, and the next Manager of the folder knows them.
func (m *Manager) Close() error {
	m.mu.Lock()
	first := m.ctx.Err() == nil
	m.cancel(errClosing) // under the lock, so that Start begins nothing after it
	m.mu.Unlock()
	if first {
		m.group.Wait()
		return m.closeFiles()
	}
	return nil
}

func (m *Manager) closeFiles() error {
	if m.log == nil {
		return m.store.close()
	}
	return errors.Join(m.store.close(), m.log.Close())
}

// Actions returns all actions, newest first: rehearsals, actions under way, and up to 200 that have
// ended.
func (m *Manager) Actions() []Action {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.prune()
	list := make([]Action, 0, len(m.actions))
	for _, a := range slices.Backward(m.actions) {
		list = append(list, a.Action)
	}
	return list
}

// Action returns an action by its ID.
func (m *Manager) Action(id string) (Action, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	a, err := m.find(id)
	if err != nil {
		return Action{}, err
	}
	return a.Action, nil
}

func (m *Manager) find(id string) (*action, error) {
	m.prune()
	for _, a := range m.actions {
		if a.ID == id {
			return a, nil
		}
	}
	return nil, ErrNoAction
}

// prune forgets old rehearsals, and the oldest actions that have ended.
func (m *Manager) prune() {
	rehearsed := 0
	for _, a := range m.actions {
		if a.State == StateRehearsed {
			rehearsed++
		}
	}
	ended := len(m.actions) - rehearsed
	m.actions = slices.DeleteFunc(m.actions, func(a *action) bool {
		switch {
		case a.State == StateRehearsed:
			if rehearsed > maxRehearsed || time.Since(a.Rehearsed) > rehearsedFor {
				rehearsed--
				return true
			}
		case ended > maxActions && !a.Active():
			ended--
			return true
		}
		return false
	})
}

// Changed returns a channel that has a value after each change of an action; changes that come
// close together may be one value.
func (m *Manager) Changed() <-chan struct{} { return m.changed }

// tell says that an action has changed.
func (m *Manager) tell() {
	select {
	case m.changed <- struct{}{}:
	default:
	}
}

// Busy reports whether an action or a rehearsal uses a queue.
func (m *Manager) Busy() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.busy) > 0
}

// reserve keeps other actions away from queues.
func (m *Manager) reserve(keys []string, who string) error {
	for _, key := range keys {
		if other, is := m.busy[key]; is {
			return fmt.Errorf("queue %q: %w: %s", key, ErrBusy, other)
		}
	}
	for _, key := range keys {
		m.busy[key] = who
	}
	return nil
}

func (m *Manager) release(keys []string) {
	for _, key := range keys {
		delete(m.busy, key)
	}
}

// Start begins a rehearsed action. digest is the one of its rehearsal, which the same person did.
// It returns when the journal says that the action runs; the action goes on in the background.
func (m *Manager) Start(who, id, digest string) (Action, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	a, err := m.find(id)
	switch {
	case err != nil:
		return Action{}, err
	case m.ctx.Err() != nil:
		return a.Action, errClosing
	case subtle.ConstantTimeCompare([]byte(digest), []byte(a.Digest)) != 1, a.Who != who:
		return a.Action, ErrDigest
	case a.State != StateRehearsed:
		return a.Action, fmt.Errorf("start: %w: it is %s", ErrState, a.State)
	case a.Count == 0:
		return a.Action, ErrNothing
	}
	if err := m.reserve(a.keys, "action "+a.ID+" of "+a.Who); err != nil {
		return a.Action, err
	}
	before := a.Action
	a.State, a.Began = StateRunning, time.Now()
	err = m.audit("started", who, &a.Action)
	if err == nil {
		err = m.store.note(&a.Action)
	}
	if err != nil {
		a.Action = before
		m.release(a.keys)
		return a.Action, err
	}
	ctx, cancel := context.WithCancelCause(m.ctx)
	a.cancel = cancel
	m.group.Go(func() { m.finish(ctx, a, m.run(ctx, a)) })
	m.tell()
	return a.Action, nil
}

// Stop ends an action: within a second no more messages move. It is StateStopping until its
// messages are counted.
func (m *Manager) Stop(who, id string) (Action, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	a, err := m.find(id)
	if err != nil {
		return Action{}, err
	}
	if !a.Active() {
		return a.Action, fmt.Errorf("stop: %w: it is %s", ErrState, a.State)
	}
	if a.State == StateRunning {
		a.State, a.StoppedBy = StateStopping, who
		a.cancel(errStop)
		err = m.audit("stop", who, &a.Action)
		m.tell()
	}
	return a.Action, err
}

// progress takes over the progress of an action.
func (m *Manager) progress(a *action, p Progress) {
	m.update(a, func(now *Progress) { *now = p })
}

// update changes the progress, tells it, and writes it to the journal from time to time, and when a
// ramp has its name: that is in the journal before a letter has it. If that fails the action ends,
// because after a kill it would not be known how far it was.
func (m *Manager) update(a *action, change func(*Progress)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	named := a.Progress.Ramp != nil
	change(&a.Progress)
	if time.Since(a.told) >= tellEvery {
		a.told = time.Now()
		m.tell()
	}
	if time.Since(a.Noted) < noteEvery && named == (a.Progress.Ramp != nil) {
		return
	}
	if err := m.store.note(&a.Action); err != nil {
		a.cancel(fmt.Errorf("the journal cannot be written: %w", err))
	}
}

// finish notes the end of an action.
func (m *Manager) finish(ctx context.Context, a *action, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	cause := context.Cause(ctx)
	a.cancel(nil)
	a.Ended = time.Now()
	switch {
	case err == nil:
		a.State = StateDone
	case errors.Is(cause, errClosing):
		a.State = StateInterrupted
	case errors.Is(cause, errStop), errors.Is(err, operate.ErrStopped),
		errors.Is(err, operate.ErrUnsettled):
		a.State = StateStopped
	default:
		a.State = StateFailed
	}
	if err != nil && !errors.Is(err, errStop) && !errors.Is(err, errClosing) {
		a.Error = err.Error()
	}
	err = errors.Join(m.store.note(&a.Action), m.audit(string(a.State), a.Who, &a.Action))
	if err != nil {
		a.Error += "; the journal or the audit log could not be written: " + err.Error()
	}
	a.Request.Change, a.result = nil, Rehearsal{} // payloads
	m.release(a.keys)
	m.tell()
}
