package consumer

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
)

// Given 16 prefetched deliveries and one handler, when a delivery has waited for its handler for a
// quarter of the hold, then the prefetch falls. Suspects that wait for their turn go back, and the
// prefetch stays. A hand-over that another subscription holds makes no difference. The time in
// which messages could not be stored does not count.
func TestPrefetchFallsWhenDeliveriesWait(t *testing.T) {
	t.Parallel()
	const hold, handling = 28*time.Minute + 30*time.Second, 3 * time.Minute
	suspected := amqp.Delivery{
		Redelivered: true, Headers: amqp.Table{"x-delivery-count": int64(1)},
	}
	for name, c := range map[string]struct {
		delivery      amqp.Delivery
		heldElsewhere int64
		first, others time.Duration // how long the handlers take
		firstIsHeld   bool
		falls, back   bool
	}{
		"slow handlers":         {first: handling, others: handling, falls: true, back: true},
		"suspects wait in line": {delivery: suspected, first: handling, others: handling, back: true},
		"another queue is held": {
			heldElsewhere: 1, first: handling, others: handling, falls: true, back: true,
		},
		"quick handlers":         {first: 5 * time.Second, others: 5 * time.Second},
		"after a long hold here": {firstIsHeld: true, first: 20 * time.Minute, others: 5 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				group := &Group{}
				group.held.Add(c.heldElsewhere)
				ctx, stop := context.WithCancel(t.Context())
				s := New(ctx, ctx, Config{
					Group: group, Queue: "orders", Logger: watermill.NopLogger{},
					Consume: Consume{Concurrency: 1, Prefetch: 16, PrefetchBy: ByLibrary},
				})
				begun, longest := 0, time.Duration(0)
				s.workers = newWorkers(16, func(a Arrival, _ func()) {
					longest = max(longest, time.Since(a.At))
					place, took := &standing{at: inPlace}, c.others
					if begun++; begun == 1 {
						took = c.first
						if c.firstIsHeld {
							s.places.hold(place)
						}
					}
					time.Sleep(took)
					a.turn.leave()
					s.places.leave(place)
					a.On.inFlight.Done()
					s.wg.Done()
				})
				deliveries := make(chan amqp.Delivery, 16)
				for tag := range cap(deliveries) {
					c.delivery.DeliveryTag = uint64(tag + 1)
					deliveries <- c.delivery
				}
				from := &Channel{
					deliveries: deliveries, ctx: ctx, hold: hold, enough: make(chan struct{}),
					inFlight: new(sync.WaitGroup), lane: noLane{},
					Limits: Limits{Deliveries: 5},
				}
				time.AfterFunc(2*time.Hour, stop)
				rest, _ := s.receive(from)
				s.wg.Wait()
				require.Equal(t, c.falls, s.slow)
				require.Equal(t, c.back, len(rest) > 0, "given back")
				require.Less(t, longest, hold)
			})
		})
	}
}
