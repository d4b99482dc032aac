package e2e_test

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/peer"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/inorder"
)

// Given a broker that has forgotten a consumer, when messages are ready for half a minute, then the
// Subscriber logs it, tells the observers, and consumes on a new channel. An empty queue is none of
// its business, however long.
func TestAConsumerThatIsForgottenConsumesAgain(t *testing.T) {
	t.Parallel()
	rig.Virtually(t, func(t *testing.T, broker *peer.Server) {
		events := make(chan middleware.Event, 10)
		handled := make(chan struct{}, 10)
		s := rig.Start(t, rig.Config{
			URL: broker.URL(), Policy: backoff.List{time.Second}, Forgotten: true,
			ClientOptions: []topology.Option{topology.WithObserver(onlyStill(events))},
			Handle:        func(*message.Message) error { handled <- struct{}{}; return nil },
		})
		rig.Fill(t, broker.URL(), s.Queue, 3)
		for range 3 {
			<-handled
		}
		<-time.After(time.Hour)
		require.Zero(t, s.Logs.Said(rig.WatchdogLine))
		broker.Forget(s.Queue)
		rig.Fill(t, broker.URL(), s.Queue, 3)
		for range 3 {
			select {
			case <-handled:
			case <-time.After(5 * time.Minute):
				t.Fatal("the messages stand still")
			}
		}
		require.Equal(t, 1, s.Logs.Said(rig.WatchdogLine))
		e := <-events
		require.Equal(t, s.Queue, e.Queue)
		require.Equal(t, 3, e.Messages)
	})
}

// The same for a queue that is handled in order: the new consumers lead, and keep the order.
func TestALeaderThatIsForgottenConsumesAgain(t *testing.T) {
	t.Parallel()
	rig.Virtually(t, func(t *testing.T, broker *peer.Server) {
		var handled bodies
		c := orderedBy(inorder.Strategy{}, backoff.List{time.Minute}, func(msg *message.Message) error {
			handled.add(string(msg.Payload))
			return nil
		})
		c.URL, c.Queue, c.Keep, c.Forgotten = broker.URL(), "orders", true, true
		r := rig.Start(t, c)
		r.Send("a:0")
		<-time.After(time.Hour)
		require.Zero(t, r.Logs.Said(rig.WatchdogLine))
		broker.Forget("orders")
		r.Send("a:1", "b:0")
		<-time.After(5 * time.Minute)
		require.Equal(t, 1, r.Logs.Said(rig.WatchdogLine))
		require.Equal(t, ofKey("a", 2), handled.of("a"))
		require.Equal(t, 3, handled.len())
	})
}

func onlyStill(events chan<- middleware.Event) middleware.Observer {
	return middleware.ObserverFunc(func(_ context.Context, e middleware.Event) {
		if e.Kind == middleware.EventStranded {
			events <- e
		}
	})
}
