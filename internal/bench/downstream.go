package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// downstream is an HTTP service that handlers call with the number of their message. It answers
// 200 after its latency, and 503 at once while it is out.
//
// Once it has been out, it falls over, and answers 503 for good, if it gets more than limit calls in
// any second while it is up. The calls that it gets while it is out do not count: a fleet without a
// brake would never see it up again.
type downstream struct {
	url     string
	limit   int
	latency time.Duration
	server  *http.Server
	ended   chan error

	mu     sync.Mutex
	out    bool
	weak   bool      // it has been out
	fallen time.Time // zero: it has not fallen over
	recent []time.Time
	calls  []call
}

// call is a request that the downstream got.
type call struct {
	at      time.Time
	message int
	probe   bool // the caller's budget was closed
	ok      bool
}

// probeHeader marks a call of a handler whose budget is closed.
const probeHeader = "Millpond-Probe"

func startDownstream(limit int, latency time.Duration) (*downstream, error) {
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	d := &downstream{
		url: "http://" + listener.Addr().String() + "/", limit: limit, latency: latency,
		ended: make(chan error, 1),
	}
	d.server = &http.Server{Handler: d, ReadHeaderTimeout: 10 * time.Second}
	go func() { d.ended <- d.server.Serve(listener) }()
	return d, nil
}

func (d *downstream) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	err := d.server.Shutdown(ctx)
	if ended := <-d.ended; !errors.Is(ended, http.ErrServerClosed) {
		err = errors.Join(err, ended)
	}
	return err
}

// ServeHTTP implements http.Handler.
func (d *downstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	number, err := strconv.Atoi(strings.TrimPrefix(r.URL.Path, "/"))
	if err != nil {
		http.Error(w, "not a number", http.StatusBadRequest)
		return
	}
	if !d.take(time.Now(), number, r.Header.Get(probeHeader) != "") {
		http.Error(w, "out of order", http.StatusServiceUnavailable)
		return
	}
	time.Sleep(d.latency)
}

// take records a call, and reports whether it succeeds.
func (d *downstream) take(now time.Time, message int, probe bool) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.weak && !d.out && d.fallen.IsZero() {
		second := now.Add(-time.Second)
		d.recent = slices.DeleteFunc(d.recent, func(at time.Time) bool { return at.Before(second) })
		if d.recent = append(d.recent, now); len(d.recent) > d.limit {
			d.fallen = now
		}
	}
	ok := !d.out && d.fallen.IsZero()
	d.calls = append(d.calls, call{now, message, probe, ok})
	return ok
}

// setOut puts the downstream out of order, or back, and returns the time of the change.
func (d *downstream) setOut(out bool) time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.out, d.weak = out, d.weak || out
	return time.Now()
}

// fell returns when the downstream fell over, and zero if it did not.
func (d *downstream) fell() time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.fallen
}

// handled returns the number of messages whose call succeeded once at least.
func (d *downstream) handled() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	done := map[int]bool{}
	for _, c := range d.calls {
		if c.ok {
			done[c.message] = true
		}
	}
	return len(done)
}

// all returns the calls in their order.
func (d *downstream) all() []call {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.calls)
}
