package page

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/millpond-go/millpond/cmd/millpond/internal/history"
	"github.com/millpond-go/millpond/topology/operate"
)

// sight is the result of a look at the management API. It is not changed afterwards.
type sight struct {
	Vhost operate.View
	// Incidents are all that is wrong, the most urgent first.
	Incidents []operate.Incident
	// At is when the look ended; zero if none has succeeded yet.
	At, began time.Time
	// Err and Tried are the error and the time of a later look that failed.
	Err   error
	Tried time.Time
}

// seen returns the last sight, or an error if no look has succeeded yet.
func (h *Handler) seen(ctx context.Context) (*sight, error) {
	switch s := h.watcher.sight(ctx); {
	case !s.At.IsZero():
		return s, nil
	case s.Err != nil:
		return nil, fmt.Errorf("the broker cannot be looked at: %w", s.Err)
	}
	return nil, failure{http.StatusServiceUnavailable, errors.New("the first look at the broker " +
		"takes longer than usual: load the page again")}
}

// main returns a queue with retries.
func (s *sight) main(name string) (operate.Main, error) {
	main, ok := s.Vhost.Main(name)
	if !ok {
		return main, notFound("there is no queue %q with retries in this virtual host", name)
	}
	return main, nil
}

// lookLimit bounds a look. A page waits for one if its sight is older than young: if it has one, no
// longer than patience.
const (
	lookLimit = time.Minute
	young     = 5 * time.Second
	patience  = 2 * time.Second
)

// watcher looks at the management API, often while pages are open. All pages read its last sight.
type watcher struct {
	ctx      context.Context
	interval time.Duration
	look     func(ctx context.Context, quiet bool) (*sight, error)
	seen     func(*sight) // called after each look
	under    sync.WaitGroup

	mu      sync.Mutex
	last    *sight
	next    time.Time     // no look before it
	renewed time.Time     // older sights are old
	running chan struct{} // closed when the look under way ends; nil if there is none
}

func newWatcher(
	ctx context.Context, interval time.Duration,
	look func(ctx context.Context, quiet bool) (*sight, error), seen func(*sight),
) *watcher {
	return &watcher{ctx: ctx, interval: interval, look: look, seen: seen, last: new(sight)}
}

// sight returns the last sight. If that is old, a look begins, and is waited for, but not for long
// if there is an older one.
func (w *watcher) sight(ctx context.Context) *sight {
	if !w.lastSight().At.IsZero() {
		limited, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		ctx = limited
	}
	for range 2 { // the look under way may have begun before renew
		w.mu.Lock()
		w.begin(false)
		running := w.running
		old := time.Since(w.last.At) > young || w.last.began.Before(w.renewed)
		w.mu.Unlock()
		if running == nil || !old {
			break
		}
		select {
		case <-running:
		case <-ctx.Done():
		}
	}
	return w.lastSight()
}

// lastSight returns the last sight at once.
func (w *watcher) lastSight() *sight {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.last
}

// renew lets the next page look anew, and wait for that.
func (w *watcher) renew() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.next, w.renewed = time.Time{}, time.Now()
}

// sample looks once in each step of the history, also while no page is open.
func (w *watcher) sample() {
	ticker := time.NewTicker(history.Step)
	defer ticker.Stop()
	for {
		w.mu.Lock()
		if time.Since(w.last.At) > history.Step-w.interval {
			w.begin(true)
		}
		w.mu.Unlock()
		select {
		case <-ticker.C:
		case <-w.ctx.Done():
			return
		}
	}
}

// begin begins a look unless one is under way or the last one is young. w.mu is held.
func (w *watcher) begin(quiet bool) {
	if w.running != nil || time.Now().Before(w.next) || w.ctx.Err() != nil {
		return
	}
	done := make(chan struct{})
	w.running = done
	w.under.Go(func() {
		defer close(done)
		began := time.Now()
		ctx, cancel := context.WithTimeout(w.ctx, lookLimit)
		defer cancel()
		found, err := w.look(ctx, quiet)
		now := time.Now()
		w.mu.Lock()
		if err != nil {
			old := *w.last
			found = &old
			found.Err, found.Tried = err, now
		} else {
			found.At, found.began = now, began
		}
		// A look at a large vhost takes long: the broker rests for longer. After a quiet look a page
		// looks at once.
		rest := 4 * now.Sub(began)
		if !quiet {
			rest = max(rest, w.interval)
		}
		w.last, w.running = found, nil
		if !began.Before(w.renewed) {
			w.next = now.Add(rest)
		}
		w.mu.Unlock()
		w.seen(found)
	})
}

