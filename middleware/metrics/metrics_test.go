package metrics_test

import (
	"context"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	wmetrics "github.com/ThreeDotsLabs/watermill/components/metrics"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/attached"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/middleware/metrics"
	"github.com/millpond-go/millpond/middleware/middlewaretest"
)

var second = backoff.List{time.Second}

func newMetrics(tb testing.TB, opts ...metrics.Option) (*metrics.Metrics, *prometheus.Registry) {
	tb.Helper()
	m, err := metrics.New(opts...)
	require.NoError(tb, err)
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(m)
	return m, registry
}

// A forged count, a policy of a thousand retries, or an unknown reason adds no label values.
func TestLabelsAreBounded(t *testing.T) {
	t.Parallel()
	m, registry := newMetrics(t)
	event := middleware.Event{Kind: middleware.EventRetried, Handler: "billing", Queue: "orders"}
	for event.Attempt = 1; event.Attempt <= 1000; event.Attempt++ {
		m.Observe(t.Context(), event)
	}
	event.Kind, event.Reason, event.Class = middleware.EventDeadLettered, "novel", "novel"
	event.Called = true
	m.Observe(t.Context(), event)
	all := samples(t, registry)
	retries := 0
	for name := range all {
		if strings.HasPrefix(name, "millpond_retries_total") {
			retries++
		}
	}
	require.Equal(t, 10, retries)
	for sample, want := range map[string]float64{
		`retries_total{attempt="10+",handler="billing",queue="Q"}`:       991,
		`retries_total{attempt="9",handler="billing",queue="Q"}`:         1,
		`dead_letters_total{handler="billing",queue="Q",reason="other"}`: 1,
		`failures_total{class="other",handler="billing",queue="Q"}`:      1,
	} {
		require.Equal(t, want, value(t, registry, sample, "orders"), sample)
	}
}

// The labels of a retry are its delay, as the name of the wait queue has it, and its level. A queue
// with any number of delays has 51 values, and another queue has its own.
func TestRetriesByDelayAreBounded(t *testing.T) {
	t.Parallel()
	m, registry := newMetrics(t)
	retried := func(queue string, attempt int, delay time.Duration) {
		m.Observe(t.Context(), middleware.Event{
			Kind: middleware.EventRetried, Queue: queue, Attempt: attempt, DelayGiven: delay,
		})
	}
	for text, delay := range map[string]time.Duration{
		"100ms": 100 * time.Millisecond, "5s": 5 * time.Second, "1m30s": 90 * time.Second,
		"2m": 2 * time.Minute, "6h": 6 * time.Hour, "48h": 48 * time.Hour, "1h0m5s": 3605 * time.Second,
	} {
		retried("orders", 2, delay)
		sample := `retries_by_delay_total{queue="Q",retry_delay="` + text + `",retry_level="2"}`
		require.Equal(t, 1.0, value(t, registry, sample, "orders"), text)
	}
	for i := range 1000 {
		retried("any", 1+i%20, time.Duration(i+1)*time.Second)
	}
	retried("any", 1, time.Second)
	series, delays := 0, map[string]bool{}
	for name := range samples(t, registry) {
		labels, is := strings.CutPrefix(name, `millpond_retries_by_delay_total{queue="any",retry_delay="`)
		if is {
			series++
			delay, _, _ := strings.Cut(labels, `"`)
			delays[delay] = true
		}
	}
	require.Len(t, delays, 51)
	require.LessOrEqual(t, series, 510)
	const first = `retries_by_delay_total{queue="Q",retry_delay="1s",retry_level="1"}`
	require.Equal(t, 2.0, value(t, registry, first, "any"), "a known delay stays known")
	const last = `retries_by_delay_total{queue="Q",retry_delay="other",retry_level="10+"}`
	require.Greater(t, value(t, registry, last, "any"), 400.0)
}

// The time until success begins with the first failure and includes the waits.
func TestTimeUntilSuccessIncludesTheWaits(t *testing.T) {
	t.Parallel()
	m, registry := newMetrics(t)
	broker := middlewaretest.NewBroker()
	retry, err := middleware.NewDelayedRetry(broker, backoff.List{time.Minute, time.Hour},
		middleware.WithObserver(m))
	require.NoError(t, err)
	handler := retry.Middleware(middlewaretest.Consumer(func(msg *message.Message) error {
		if middleware.Attempt(msg.Context()) < 3 {
			return errFailed
		}
		return nil
	}))
	broker.Run(handler, middlewaretest.NewMessage(middleware.Delivery{Queue: "orders"}, nil))
	const sum = `time_until_success_seconds_sum{handler="",queue="Q"}`
	require.InDelta(t, 3660, value(t, registry, sum, "orders"), 30)
}

