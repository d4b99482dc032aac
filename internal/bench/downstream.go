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
// Once it has been out, it falls over, and answers 503 for good, if it gets more than limit calls
// in any second while it is up. The calls that it gets while it is out do not count: a fleet
// without a brake would never see it up again.
type downstream struct {
	url     string
	limit   int
	latency time.Duration
	server  *http.Server
	ended   chan error

	mu     sync.Mutex
	out    bool
	weak   bool        // it has been out
	fallen time.Time   // zero: it has not fallen over
	recent []time.Time // calls while it is weak and up, in order
	calls  []call
}

// call is a request that the downstream got.
type call struct {
	at      time.Time // when the handler called
	message int
	probe   bool // the caller's budget was closed
	ok      bool
}

// The headers of a call. probeHeader marks a handler whose budget is closed. sentHeader has the
// time of the call in nanoseconds: the bench and the fleet have one clock, and a stall of the bench
// on a busy machine must not look like many calls at once.
const (
	probeHeader = "Millpond-Probe"
	sentHeader  = "Millpond-Sent"
)

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
	sent, err := strconv.ParseInt(r.Header.Get(sentHeader), 10, 64)
	if err != nil {
		http.Error(w, "no time", http.StatusBadRequest)
		return
	}
	if !d.take(time.Unix(0, sent), number, r.Header.Get(probeHeader) != "") {
		http.Error(w, "out of order", http.StatusServiceUnavailable)
		return
	}
	time.Sleep(d.latency)
}

// take records a call, and reports whether it succeeds.
func (d *downstream) take(at time.Time, message int, probe bool) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.weak && !d.out && d.fallen.IsZero() && d.tooMany(at) {
		d.fallen = at
	}
	ok := !d.out && d.fallen.IsZero()
	d.calls = append(d.calls, call{at, message, probe, ok})
	return ok
}

// tooMany notes a call, and reports whether any second with it has more than limit. Calls may come
// a little out of order.
func (d *downstream) tooMany(at time.Time) bool {
	old := at.Add(-10 * time.Second)
	d.recent = slices.DeleteFunc(d.recent, old.After)
	i, _ := slices.BinarySearchFunc(d.recent, at, time.Time.Compare)
	d.recent = slices.Insert(d.recent, i, at)
	for first := max(0, i-d.limit); first <= i && first+d.limit < len(d.recent); first++ {
		if d.recent[first+d.limit].Sub(d.recent[first]) < time.Second {
			return true
		}
	}
	return false
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

// all returns the calls in the order of their times.
func (d *downstream) all() []call {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.SortedStableFunc(slices.Values(d.calls),
		func(a, b call) int { return a.at.Compare(b.at) })
}
