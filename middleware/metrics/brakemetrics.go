package metrics

import (
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
)

// maxBy is the most runes of the label by, which may be any text of an operator.
const maxBy = 100

// brakes are the metrics of the brakes of this process.
type brakes struct {
	stopped, since, by, probing *prometheus.GaugeVec
	stops                       *prometheus.CounterVec

	mu   sync.Mutex
	last map[string]header.BrakeState // by name
}

func newBrakes(m *Metrics) *brakes {
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return newVec(m, prometheus.NewGaugeVec,
			prometheus.GaugeOpts{Namespace: "millpond", Name: name, Help: help}, labels...)
	}
	return &brakes{
		stopped: gauge("brake_stopped",
			"1 while this process does not consume because of the brake; absent before the first stop.",
			"brake"),
		since: gauge("brake_stopped_timestamp_seconds",
			"Unix time of the stop; absent while the brake is open.", "brake"),
		by: gauge("brake_stopped_by",
			"1 for the instance or the operator that has stopped the brake; absent while it is open.",
			"brake", "by"),
		probing: gauge("brake_probing", "1 in the process that probes.", "brake"),
		stops:   m.counter("brake_stops_total", "Stops of the brake.", "brake"),
		last:    map[string]header.BrakeState{},
	}
}

// observe counts a stop once, though it is told again when another process probes.
func (b *brakes) observe(e middleware.Event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now, before := *e.Brake, b.last[e.Brake.Name]
	now.Stopped = e.Kind == middleware.EventBudgetClosed
	b.last[now.Name] = now
	b.stopped.WithLabelValues(now.Name).Set(oneIf(now.Stopped))
	b.probing.WithLabelValues(now.Name).Set(oneIf(now.Stopped && e.Probing))
	stops := b.stops.WithLabelValues(now.Name)
	if before.Stopped && (!now.Stopped || before.By != now.By) {
		b.by.DeleteLabelValues(now.Name, byLabel(before.By))
	}
	if !now.Stopped {
		b.since.DeleteLabelValues(now.Name)
		return
	}
	if !before.Stopped {
		stops.Inc()
	}
	b.since.WithLabelValues(now.Name).Set(float64(now.Since.UnixMilli()) / 1000)
	b.by.WithLabelValues(now.Name, byLabel(now.By)).Set(1)
}

func byLabel(by string) string {
	by = strings.ToValidUTF8(by, "?")
	if utf8.RuneCountInString(by) <= maxBy {
		return by
	}
	return string([]rune(by)[:maxBy-1]) + "…"
}

func oneIf(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