// A counter that appears with its first increment has no rate.
func TestCountersBeginAtZero(t *testing.T) {
	t.Parallel()
	m, registry := newMetrics(t)
	m.Observe(t.Context(), middleware.Event{
		Kind: middleware.EventHandled, Handler: "billing", Queue: "orders", Attempt: 1, Called: true,
	})
	for _, sample := range []string{
		`retries_total{attempt="1",handler="billing",queue="Q"}`,
		`failures_total{class="permanent",handler="billing",queue="Q"}`,
		`dead_letters_total{handler="billing",queue="Q",reason="deadline"}`,
		`requeued_total{handler="billing",queue="Q"}`, `hand_over_failures_total{queue="Q"}`,
		`crash_rounds_total{queue="Q"}`, `still_total{queue="Q"}`, `budgets_closed`,
		`held_messages{queue="Q"}`,
	} {
		require.Zero(t, value(t, registry, sample, "orders"))
	}
}

func TestHeldMessagesAndTheBudgetAreGauges(t *testing.T) {
	t.Parallel()
	m, registry := newMetrics(t)
	tell := func(kind middleware.EventKind, tries int) {
		m.Observe(t.Context(), middleware.Event{Kind: kind, Queue: "orders", Tries: tries})
	}
	held := func() float64 { return value(t, registry, `held_messages{queue="Q"}`, "orders") }
	tell(middleware.EventFailing, 1)
	tell(middleware.EventFailing, 2)
	tell(middleware.EventFailing, 1)
	require.Equal(t, 2.0, held())
	tell(middleware.EventRecovered, 3)
	tell(middleware.EventRequeued, 1)
	tell(middleware.EventRequeued, 0) // was not held
	require.Zero(t, held())
	require.Equal(t, 3.0, value(t, registry, `hand_over_failures_total{queue="Q"}`, "orders"))
	tell(middleware.EventBudgetClosed, 0)
	require.Equal(t, 1.0, value(t, registry, `budgets_closed`, ""))
	tell(middleware.EventBudgetOpened, 0)
	require.Zero(t, value(t, registry, `budgets_closed`, ""))
}

// The stranded queue is no queue that a handler has: no other series has its name.
func TestStrandedMessagesAreAGauge(t *testing.T) {
	t.Parallel()
	m, registry := newMetrics(t)
	const queue = "millpond.stranded"
	for _, n := range []int{3, 5, 0} {
		m.Observe(t.Context(), middleware.Event{
			Kind: middleware.EventStranded, Queue: queue, Messages: n,
		})
		require.InDelta(t, n, value(t, registry, `stranded_messages{queue="Q"}`, queue), 0)
	}
	require.Len(t, samples(t, registry), 2, "and budgets_closed")
}

// One registry and one handler have both metrics. Inside DelayedRetry Watermill's count a failed
// attempt as a failure. Outside they count a message that was handed over as a success.
func TestBesideWatermillsMetrics(t *testing.T) {
	t.Parallel()
	for where, want := range map[string]struct{ failed, succeeded float64 }{
		"inside": {1, 1}, "outside": {0, 2},
	} {
		m, registry := newMetrics(t)
		theirs := wmetrics.NewPrometheusMetricsBuilder(registry, "", "").NewRouterMiddleware().Middleware
		broker := middlewaretest.NewBroker()
		retry, err := middleware.NewDelayedRetry(broker, second, middleware.WithObserver(m))
		require.NoError(t, err)
		handler := middlewaretest.Consumer(func(msg *message.Message) error {
			if middleware.Attempt(msg.Context()) == 1 {
				return errFailed
			}
			return nil
		})
		composed := retry.Middleware(theirs(handler))
		if where == "outside" {
			composed = theirs(retry.Middleware(handler))
		}
		msg := middlewaretest.NewMessage(middleware.Delivery{Queue: "orders"}, nil)
		require.Equal(t, middlewaretest.Handled, broker.Run(composed, msg).Outcome)
		all := samples(t, registry)
		const calls = `handler_execution_time_seconds_count{handler_name="",success=`
		require.Equal(t, want.failed, all[calls+`"false"}`], where)
		require.Equal(t, want.succeeded, all[calls+`"true"}`], where)
		require.Equal(t, 1.0, all[`millpond_retries_total{attempt="1",handler="",queue="orders"}`])
	}
}

