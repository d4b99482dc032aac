package adaptive_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/adaptive"
	"github.com/millpond-go/millpond/middleware/header"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func newHealth(t *testing.T, window time.Duration) *adaptive.Health {
	t.Helper()
	health, err := adaptive.New(window)
	require.NoError(t, err)
	return health
}

func handled(at time.Time, age time.Duration) middleware.Event {
	e := middleware.Event{Kind: middleware.EventHandled, At: at, Called: true, Attempt: 1}
	if age > 0 {
		e.Attempt, e.Failures, e.Age = 2, 1, age
	}
	return e
}

func failed(at time.Time) middleware.Event {
	return middleware.Event{
		Kind: middleware.EventRetried, At: at, Called: true, Failures: 1, Class: header.ClassRetryable,
	}
}

func TestHealthCountsResultsOfHandlers(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		event middleware.Event
		want  backoff.Recent
	}{
		"a success": {handled(noon, 0), backoff.Recent{Attempts: 1}},
		"a success after a failure": {
			handled(noon, 40*time.Second), backoff.Recent{Attempts: 1, UntilSuccess: 40 * time.Second},
		},
		"a failure": {failed(noon), backoff.Recent{Attempts: 1, Failed: 1}},
		"the last failure": {
			middleware.Event{
				Kind: middleware.EventDeadLettered, At: noon, Called: true, Class: header.ClassRetryable,
			}, backoff.Recent{Attempts: 1, Failed: 1},
		},
		"a permanent failure": {
			middleware.Event{
				Kind: middleware.EventDeadLettered, At: noon, Called: true, Class: header.ClassPermanent,
			}, backoff.Recent{Attempts: 1},
		},
		"a dead letter without a call": {
			middleware.Event{Kind: middleware.EventDeadLettered, At: noon}, backoff.Recent{},
		},
		"a snooze": {
			middleware.Event{Kind: middleware.EventSnoozed, At: noon, Called: true}, backoff.Recent{},
		},
		"a failure while a brake is stopped": {
			middleware.Event{Kind: middleware.EventSnoozed, At: noon, Called: true, OverBudget: true},
			backoff.Recent{Attempts: 1, Failed: 1},
		},
		"held back by a budget": {
			middleware.Event{Kind: middleware.EventSnoozed, At: noon, OverBudget: true}, backoff.Recent{},
		},
		"an interruption": {
			middleware.Event{Kind: middleware.EventRequeued, At: noon, Called: true}, backoff.Recent{},
		},
		"a hand-over that fails": {
			middleware.Event{Kind: middleware.EventFailing, At: noon, Called: true}, backoff.Recent{},
		},
		"a forged age": {
			handled(noon, 1<<62), backoff.Recent{Attempts: 1, UntilSuccess: backoff.MaxDelay},
		},
	} {
		health := newHealth(t, time.Minute)
		health.Observe(t.Context(), test.event)
		assert.Equal(t, test.want, health.Recent(noon), name)
	}
}

func TestHealthForgets(t *testing.T) {
	t.Parallel()
	health := newHealth(t, 10*time.Second)
	for second := range 30 {
		at := noon.Add(time.Duration(second) * time.Second)
		health.Observe(t.Context(), failed(at))
		health.Observe(t.Context(), handled(at, time.Duration(second+1)*time.Second))
		n := min(second+1, 10)
		got := health.Recent(at)
		require.Equal(t, 2*n, got.Attempts, "second %d", second)
		require.Equal(t, n, got.Failed)
	}
	end := noon.Add(29 * time.Second)
	require.Equal(t, 25500*time.Millisecond, health.Recent(end).UntilSuccess, "the mean of 21 to 30 s")
	require.Equal(t, 10, health.Recent(end.Add(5*time.Second)).Attempts)
	require.Zero(t, health.Recent(end.Add(10*time.Second)))
	require.Equal(t, 2, health.Recent(noon.Add(20*time.Second)).Attempts,
		"the host's clock went back: counts ahead of it say nothing")
	require.Zero(t, health.Recent(time.Time{}), "the time is not known")
}

func TestHealthRefusesATinyWindow(t *testing.T) {
	t.Parallel()
	for _, window := range []time.Duration{-time.Second, 0, 9 * time.Millisecond} {
		_, err := adaptive.New(window)
		require.ErrorContains(t, err, "is shorter than 10ms")
	}
}

func TestHealthIsSharedByManyGoroutines(t *testing.T) {
	t.Parallel()
	health := newHealth(t, time.Minute)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for i := range 1000 {
				if health.Observe(context.Background(), failed(noon)); i%100 == 0 {
					health.Recent(noon)
				}
			}
		})
	}
	all.Wait()
	require.Equal(t, backoff.Recent{Attempts: 8000, Failed: 8000}, health.Recent(noon))
}

func TestHealthAllocatesNothing(t *testing.T) {
	health := newHealth(t, time.Minute)
	success, ctx := handled(noon, time.Minute), t.Context()
	require.Zero(t, testing.AllocsPerRun(1000, func() { health.Observe(ctx, success) }))
	policy := backoff.Adaptive{Policy: backoff.List{time.Second}, Health: health.Recent}
	failure := backoff.Failure{Count: 1, First: noon, Now: noon}
	require.Zero(t, testing.AllocsPerRun(1000, func() { policy.Delay(failure) }))
}