// watch looks again and again until the context ends. All streams together look as often as one.
func (w *watcher) watch(ctx context.Context) {
	for ctx.Err() == nil && w.ctx.Err() == nil {
		w.mu.Lock()
		w.begin(false)
		running, next := w.running, w.next
		w.mu.Unlock()
		timer := time.NewTimer(max(time.Until(next), 10*time.Millisecond))
		select {
		case <-running: // nil: never
		case <-timer.C:
		case <-ctx.Done():
		case <-w.ctx.Done():
		}
		timer.Stop()
	}
}

// hub passes parts of pages on to all open pages.
type hub struct {
	mu      sync.Mutex
	n       uint64 // parts sent
	last    map[string]part
	changed chan struct{} // closed at the next change
}

// part is the event with the HTML of an element that has the attribute data-live with its name.
type part struct {
	n     uint64
	event []byte
}

func newHub() *hub { return &hub{last: map[string]part{}, changed: make(chan struct{})} }

// send shows a part on all open pages. Equal HTML is not sent again.
func (h *hub) send(name string, html []byte) {
	event := eventOf(name, html)
	h.mu.Lock()
	defer h.mu.Unlock()
	if bytes.Equal(h.last[name].event, event) {
		return
	}
	h.n++
	h.last[name] = part{h.n, event}
	close(h.changed)
	h.changed = make(chan struct{})
}

// sendPart shows a template on all open pages.
func (h *Handler) sendPart(name, part string, data any) {
	var html bytes.Buffer
	if h.pages.ExecuteTemplate(&html, part, data) == nil {
		h.hub.send(name, html.Bytes())
	}
}

// drop forgets a part that does not change any more.
func (h *hub) drop(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.last, name)
}

// since returns the events of the parts with these names, or of all without names, that are newer
// than those in seen, which it updates.
func (h *hub) since(
	seen map[string]uint64, names []string,
) (events [][]byte, changed <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for name, p := range h.last {
		if p.n > seen[name] && (len(names) == 0 || slices.Contains(names, name)) {
			events, seen[name] = append(events, p.event), p.n
		}
	}
	return events, h.changed
}

// beat is how often a stream without news shows that it lives, and writeLimit how long a browser
// may take to read.
const (
	beat       = 15 * time.Second
	writeLimit = 10 * time.Second
)

// events is the stream of server-sent events: each is a part of the page, of those that the request
// names.
func (h *Handler) events(w http.ResponseWriter, r *http.Request) error {
	select {
	case h.streams <- struct{}{}:
		defer func() { <-h.streams }()
	default:
		w.Header().Set("Retry-After", "30")
		return failure{http.StatusServiceUnavailable, errors.New("too many pages are open")}
	}
	<-h.requests // a stream has its own place
	defer func() { h.requests <- struct{}{} }()
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(h.ctx, cancel)()
	go h.watcher.watch(ctx)
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no")
	stream := http.NewResponseController(w)
	seen, names := map[string]uint64{}, r.URL.Query()["part"]
	ticker := time.NewTicker(beat)
	defer ticker.Stop()
	for {
		events, changed := h.hub.since(seen, names)
		if len(events) == 0 {
			events = [][]byte{[]byte(": still here\n\n")}
		}
		_ = stream.SetWriteDeadline(time.Now().Add(writeLimit)) // not every writer can
		for _, event := range events {
			if _, err := w.Write(event); err != nil {
				return nil //nolint:nilerr // the browser has gone
			}
		}
		if err := stream.Flush(); err != nil {
			return nil //nolint:nilerr // the browser has gone
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-ticker.C:
		}
	}
}

// eventOf is a part as an event.
func eventOf(name string, html []byte) []byte {
	event := []byte("event: " + name + "\n")
	for line := range bytes.SplitSeq(html, []byte("\n")) {
		event = append(event, "data: "...)
		event = append(event, bytes.TrimRight(line, "\r")...)
		event = append(event, '\n')
	}
	return append(event, '\n')
}
