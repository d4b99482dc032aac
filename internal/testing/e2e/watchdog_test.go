package e2e_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/peer"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/inorder"
)

// Given a broker that has forgotten a consumer, when messages are ready for half a minute, then the
// Subscriber logs it, tells the observers, and consumes on a new channel. A queue that is handled
// in order keeps its order. An empty queue is none of its business, however long.
func TestAConsumerThatIsForgottenConsumesAgain(t *testing.T) {
	t.Parallel()
	rig.Each(t, map[string]topology.Strategy{
		"PerQueue": topology.PerQueue{}, "in order": inorder.Strategy{KeyBy: keyOf},
	}, func(t *testing.T, strategy topology.Strategy) {
		rig.Virtually(t, func(t *testing.T, broker *peer.Server) {
			events := make(chan middleware.Event, 10)
			var handled bodies
			c := inMemory(broker, orderedBy(inorder.Strategy{}, backoff.List{time.Minute}, handled.handle))
			c.Strategy, c.Forgotten = strategy, true
			c.ClientOptions = []topology.Option{topology.WithObserver(onlyStill(events))}
			c.SubscriberOptions = nil
			s := rig.Start(t, c)
			s.Send("a:0", "b:0")
			<-time.After(20 * time.Minute)
			require.Equal(t, 2, handled.len())
			require.Zero(t, s.Logs.Said(rig.WatchdogLine))
			broker.Forget(s.Queue)
			s.Send("a:1", "a:2", "b:1")
			<-time.After(5 * time.Minute)
			require.Equal(t, 1, s.Logs.Said(rig.WatchdogLine))
			require.Equal(t, ofKey("a", 3), handled.of("a"))
			require.Equal(t, 5, handled.len())
			e := <-events
			require.Equal(t, s.Queue, e.Queue)
			require.Equal(t, 3, e.Messages)
		})
	})
}

func onlyStill(events chan<- middleware.Event) middleware.Observer {
	return middleware.ObserverFunc(func(_ context.Context, e middleware.Event) {
		if e.Kind == middleware.EventStranded {
			events <- e
		}
	})
}