func TestOptionsThatAreWrong(t *testing.T) {
	t.Parallel()
	buckets := metrics.WithProcessingBuckets
	for want, option := range map[string]metrics.Option{
		"option 1 is nil": nil,
		"WithProcessingBuckets: there are no bounds":                 buckets(),
		"WithProcessingBuckets: bound 3 is not above the one before": buckets(1, 2, 2),
	} {
		_, err := metrics.New(option)
		require.EqualError(t, err, "new metrics: "+want)
	}
	_, err := metrics.New(nil, metrics.WithProcessingBuckets())
	require.ErrorContains(t, err, "option 1 is nil\nWithProcessingBuckets: there are no bounds")
}

func TestProcessingBucketsAreUsed(t *testing.T) {
	t.Parallel()
	m, registry := newMetrics(t, metrics.WithProcessingBuckets(60, 600))
	m.Observe(t.Context(), middleware.Event{
		Kind: middleware.EventHandled, Queue: "orders", Attempt: 1, Called: true,
		Duration: 2 * time.Minute,
	})
	require.NoError(t, testutil.GatherAndCompare(registry, strings.NewReader(`
# HELP millpond_processing_seconds Time the handler took, by outcome of the attempt: `+
		`success, failure, snoozed, interrupted.
# TYPE millpond_processing_seconds histogram
millpond_processing_seconds_bucket{handler="",outcome="success",queue="orders",le="60"} 0
millpond_processing_seconds_bucket{handler="",outcome="success",queue="orders",le="600"} 1
millpond_processing_seconds_bucket{handler="",outcome="success",queue="orders",le="+Inf"} 1
millpond_processing_seconds_sum{handler="",outcome="success",queue="orders"} 120
millpond_processing_seconds_count{handler="",outcome="success",queue="orders"} 1
`), "millpond_processing_seconds"))
}

// unused is a Republisher for messages that do not fail.
type unused struct{ middleware.Republisher }

// delivered is a message as a router hands it out.
func delivered(tb testing.TB) *message.Message {
	ctx, cancel := context.WithCancel(context.Background())
	tb.Cleanup(cancel)
	msg := message.NewMessageWithContext(ctx, "uuid", nil)
	(&attached.Delivery{Facts: attached.Facts{
		Queue: "orders", MessageID: "m-1", CorrelationID: "c-1", Arrived: time.Now(),
		Gone: make(chan struct{}), Closing: make(chan struct{}),
	}}).Attach(msg)
	return msg
}

func succeeding(tb testing.TB, options ...middleware.Option) message.HandlerFunc {
	tb.Helper()
	retry, err := middleware.NewDelayedRetry(unused{}, second, options...)
	require.NoError(tb, err)
	return retry.Middleware(func(*message.Message) ([]*message.Message, error) { return nil, nil })
}

func TestASuccessAllocatesNothing(t *testing.T) {
	m, _ := newMetrics(t)
	h, msg := succeeding(t, middleware.WithObserver(m)), delivered(t)
	require.Zero(t, testing.AllocsPerRun(1000, func() { _, _ = h(msg) }))
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/" + path)
	require.NoError(t, err)
	return string(text)
}

// labelsOf returns the labels of every metric there is, by name.
func labelsOf(t *testing.T) map[string]string {
	t.Helper()
	m, err := metrics.New()
	require.NoError(t, err)
	c, err := metrics.NewCollector(connecting{}, &inspector{}, nil)
	require.NoError(t, err)
	descs := make(chan *prometheus.Desc, 100)
	m.Describe(descs)
	c.Describe(descs)
	close(descs)
	form := regexp.MustCompile(`fqName: "([a-z_]+)".*variableLabels: \{([a-z_,]*)\}`)
	all := map[string]string{}
	for desc := range descs {
		found := form.FindStringSubmatch(desc.String())
		require.NotNil(t, found, desc)
		all[found[1]] = found[2]
	}
	return all
}

