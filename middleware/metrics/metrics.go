package metrics

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
)

// Metrics counts events. It is a middleware.Observer, for middleware.WithObserver
// and topology.WithObserver, and a prometheus.Collector. One Metrics may observe many
// handlers and clients, from many goroutines.
type Metrics struct {
	processing, attempts, untilSuccess, delayAsked, lateness *prometheus.HistogramVec

	failures, retries, snoozed, deadLetters, requeued *prometheus.CounterVec

	handOver, crashRounds, still *prometheus.CounterVec

	held, stranded *prometheus.GaugeVec
	budgets        prometheus.Gauge
	brakes         *brakes
	retryDelays    *retryDelays
	all            []prometheus.Collector

	mu     sync.RWMutex
	series map[place]*series
}

var (
	_ middleware.Observer  = (*Metrics)(nil)
	_ prometheus.Collector = (*Metrics)(nil)
)

// place is where a message is handled.
type place struct{ handler, queue string }

// series are the series of one place that a success needs, so that a success looks
// up no labels and allocates nothing.
type series struct {
	succeeded, attempts prometheus.Observer
}

var (
	attemptBuckets = []float64{1, 2, 3, 4, 5, 6, 8, 10, 15, 20, 50}
	// delayBuckets are for delays and ages: from a tenth of a second to a day.
	delayBuckets = []float64{
		.1, .25, .5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 21600, 86400,
	}
	latenessBuckets = []float64{
		.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300,
	}
)

// Option changes Metrics.
type Option func(*options) error

type options struct{ processing []float64 }

// WithProcessingBuckets sets the upper bounds, in seconds and ascending, of
// millpond_processing_seconds.
//
// Default: prometheus.DefBuckets, 5 ms to 10 s.
func WithProcessingBuckets(bounds ...float64) Option {
	return func(o *options) error {
		for i := 1; i < len(bounds); i++ {
			if !(bounds[i-1] < bounds[i]) {
				return fmt.Errorf("WithProcessingBuckets: bound %d is not above the one before", i+1)
			}
		}
		if len(bounds) == 0 {
			return fmt.Errorf("WithProcessingBuckets: there are no bounds")
		}
		o.processing = bounds
		return nil
	}
}

// New returns Metrics that have counted nothing, and registers them nowhere. The
// error names every problem of the options.
func New(opts ...Option) (*Metrics, error) {
	o := options{processing: prometheus.DefBuckets}
	if err := apply(&o, opts); err != nil {
		return nil, fmt.Errorf("new metrics: %w", err)
	}
	m := &Metrics{series: make(map[place]*series)}
	handled := []string{"handler", "queue"}
	m.processing = m.histogram("processing_seconds",
		"Time the handler took, by outcome of the attempt: success, failure, snoozed, interrupted.",
		o.processing, "handler", "queue", "outcome")
	m.attempts = m.histogram("attempts", "Attempts it took until the handler succeeded.",
		attemptBuckets, handled...)
	m.untilSuccess = m.histogram("time_until_success_seconds",
		"Time from the first failure to the success, with all waits, of messages that have failed "+
			"before.",
		delayBuckets, handled...)
	m.failures = m.counter("failures_total", "Attempts that have failed, by class of the error.",
		"handler", "queue", "class")
	m.retries = m.counter("retries_total",
		"Messages republished to a wait queue after a failure, by the attempt that failed.",
		"handler", "queue", "attempt")
	m.retryDelays = newRetryDelays(m)
	m.delayAsked = m.histogram("retry_delay_asked_seconds",
		"Delays that were asked for after a failure.", delayBuckets, handled...)
	m.lateness = m.histogram("retry_lateness_seconds",
		"Time by which messages came back later than asked: resolution of the wait queue, "+
			"and time behind others in their own.", latenessBuckets, "queue")
	m.snoozed = m.counter("set_aside_total",
		"Messages held back without a failure: the handler has asked for it, "+
			"or the router has nacked.", handled...)
	m.deadLetters = m.counter("dead_letters_total", "Messages dead-lettered, by reason.",
		"handler", "queue", "reason")
	m.requeued = m.counter("requeued_total",
		"Messages that went back to their queue, no attempt counted.", handled...)
	m.handOver = m.counter("hand_over_failures_total",
		"Tries to hand a message over to the broker that failed.", "queue")
	m.held = newVec(m, prometheus.NewGaugeVec, prometheus.GaugeOpts{
		Namespace: "millpond", Name: "held_messages",
		Help: "Messages that this process holds because they cannot be handed over.",
	}, "queue")
	m.stranded = newVec(m, prometheus.NewGaugeVec, prometheus.GaugeOpts{
		Namespace: "millpond", Name: "stranded_messages",
		Help: "Messages in a stranded queue, at the last look of the client; " +
			"absent until there has been one.",
	}, "queue")
	m.crashRounds = m.counter("crash_rounds_total",
		"Messages set aside as suspects of killing the process.", "queue")
	m.still = m.counter("still_total",
		"Times that a queue had messages and delivered none to an idle process.", "queue")
	m.budgets = prometheus.NewGauge(prometheus.GaugeOpts{
		Namespace: "millpond", Name: "budgets_closed",
		Help: "Retry budgets that are closed, without those of brakes.",
	})
	m.all = append(m.all, m.budgets)
	m.brakes = newBrakes(m)
	return m, nil
}

