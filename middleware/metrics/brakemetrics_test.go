package metrics_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
)

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