func TestEveryMetricIsDocumented(t *testing.T) {
	t.Parallel()
	documented := map[string]string{}
	row := regexp.MustCompile(
		"(?m)^\\| `(millpond_[a-z_]+)` \\| (?:histogram|counter|gauge) \\| ([^|]*) \\|")
	page := strings.ReplaceAll(read(t, "monitoring.md"), "| |", "|  |")
	for _, found := range row.FindAllStringSubmatch(page, -1) {
		documented[found[1]] = strings.NewReplacer("`", "", " ", "").Replace(found[2])
	}
	require.Equal(t, labelsOf(t), documented)
}

func TestAlertsAndDashboardKnowTheMetrics(t *testing.T) {
	t.Parallel()
	known := labelsOf(t)
	for _, file := range []string{"alerts.yml", "alerts_test.yml", "dashboard.json"} {
		text := read(t, "monitoring/"+file)
		named := regexp.MustCompile(`\bmillpond_[a-z_]+`).FindAllString(text, -1)
		require.NotEmpty(t, named)
		for _, name := range named {
			base := regexp.MustCompile(`_(bucket|count|sum)$`).ReplaceAllString(name, "")
			require.Contains(t, known, base, file)
		}
	}
	alerts := regexp.MustCompile(`alert: (\w+)`)
	for _, alert := range alerts.FindAllStringSubmatch(read(t, "monitoring/alerts.yml"), -1) {
		require.Contains(t, read(t, "monitoring.md"), "| `"+alert[1]+"`", "what to do when it fires")
	}
}

// A stop is told again when another process probes, and counts once. A brake is no budget of
// millpond_budgets_closed, so that a planned downtime does not fire the alert of a budget.
func TestBrakesAreGauges(t *testing.T) {
	t.Parallel()
	m, registry := newMetrics(t)
	state := header.BrakeState{Name: "payments", By: "shop@a/7", Since: time.Unix(1700000000, 5e8)}
	tell := func(stopped, probing bool) {
		state.Stopped = stopped
		kind := middleware.EventBudgetOpened
		if stopped {
			kind = middleware.EventBudgetClosed
		}
		given := state
		m.Observe(t.Context(), middleware.Event{Kind: kind, Brake: &given, Probing: probing})
	}
	const (
		stopped = `millpond_brake_stopped{brake="payments"}`
		since   = `millpond_brake_stopped_timestamp_seconds{brake="payments"}`
		probing = `millpond_brake_probing{brake="payments"}`
		stops   = `millpond_brake_stops_total{brake="payments"}`
		byA     = `millpond_brake_stopped_by{brake="payments",by="shop@a/7"}`
		byAnna  = `millpond_brake_stopped_by{brake="payments",by="anna"}`
		budgets = `millpond_budgets_closed`
	)
	for i, step := range []struct {
		stopped, probing bool
		by               string
		want             map[string]float64
	}{
		{true, false, "shop@a/7", map[string]float64{
			stopped: 1, since: 1700000000.5, probing: 0, stops: 1, byA: 1, budgets: 0,
		}},
		{true, true, "shop@a/7", map[string]float64{
			stopped: 1, since: 1700000000.5, probing: 1, stops: 1, byA: 1, budgets: 0,
		}},
		{true, true, "anna", map[string]float64{
			stopped: 1, since: 1700000000.5, probing: 1, stops: 1, byAnna: 1, budgets: 0,
		}},
		{false, false, "bert", map[string]float64{stopped: 0, probing: 0, stops: 1, budgets: 0}},
		{true, false, "shop@a/7", map[string]float64{
			stopped: 1, since: 1700000000.5, probing: 0, stops: 2, byA: 1, budgets: 0,
		}},
	} {
		state.By = step.by
		tell(step.stopped, step.probing)
		require.Equal(t, step.want, samples(t, registry), i)
	}

	state.By = strings.Repeat("é", 1000)
	tell(true, false)
	long := `millpond_brake_stopped_by{brake="payments",by="` + strings.Repeat("é", 99) + `…"}`
	require.Equal(t, 1.0, samples(t, registry)[long])
	tell(false, false)
	for name := range samples(t, registry) {
		require.NotContains(t, name, "stopped_by")
	}
}