// apply applies every option and joins the problems.
func apply[O any, F ~func(*O) error](o *O, opts []F) error {
	var problems []error
	for i, option := range opts {
		if option == nil {
			problems = append(problems, fmt.Errorf("option %d is nil", i+1))
			continue
		}
		problems = append(problems, option(o))
	}
	return errors.Join(problems...)
}

// newVec makes a metric with labels that m collects.
func newVec[O any, V prometheus.Collector](
	m *Metrics, build func(O, []string) V, opts O, labels ...string,
) V {
	v := build(opts, labels)
	m.all = append(m.all, v)
	return v
}

func (m *Metrics) histogram(
	name, help string, buckets []float64, labels ...string,
) *prometheus.HistogramVec {
	return newVec(m, prometheus.NewHistogramVec, prometheus.HistogramOpts{
		Namespace: "millpond", Name: name, Help: help, Buckets: buckets,
	}, labels...)
}

func (m *Metrics) counter(name, help string, labels ...string) *prometheus.CounterVec {
	return newVec(m, prometheus.NewCounterVec,
		prometheus.CounterOpts{Namespace: "millpond", Name: name, Help: help}, labels...)
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range m.all {
		c.Describe(ch)
	}
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	for _, c := range m.all {
		c.Collect(ch)
	}
}

// The values of the label outcome.
const (
	outcomeSuccess     = "success"
	outcomeFailure     = "failure"
	outcomeSnoozed     = "snoozed"
	outcomeInterrupted = "interrupted"
)

// Observe implements middleware.Observer.
func (m *Metrics) Observe(_ context.Context, e middleware.Event) {
	if e.Kind == middleware.EventStranded { // about no message and no handler
		if e.Topic != "" {
			m.still.WithLabelValues(e.Queue).Inc()
			return
		}
		m.stranded.WithLabelValues(e.Queue).Set(float64(e.Messages))
		return
	}
	if e.Brake != nil { // the same
		m.brakes.observe(e)
		return
	}
	at := m.at(place{e.Handler, e.Queue})
	if e.Kind == middleware.EventHandled {
		at.succeeded.Observe(e.Duration.Seconds())
		at.attempts.Observe(float64(e.Attempt))
		if e.Failures > 0 {
			m.untilSuccess.WithLabelValues(e.Handler, e.Queue).Observe(e.Age.Seconds())
		}
		m.late(e)
		return
	}
	switch e.Kind {
	case middleware.EventRetried:
		m.failed(e)
		m.retries.WithLabelValues(e.Handler, e.Queue, attemptLabel(e.Attempt)).Inc()
		m.retryDelays.count(e)
		m.delayAsked.WithLabelValues(e.Handler, e.Queue).Observe(e.DelayAsked.Seconds())
	case middleware.EventDeadLettered:
		m.failed(e)
		m.deadLetters.WithLabelValues(e.Handler, e.Queue, oneOf(e.Reason, reasons)).Inc()
	case middleware.EventSelfSettled:
		m.failed(e)
	case middleware.EventSnoozed:
		m.took(e, outcomeSnoozed)
		m.snoozed.WithLabelValues(e.Handler, e.Queue).Inc()
	case middleware.EventRequeued:
		m.took(e, outcomeInterrupted)
		m.requeued.WithLabelValues(e.Handler, e.Queue).Inc()
		if e.Tries > 0 {
			m.held.WithLabelValues(e.Queue).Dec()
		}
	case middleware.EventFailing:
		m.handOver.WithLabelValues(e.Queue).Inc()
		if e.Tries == 1 {
			m.held.WithLabelValues(e.Queue).Inc()
		}
	case middleware.EventRecovered:
		m.held.WithLabelValues(e.Queue).Dec()
	case middleware.EventCrashRound:
		m.crashRounds.WithLabelValues(e.Queue).Inc()
	case middleware.EventBudgetClosed:
		m.budgets.Inc() // several queues may share a budget
	case middleware.EventBudgetOpened:
		m.budgets.Dec()
	}
}

