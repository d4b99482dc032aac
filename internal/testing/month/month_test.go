package month_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/month"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

// Given a week with an event on each day and a deployment in each night, six hundred times faster,
// then no message is lost, every message ends, and the faults explain every copy and every call.
// `make soak` runs the month.
func TestAWeekInAMinute(t *testing.T) {
	t.Parallel()
	testbroker.RequireNode(t)
	report, err := month.Run(t.Context(), month.Config{Days: 7, Nodes: 1, Out: t.Output()})
	require.NoError(t, err)
	assert.Zero(t, report.Lost, "lost")
	assert.Empty(t, report.Problems)
	assert.Greater(t, report.Handled, 100)
	assert.Greater(t, report.Dead, 10)
}
