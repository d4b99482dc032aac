package brake

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/middleware/header"
)

func newStopped(t *testing.T) *Brake {
	t.Helper()
	b := New(Config{
		Name: "orders", Pause: func(int) time.Duration { return 500 * time.Millisecond },
		Successes: 3, Ramp: time.Second, Started: func() {},
	})
	b.Join("instance", func(header.BrakeState, bool) {})
	require.True(t, b.Trip("a test"))
	return b
}

// serve lets a seat end each ticket as probe does, until ctx is done.
func serve(ctx context.Context, b *Brake, probe func() (none bool)) {
	Sit(b).Await(ctx.Done(), probe, func() {})
}

// Given a queue with few messages, so that the prober changes after each of them, then the brake
// starts after as many successes as are needed.
func TestRareMessagesStartTheBrake(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newStopped(t)
		messages := 0
		go serve(t.Context(), b, func() bool {
			if messages == 0 {
				return true
			}
			messages--
			b.Judge(true)
			return false
		})
		for range 2 {
			messages = 1
			require.ErrorIs(t, b.Probe(t.Context()), ErrNothing)
		}
		messages = 1
		require.NoError(t, b.Probe(t.Context()))
	})
}

// Messages that fail for another reason neither start the brake nor keep it from starting, and a
// process that has no other messages lets another one probe.
func TestUndecidedProbes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, n := newStopped(t), 0
		go serve(t.Context(), b, func() bool {
			if n++; n%2 == 0 {
				b.Judge(true)
			}
			return false
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		require.NoError(t, b.Probe(ctx))
		require.Equal(t, 6, n)

		b = newStopped(t)
		go serve(t.Context(), b, func() bool { return false })
		require.ErrorIs(t, b.Probe(ctx), ErrNothing)
	})
}

// Given handlers that take longer than a prober waits for them, then their successes count.
func TestSlowProbesStartTheBrake(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newStopped(t)
		go serve(t.Context(), b, func() bool {
			time.Sleep(2 * longestProbe)
			b.Judge(true)
			return false
		})
		began := time.Now()
		for {
			err := b.Probe(t.Context())
			if err == nil {
				break
			}
			require.Less(t, time.Since(began), 10*time.Minute, "it never starts: %v", err)
		}
		time.Sleep(2 * longestProbe) // the last handler ends
	})
}

// Given a downstream that falls over again while the rate ramps up, then the rate of the next start
// is the one before the first stop.
func TestTheRateOutlivesStops(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newStopped(t)
		b.Set(header.BrakeState{})
		handle := func(a time.Duration, n int) {
			for range n {
				time.Sleep(a)
				b.Succeeded(time.Now())
			}
		}
		handle(100*time.Millisecond, 200)
		for range 5 {
			before := b.Rate()
			assert.InDelta(t, 10, before, 1)
			require.True(t, b.Trip("a test"))
			time.Sleep(20 * time.Second)
			b.Set(header.BrakeState{Rate: before, Members: 1})
			handle(time.Second, 3)
		}
	})
}

// Given processes with different loads, when they start, then the busy one is not held back to an
// equal part.
func TestABusyProcessKeepsItsRate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newStopped(t)
		b.Set(header.BrakeState{})
		for range 200 {
			time.Sleep(10 * time.Millisecond)
			b.Succeeded(time.Now())
		}
		require.True(t, b.Trip("a test"))
		b.Set(header.BrakeState{Rate: 100, Members: 16})
		assert.InDelta(t, 100, b.pace.Load().rate, 5)
	})
}

// Given a queue with two brakes, one of which an operator has stopped, when the other one probes,
// then it leaves the queue alone until the downtime is over.
func TestADowntimeIsNotProbed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, other := newStopped(t), newStopped(t)
		over := time.Now().Add(time.Hour)
		other.Set(header.BrakeState{Stopped: true, Manual: true, Until: over})
		s := Sit(b, other)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go s.Await(ctx.Done(), func() (none bool) {
			assert.False(t, time.Now().Before(over), "a probe during the downtime")
			b.Judge(true)
			return false
		}, func() {})
		require.ErrorIs(t, b.Probe(ctx), ErrNothing)
		time.Sleep(time.Hour)
		require.NoError(t, b.Probe(ctx))
	})
}
