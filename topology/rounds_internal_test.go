package topology

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/ladder"
)

// FuzzRoundsOfEveryStrategy follows a delay from a second to a week through all its rounds. A
// message is never early. It is late by at most a quarter of the delay, or by a second or the
// shortest step of a second or more. The exceptions are the delays that Subscribe logs. A delay
// of the policy takes one round, and is exact.
func FuzzRoundsOfEveryStrategy(f *testing.F) {
	for seed := range uint64(100) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		r := rand.New(rand.NewPCG(seed, 0))
		delays := []time.Duration(nil) // unknown
		if r.IntN(4) > 0 {
			for range 1 + r.IntN(6) {
				delays = append(delays, anyDelay(r, 24*time.Hour))
			}
		}
		asked := anyDelay(r, 7*24*time.Hour)
		for _, strategy := range []Strategy{
			PerQueue{},
			PerQueue{Type: Classic},
			PerQueue{Via: []string{"events"}},
			PerAttempt{},
			PerAttempt{Delays: []time.Duration{time.Second, time.Second}},
			Shared{},
			Shared{Via: []string{"events"}},
			Levels{},
			Levels{Max: time.Hour},
		} {
			plan, err := strategy.Plan("orders", delays)
			require.NoError(t, err)
			waits, rounds, hops := followRounds(t, plan, asked)
			require.GreaterOrEqual(t, waits, asked, "%#v: %v of %v", strategy, asked, delays)
			if plan.Levels != nil {
				require.LessOrEqual(t, waits-asked, max(plan.Levels.Resolution, asked/100), "%#v: %v", strategy,
					asked)
				require.LessOrEqual(t, hops, rounds*plan.Levels.Levels)
				continue
			}
			require.Equal(t, waits, plan.waits(asked), "%#v: %v of %v", strategy, asked, delays)
			require.Equal(t, rounds, hops)
			longest := plan.WaitSteps[len(plan.WaitSteps)-1].Delay
			require.LessOrEqual(t, rounds, int(asked/longest)+ladder.MostRounds, "%#v: %v of %v", strategy,
				asked, delays)
			if len(plan.gaps()) == 0 {
				late := max(time.Second, asked/4, firstFrom(plan.steps(), time.Second))
				require.LessOrEqual(t, waits-asked, late, "%#v: %v of %v", strategy, asked, delays)
			}
			if delays == nil {
				require.LessOrEqual(t, waits-asked, max(time.Second, asked/4), "%#v: %v", strategy, asked)
			}
			for _, listed := range delays {
				route, err := plan.Route(Retry{Delay: listed, Attempt: 1})
				require.NoError(t, err)
				require.Equal(t, listed, route.Delay, "%#v", strategy)
				require.Equal(t, listed, plan.waits(listed), "%#v", strategy)
			}
		}
	})
}

// followRounds asks the plan as the Subscriber does, once for each round.
func followRounds(
	t *testing.T, plan Plan, asked time.Duration,
) (waits time.Duration, rounds, hops int) {
	t.Helper()
	for waits < asked {
		route, err := plan.Route(Retry{Delay: asked - waits, Asked: asked, Attempt: 1})
		require.NoError(t, err)
		waits, rounds, hops = waits+route.Delay, rounds+1, hops+route.Hops
	}
	return waits, rounds, hops
}

// anyDelay returns a delay of at least a second in whole milliseconds. Short ones are as likely as
// long ones.
func anyDelay(r *rand.Rand, longest time.Duration) time.Duration {
	d := time.Second
	for d < longest/2 && r.IntN(8) > 0 {
		d *= 2
	}
	return (d + time.Duration(r.Int64N(int64(d)))).Truncate(time.Millisecond)
}

// firstFrom returns the first step that is not shorter than least.
func firstFrom(steps []time.Duration, least time.Duration) time.Duration {
	for _, step := range steps {
		if step >= least {
			return step
		}
	}
	return 0
}
