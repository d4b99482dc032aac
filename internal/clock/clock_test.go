package clock_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/clock"
)

//nolint:paralleltest // the clock is the process's
func TestCompressedTime(t *testing.T) {
	require.Equal(t, time.Hour, clock.Wait(time.Hour), "the real time")
	clock.Compress(600)
	defer clock.Compress(1)
	require.Equal(t, 6*time.Second, clock.Wait(time.Hour))
	require.Equal(t, 20*time.Millisecond, clock.Wait(time.Second), "no shorter")
	require.Equal(t, time.Millisecond, clock.Wait(time.Millisecond), "never longer than asked")
	require.Zero(t, testing.AllocsPerRun(100, func() { clock.Wait(time.Hour); clock.Now() }))
}

//nolint:paralleltest // the clock is the process's
func TestTheHostsClockJumps(t *testing.T) {
	defer clock.Jump(2 * time.Hour)
	clock.Jump(-2 * time.Hour)
	require.WithinDuration(t, time.Now().Add(-2*time.Hour), clock.Now(), time.Minute)
}
