package metrics

import (
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millpond-go/millpond/middleware"
)

// mostDelays is the number of delays of a queue that have their own label value. More than that
// come from Levels, or from delays that errors ask for.
const mostDelays = 50

// retryDelays counts retries by their delay and level.
type retryDelays struct {
	retries *prometheus.CounterVec

	mu    sync.Mutex
	known map[string]map[time.Duration]string // the label values of each queue
}

func newRetryDelays(m *Metrics) *retryDelays {
	return &retryDelays{
		retries: m.counter("retries_by_delay_total",
			"Messages republished to a wait queue after a failure, by the delay of the wait queue and "+
				"the number of the retry.", "queue", "retry_delay", "retry_level"),
		known: map[string]map[time.Duration]string{},
	}
}

func (r *retryDelays) count(e middleware.Event) {
	r.retries.WithLabelValues(e.Queue, r.label(e.Queue, e.DelayGiven), attemptLabel(e.Attempt)).Inc()
}

// label is the label value of a delay: as in the name of a wait queue, or "other" if the queue has
// too many.
func (r *retryDelays) label(queue string, delay time.Duration) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	labels := r.known[queue]
	if labels == nil {
		labels = map[time.Duration]string{}
		r.known[queue] = labels
	}
	label, known := labels[delay]
	switch {
	case known:
		return label
	case len(labels) >= mostDelays:
		return "other"
	}
	labels[delay] = delayText(delay)
	return labels[delay]
}

// delayText writes a delay as Go does, without zero units at the end.
func delayText(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}