// failed counts an attempt whose handler has failed.
func (m *Metrics) failed(e middleware.Event) {
	if !e.Called {
		return
	}
	m.took(e, outcomeFailure)
	m.failures.WithLabelValues(e.Handler, e.Queue, oneOf(e.Class, classes)).Inc()
}

// took counts a call of the handler.
func (m *Metrics) took(e middleware.Event, outcome string) {
	if e.Called {
		m.processing.WithLabelValues(e.Handler, e.Queue, outcome).Observe(e.Duration.Seconds())
		m.late(e)
	}
}

func (m *Metrics) late(e middleware.Event) {
	if e.LastDelay > 0 {
		m.lateness.WithLabelValues(e.Queue).Observe(max(e.DelayMeasured-e.LastDelay, 0).Seconds())
	}
}

// maxAttempt is the first attempt that shares its label with all later ones.
const maxAttempt = 10

func attemptLabel(attempt int) string {
	if attempt >= maxAttempt {
		return strconv.Itoa(maxAttempt) + "+"
	}
	return strconv.Itoa(attempt)
}

// The values of the labels reason and class; any other is "other".
var (
	reasons = []header.Reason{
		header.ReasonPermanent, header.ReasonExhausted, header.ReasonMaxAge, header.ReasonDeadline,
		header.ReasonOverBudget, header.ReasonUndecodable, header.ReasonCrashLoop,
		header.ReasonOversized, header.ReasonMisdirected,
	}
	classes = []header.Class{header.ClassRetryable, header.ClassPermanent}
)

func oneOf[S ~string](s S, known []S) string {
	for _, k := range known {
		if s == k {
			return string(s)
		}
	}
	return "other"
}

// at returns the series of a place. Each counter begins at zero when the place is
// first seen, because a counter that appears with its first increment has no rate.
func (m *Metrics) at(p place) *series {
	m.mu.RLock()
	s, ok := m.series[p]
	m.mu.RUnlock()
	if ok {
		return s
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if s, ok := m.series[p]; ok {
		return s
	}
	for _, c := range []*prometheus.CounterVec{m.handOver, m.crashRounds, m.still} {
		c.WithLabelValues(p.queue)
	}
	m.held.WithLabelValues(p.queue)
	m.lateness.WithLabelValues(p.queue)
	for _, reason := range reasons {
		m.deadLetters.WithLabelValues(p.handler, p.queue, string(reason))
	}
	m.snoozed.WithLabelValues(p.handler, p.queue)
	m.requeued.WithLabelValues(p.handler, p.queue)
	if p.handler != "" {
		for _, class := range classes {
			m.failures.WithLabelValues(p.handler, p.queue, string(class))
		}
		m.retries.WithLabelValues(p.handler, p.queue, attemptLabel(1))
		m.delayAsked.WithLabelValues(p.handler, p.queue)
		m.untilSuccess.WithLabelValues(p.handler, p.queue)
		m.processing.WithLabelValues(p.handler, p.queue, outcomeFailure)
	}
	s = &series{
		succeeded: m.processing.WithLabelValues(p.handler, p.queue, outcomeSuccess),
		attempts:  m.attempts.WithLabelValues(p.handler, p.queue),
	}
	m.series[p] = s
	return s
}
