package e2e_test

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/peer"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/adaptive"
)

// Given a downstream service that is out and then back, when messages fail, then they wait eight
// times as long as the policy says while it is out, and half as long when it is back. Each delay
// has its wait queue, so none is rounded up.
func TestAdaptiveDelaysFollowTheService(t *testing.T) {
	t.Parallel()
	rig.Virtually(t, func(t *testing.T, broker *peer.Server) {
		const ms, window = time.Millisecond, 10 * time.Second
		health, err := adaptive.New(window)
		require.NoError(t, err)
		var out atomic.Bool
		var handled rig.Timeline
		s := rig.Start(t, rig.Config{
			URL: broker.URL(),
			Policy: backoff.Adaptive{
				Policy: backoff.Constant{Interval: 400 * ms, Retries: 500}, Health: health.Recent,
			},
			RetryOptions: []middleware.Option{middleware.WithObserver(health)},
			Handle: func(msg *message.Message) error {
				once := string(msg.Payload) == "once" && middleware.Attempt(msg.Context()) == 1
				if out.Load() || once {
					return rig.ErrFailed
				}
				handled.Add()
				return nil
			},
		})
		delays := func() (all []time.Duration) {
			for _, e := range s.Logs.EntriesOf(willBeRetried) {
				all = append(all, e.Fields["delay"].(time.Duration))
			}
			return all
		}
		out.Store(true)
		rig.Fill(t, s.URL, s.Queue, 30)
		<-time.After(window)
		require.Contains(t, delays(), 3200*ms, "eight times as long")
		out.Store(false)
		<-time.After(window / 2)
		require.Equal(t, 30, handled.Count())
		require.Positive(t, health.Recent(time.Now()).UntilSuccess)

		<-time.After(window) // The failures are forgotten.
		require.Zero(t, health.Recent(time.Now()).Failed)
		rig.Fill(t, s.URL, s.Queue, 30)
		s.Send("once")
		<-time.After(window)
		s.RequireNothingLeft(0)
		require.Equal(t, 61, handled.Count())
		all := delays()
		require.Equal(t, 200*ms, all[len(all)-1], "half as long")
		for _, delay := range all {
			require.Contains(t, []time.Duration{200 * ms, 400 * ms, 800 * ms, 1600 * ms, 3200 * ms}, delay)
		}
		require.NotContains(t, s.Logs.Text(), strings.Split(roundedUp, ";")[0])
	})
}
