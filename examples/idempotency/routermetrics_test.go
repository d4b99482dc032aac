package main

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/components/metrics"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
)

// Given Watermill's components/metrics inside DelayedRetry, then it counts a failed attempt as a
// failure. Outside, it counts a message that was handed over as a success. The test is here
// because the library's own module does not depend on Prometheus.
func TestComposedWithMetrics(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		compose           func(*message.Router, *middleware.DelayedRetry, builder)
		failed, succeeded uint64
	}{
		"inside": {func(r *message.Router, retry *middleware.DelayedRetry, b builder) {
			r.AddMiddleware(retry.Middleware)
			b.AddPrometheusRouterMetrics(r)
		}, 1, 1},
		"outside": {func(r *message.Router, retry *middleware.DelayedRetry, b builder) {
			b.AddPrometheusRouterMetrics(r)
			r.AddMiddleware(retry.Middleware)
		}, 0, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, queue, bank := testbroker.URL(t), testbroker.Queue(t), newBank(t, newFile(t))
			registry := prometheus.NewRegistry()
			stop := start(t, Service{
				URL: url, Queue: queue,
				Handle: func(msg *message.Message) error {
					if middleware.Attempt(msg.Context()) == 1 {
						return errNoAnswer
					}
					return bank.Handle(msg)
				},
				compose: func(r *message.Router, retry *middleware.DelayedRetry) {
					c.compose(r, retry, metrics.NewPrometheusMetricsBuilder(registry, "", ""))
				},
			})
			pay(t, url, queue, "payment-1")
			awaitBalance(t, bank, amount)
			stop()
			require.Equal(t, c.failed, handled(t, registry, "false"))
			require.Equal(t, c.succeeded, handled(t, registry, "true"))
		})
	}
}

type builder = metrics.PrometheusMetricsBuilder

// handled returns the number of calls that were counted with this label "success".
func handled(t *testing.T, registry *prometheus.Registry, success string) uint64 {
	t.Helper()
	families, err := registry.Gather()
	require.NoError(t, err)
	var n uint64
	for _, family := range families {
		if family.GetName() != "handler_execution_time_seconds" {
			continue
		}
		for _, metric := range family.GetMetric() {
			for _, label := range metric.GetLabel() {
				if label.GetName() == "success" && label.GetValue() == success {
					n += metric.GetHistogram().GetSampleCount()
				}
			}
		}
	}
	return n
}
