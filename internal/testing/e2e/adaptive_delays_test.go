package e2e_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/adaptive"
	"github.com/millpond-go/millpond/topology"
)

// Given a downstream service that is out and then back, when messages fail, then they wait eight
// times as long as the policy says while it is out, and half as long when it is back. Each delay
// has its wait queue, so none is rounded up.
func TestAdaptiveDelaysFollowTheService(t *testing.T) {
	t.Parallel()
	strategies := map[string]topology.Strategy{
		"per queue": topology.PerQueue{}, "shared": rig.Shared(t, topology.Quorum),
	}
	rig.Each(t, strategies, func(t *testing.T, strategy topology.Strategy) {
		const ms, window = time.Millisecond, 10 * time.Second
		health, err := adaptive.New(window)
		require.NoError(t, err)
		var out atomic.Bool
		var mu sync.Mutex
		var delays []time.Duration
		handled := 0
		watch := middleware.ObserverFunc(func(_ context.Context, e middleware.Event) {
			mu.Lock()
			defer mu.Unlock()
			switch e.Kind {
			case middleware.EventRetried:
				delays = append(delays, e.DelayGiven)
			case middleware.EventHandled:
				handled++
			}
		})
		count := func(n int) func() bool {
			return func() bool { mu.Lock(); defer mu.Unlock(); return handled == n }
		}
		s := rig.Start(t, rig.Config{
			Strategy: strategy,
			Policy: backoff.Adaptive{
				Policy: backoff.Constant{Interval: 400 * ms, Retries: 500}, Health: health.Recent,
			},
			RetryOptions: []middleware.Option{middleware.WithObserver(health, watch)},
			Handle: func(msg *message.Message) error {
				once := string(msg.Payload) == "once" && middleware.Attempt(msg.Context()) == 1
				if out.Load() || once {
					return rig.ErrFailed
				}
				return nil
			},
		})
		out.Store(true)
		for i := range 30 {
			s.Send(fmt.Sprint(i))
		}
		rig.WaitFor(t, "a delay eight times as long", func() bool {
			mu.Lock()
			defer mu.Unlock()
			return slices.Contains(delays, 3200*ms)
		})
		out.Store(false)
		rig.WaitFor(t, "all messages to be handled", count(30))
		require.Positive(t, health.Recent(time.Now()).UntilSuccess)

		rig.WaitFor(t, "the failures to be forgotten", func() bool {
			return health.Recent(time.Now()).Failed == 0
		})
		s.Send(slices.Repeat([]string{"fine"}, 30)...)
		rig.WaitFor(t, "the new messages to be handled", count(60))
		s.Send("once")
		rig.WaitFor(t, "the last message to be handled", count(61))
		s.RequireNothingLeft(0)

		require.Equal(t, 200*ms, delays[len(delays)-1], "half as long")
		for _, delay := range delays {
			require.Contains(t, []time.Duration{200 * ms, 400 * ms, 800 * ms, 1600 * ms, 3200 * ms}, delay)
		}
		require.NotContains(t, s.Logs.Text(), strings.Split(roundedUp, ";")[0])
	})
}
