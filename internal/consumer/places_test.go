package consumer

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
)

// entered takes a place for a new delivery.
func entered(p *places) *standing {
	p.take()
	return &standing{at: inPlace}
}

// Given two places, when the copy of a message is written, then its place is free. When its
// hand-over is held, it keeps a place until it is settled.
func TestPlacesOfHandOvers(t *testing.T) {
	t.Parallel()
	var held atomic.Int64
	p := newPlaces(2, &held)
	require.True(t, p.areEmpty())
	a, b := entered(p), entered(p)
	require.False(t, p.areFree(), "two handlers run")
	require.True(t, p.written(a))
	require.True(t, p.areFree(), "a copy is written")
	<-p.freed
	require.False(t, p.written(a), "it has left its place")
	c := entered(p)
	require.False(t, p.areFree())

	p.hold(a)
	require.EqualValues(t, 1, held.Load())
	require.False(t, p.written(b), "another hand-over is held")
	p.leave(c)
	require.False(t, p.areFree(), "b and the held one")
	p.hold(b)
	p.hold(b) // every failed try
	require.EqualValues(t, 2, held.Load())
	p.leave(a)
	require.True(t, p.areFree())
	p.leave(b)
	p.leave(b)
	require.EqualValues(t, 0, held.Load())
	require.True(t, p.areEmpty())
	p.hold(&standing{}) // of a delivery that never had a place
	require.EqualValues(t, 0, held.Load())
}

// Given one place, when the confirm of a written copy is late, then no handler starts until it
// has come. The others behind the handlers are held with it, each when it is late.
func TestLateConfirmsTakeThePlacesBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var held atomic.Int64
		p := newPlaces(1, &held)
		a := entered(p)
		p.written(a)
		time.Sleep(lateConfirm / 2)
		b := entered(p)
		p.written(b)
		require.True(t, p.areFree())
		time.Sleep(lateConfirm / 2)
		require.False(t, p.areFree(), "a is late")
		require.EqualValues(t, 1, held.Load())
		time.Sleep(lateConfirm / 2)
		require.False(t, p.areFree())
		require.EqualValues(t, 2, held.Load())
		p.leave(a)
		require.False(t, p.areFree(), "b is late")
		p.leave(b)
		require.True(t, p.areFree())
	})
}

// Hand-overs that end in any order leave no trace.
func TestHandOversEndInAnyOrder(t *testing.T) {
	t.Parallel()
	for _, order := range [][]int{{0, 1, 2}, {2, 1, 0}, {1, 0, 2}, {1, 2, 0}} {
		var held atomic.Int64
		p := newPlaces(1, &held)
		var all []*standing
		for range 3 {
			s := entered(p)
			p.written(s)
			all = append(all, s)
		}
		for _, i := range order {
			p.leave(all[i])
		}
		require.True(t, p.areEmpty())
		require.Equal(t, handovers{}, p.behind)
	}
}

// Given 16 prefetched deliveries and one handler, when a delivery has waited for its handler for a
// quarter of the hold, then the prefetch falls. Suspects that wait for their turn go back, and the
// prefetch stays, as one that the user has named does. A hand-over that another subscription holds
// makes no difference. The time in which messages could not be stored does not count.
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
		prefetchBy    PrefetchBy
		falls, back   bool
	}{
		"slow handlers":          {first: handling, others: handling, falls: true, back: true},
		"suspects wait in line":  {delivery: suspected, first: handling, others: handling, back: true},
		"a prefetch of the user": {prefetchBy: ByOption, first: handling / 2, others: handling / 2},
		"the same by default":    {first: handling / 2, others: handling / 2, falls: true, back: true},
		"another queue is held": {
			heldElsewhere: 1, first: handling, others: handling, falls: true, back: true,
		},
		"quick handlers":         {first: 5 * time.Second, others: 5 * time.Second},
		"after a long hold here": {firstIsHeld: true, first: 20 * time.Minute, others: 5 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				group, logger := &Group{}, watermill.NewCaptureLogger()
				group.held.Add(c.heldElsewhere)
				ctx, stop := context.WithCancel(t.Context())
				s := New(ctx, ctx, Config{
					Group: group, Queue: "orders", Logger: logger,
					Consume: Consume{Concurrency: 1, Prefetch: 16, PrefetchBy: c.prefetchBy},
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
				require.Equal(t, c.back, len(logger.Captured()[watermill.InfoLogLevel]) > 0, "said")
				require.Less(t, longest, hold)
			})
		})
	}
}
