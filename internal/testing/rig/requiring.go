package rig

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/topology"
)

// AwaitDepth waits for n ready messages in a queue.
func AwaitDepth(t testing.TB, url, queue string, n int) {
	t.Helper()
	WaitFor(t, fmt.Sprintf("%d messages in %q", n, queue), func() bool {
		return testbroker.Depth(t, url, queue) == n
	})
}

// AwaitLine waits until the log of the service contains every text.
func (s *Service) AwaitLine(texts ...string) {
	s.T.Helper()
	for _, text := range texts {
		WaitFor(s.T, fmt.Sprintf("%q in the log", text), func() bool { return s.Logs.Said(text) > 0 })
	}
}

// Each runs a parallel subtest for each case.
func Each[C any](t *testing.T, cases map[string]C, run func(t *testing.T, c C)) {
	t.Helper()
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(t, c)
		})
	}
}

// OnEachStrategy runs a parallel subtest for each of Strategies.
func OnEachStrategy(t *testing.T, run func(t *testing.T, strategy topology.Strategy)) {
	t.Helper()
	Each(t, Strategies, func(t *testing.T, strategy func(testing.TB) topology.Strategy) {
		run(t, strategy(t))
	})
}

// DeleteQueue deletes a queue at once.
func DeleteQueue(t testing.TB, url, queue string) {
	t.Helper()
	_, err := testbroker.Channel(t, url).QueueDelete(queue, false, false, false)
	require.NoError(t, err)
}

// RequireTexts requires an error that contains every text, and logs it.
func RequireTexts(t testing.TB, err error, texts ...string) {
	t.Helper()
	for _, text := range texts {
		require.ErrorContains(t, err, text)
	}
	t.Log(err)
}
