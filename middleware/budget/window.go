package budget

import (
	"time"

	"github.com/millpond-go/millpond/internal/seam"
)

// windowSlices is the number of parts of the sliding window.
const windowSlices = 10

// window counts deliveries in a sliding window. It is not safe for several goroutines.
type window struct {
	cfg     *Config
	slices  [windowSlices]windowSlice
	failing bool // closed by Share
	closed  bool // by either limit
}

// windowSlice counts in one part of the window.
type windowSlice struct {
	number                              int64 // since the epoch
	deliveries, failed, retries, probes int
}

// windowSum is the sum of a window.
type windowSum struct {
	closed                      bool
	deliveries, failed, retries int
}

// count changes the counts of now by change, which sees the window of now.
func (w *window) count(now time.Time, change func(*windowSlice)) seam.Change {
	before := w.closed
	w.closed = w.sum(now).closed
	change(&w.slices[w.number(now)%windowSlices])
	sum := w.sum(now)
	w.closed = sum.closed
	c := seam.Change{Deliveries: sum.deliveries, Failed: sum.failed, Retries: sum.retries}
	if w.closed != before {
		c.Opened, c.Closed = !w.closed, w.closed
	}
	return c
}

// sum sums the window up.
func (w *window) sum(now time.Time) windowSum {
	var s windowSum
	number := w.number(now)
	for i := range w.slices {
		slice := &w.slices[i]
		if slice.number <= number-windowSlices || slice.number > number {
			*slice = windowSlice{}
		}
		s.deliveries += slice.deliveries
		s.failed += slice.failed
		s.retries += slice.retries
	}
	w.slices[number%windowSlices].number = number

	share := float64(s.failed)
	switch limit := w.cfg.Share * float64(s.deliveries); {
	case w.cfg.Share == 0:
	case w.failing:
		w.failing = s.deliveries > 0 && share > limit/2
	default:
		w.failing = s.deliveries >= w.cfg.Minimum && share > limit
	}
	s.closed = w.failing || w.cfg.Retries > 0 && s.retries >= w.cfg.Retries
	return s
}

// probes returns how many deliveries the window has let through while it was closed.
func (w *window) probes() (n int) {
	for i := range w.slices {
		n += w.slices[i].probes
	}
	return n
}

func (w *window) number(now time.Time) int64 {
	return now.UnixNano() / int64(w.cfg.Window/windowSlices)
}
