package page

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/millpond-go/millpond/topology/operate"
)

// task is a look that a person has asked for. It goes on if the page is closed, and pages that ask
// for the same while it runs wait for it together.
type task struct {
	Name string // of the live part that shows its progress
	done chan struct{}

	mu    sync.Mutex
	note  string
	shown time.Time
	// The result, once done is closed.
	Value any
	Err   error
	At    time.Time
}

// Running reports whether the look has not ended.
func (t *task) Running() bool {
	select {
	case <-t.done:
		return false
	default:
		return true
	}
}

// Note says how far the look is.
func (t *task) Note() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.note
}

// tasks are the last looks by their keys.
type tasks struct {
	mu    sync.Mutex
	all   map[string]*task
	order []string
	under sync.WaitGroup
	// one is held by a look at messages, because two looks at one queue see different messages.
	one chan struct{}
}

// maxTasks is how many results are kept, and taskWait how long a page waits for a look before it
// shows that it runs.
const (
	maxTasks = 100
	taskWait = 1500 * time.Millisecond
	// taskEnd bounds a look; operate.Operator ends it after 15 minutes.
	taskEnd = 20 * time.Minute
)

func newTasks() *tasks { return &tasks{all: map[string]*task{}, one: make(chan struct{}, 1)} }

// look is the work of a task. note says how far it is.
type look func(ctx context.Context, note func(string)) (any, error)

// begin begins a look, unless one with the same key is under way. It waits for the others to end.
func (h *Handler) begin(key string, f look) *task {
	return h.beside(key, func(ctx context.Context, note func(string)) (any, error) {
		select {
		case h.tasks.one <- struct{}{}:
			defer func() { <-h.tasks.one }()
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		note("connecting")
		return f(ctx, note)
	})
}

// beside is begin for a look that waits for no other.
func (h *Handler) beside(key string, f look) *task {
	h.tasks.mu.Lock()
	defer h.tasks.mu.Unlock()
	t := h.tasks.all[key]
	if t == nil || !t.Running() {
		sum := sha256.Sum256([]byte(key))
		t = &task{Name: "look-" + hex.EncodeToString(sum[:6]), done: make(chan struct{}), note: "waiting"}
		h.tasks.put(key, t)
		h.tasks.under.Go(func() { h.runTask(t, f) })
	}
	return t
}

// looked is what a page shows of a look.
type looked struct {
	Running []*task
	Err     string
	Looked  time.Time // zero before the first result
	Moved   bool      // an action has moved messages since
}

// lastLook returns the state and the result of the last look with a key.
func lastLook[T any](h *Handler, key string) (l looked, value T) {
	t := h.tasks.last(key)
	switch {
	case t == nil:
		return l, value
	case t.Running():
		l.Running = append(l.Running, t)
		return l, value
	case t.Err != nil:
		l.Err = t.Err.Error()
	}
	value, ok := t.Value.(T)
	if ok {
		l.Looked = t.At
	}
	return l, value
}

// lookAndShow begins a look that needs the operator, waits for it for a moment, and shows a page.
func (h *Handler) lookAndShow(
	w http.ResponseWriter, r *http.Request, key, path string,
	f func(ctx context.Context, o *operate.Operator, note func(string)) (any, error),
) error {
	t := h.begin(key, func(ctx context.Context, note func(string)) (any, error) {
		operator, err := h.connected(ctx)
		if err != nil {
			return nil, err
		}
		return f(ctx, operator, note)
	})
	await(r.Context(), []*task{t})
	return h.to(w, r, path)
}

// await waits for looks to end, at most taskWait.
func await(ctx context.Context, all []*task) {
	ctx, cancel := context.WithTimeout(ctx, taskWait)
	defer cancel()
	for _, t := range all {
		select {
		case <-t.done:
		case <-ctx.Done():
			return
		}
	}
}

// put keeps a task. t.mu is held. The oldest that has ended gives way.
func (t *tasks) put(key string, new *task) {
	if _, known := t.all[key]; !known {
		t.order = append(t.order, key)
	}
	t.all[key] = new
	for i := 0; len(t.order) > maxTasks && i < len(t.order); i++ {
		if oldest := t.order[i]; !t.all[oldest].Running() {
			delete(t.all, oldest)
			t.order = append(t.order[:i:i], t.order[i+1:]...)
			i--
		}
	}
}

// last returns the last look with a key; nil if there was none.
func (t *tasks) last(key string) *task {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.all[key]
}

func (h *Handler) runTask(t *task, f look) {
	defer func() {
		if problem := recover(); problem != nil { // net/http recovers from its own handlers alone
			t.Err = fmt.Errorf("the look panicked: %v", problem)
		}
		t.At = time.Now()
		close(t.done)
		h.showTask(t)
		time.AfterFunc(time.Minute, func() { h.hub.drop(t.Name) })
	}()
	ctx, cancel := context.WithTimeout(h.ctx, taskEnd)
	defer cancel()
	note := func(text string) {
		t.mu.Lock()
		fresh := time.Since(t.shown) > time.Second/2
		if t.note = text; fresh {
			t.shown = time.Now()
		}
		t.mu.Unlock()
		if fresh {
			h.showTask(t)
		}
	}
	t.Value, t.Err = f(ctx, note)
}

// showTask sends the progress to all pages that show it.
func (h *Handler) showTask(t *task) { h.sendPart(t.Name, "task-part", t) }

// counted is the progress of a look at messages.
func counted(n int, one string) string { return fmt.Sprintf("%s so far", plural(n, one)) }
