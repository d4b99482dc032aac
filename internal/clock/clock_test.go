package clock_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/clock"
)

//nolint:paralleltest // the clock is the process's
func TestTheHostsClockJumps(t *testing.T) {
	defer clock.Jump(2 * time.Hour)
	clock.Jump(-2 * time.Hour)
	require.WithinDuration(t, time.Now().Add(-2*time.Hour), clock.Now(), time.Minute)
	require.Zero(t, testing.AllocsPerRun(100, func() { clock.Now() }))
}
