package e2e_test

import (
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/peer"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/middleware"
)

// A handler may ack its message and republish it by itself: then the copy is composed beside the
// goroutine that settles the delivery.
func TestAHandlerRepublishesAfterItsAck(t *testing.T) {
	t.Parallel()
	rig.Virtually(t, func(t *testing.T, broker *peer.Server) {
		var handled bodies
		var s *rig.Service
		s = rig.Start(t, rig.Config{
			URL: broker.URL(), Queue: "orders", Keep: true, Policy: often(time.Second),
			SubscriberOptions: rig.InFlight(16),
			Handle: func(msg *message.Message) error {
				handled.add("a:0")
				state := middleware.StateOf(msg.Context())
				msg.Ack()
				for range rand.IntN(5000) {
					runtime.Gosched()
				}
				_, _ = s.Client.Republish(msg.Context(), msg, time.Second, state)
				return nil
			},
		})
		for range 200 {
			s.Send("a:0")
		}
		time.Sleep(5 * time.Second)
		require.GreaterOrEqual(t, handled.len(), 200)
	})
}
