package e2e_test

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/peer"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
)

// events is an observer that keeps all events. The tests of middleware/metrics cover every
// fate of a message.
type events struct {
	mu  sync.Mutex
	all []middleware.Event
}

func (o *events) Observe(_ context.Context, e middleware.Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.all = append(o.all, e)
}

func (o *events) seen() []middleware.Event {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.all)
}

// count returns the number of events of a kind.
func (o *events) count(kind middleware.EventKind) (n int) {
	for _, e := range o.seen() {
		if e.Kind == kind {
			n++
		}
	}
	return n
}

// handedOver returns the number of hand-overs that succeeded.
func (o *events) handedOver() int {
	return o.count(middleware.EventRetried) + o.count(middleware.EventDeadLettered)
}

// failing returns the number of messages whose hand-over has failed so often.
func (o *events) failing(tries int) (messages int) {
	failed := map[string]int{}
	for _, e := range o.seen() {
		if e.Kind == middleware.EventFailing {
			if failed[e.MessageID]++; failed[e.MessageID] == tries {
				messages++
			}
		}
	}
	return messages
}

// has reports whether an event of a kind was seen.
func (o *events) has(kind middleware.EventKind) bool {
	return o.count(kind) > 0
}

// wait waits until the last event is of a kind. It returns all events, with the failed tries
// of one hand-over as one event.
func (o *events) wait(
	t *testing.T, last middleware.EventKind,
) (kinds []middleware.EventKind, all []middleware.Event) {
	t.Helper()
	rig.WaitFor(t, "the event "+string(last), func() bool {
		all = o.seen()
		return len(all) > 0 && all[len(all)-1].Kind == last
	})
	all = slices.CompactFunc(all, func(a, b middleware.Event) bool {
		return a.Kind == middleware.EventFailing && b.Kind == a.Kind
	})
	for _, e := range all {
		kinds = append(kinds, e.Kind)
	}
	return kinds, all
}

// failOnce is a middleware outside DelayedRetry. It calls before and fails the first success,
// so that the router nacks.
func failOnce(before func()) []message.HandlerMiddleware {
	var calls atomic.Int32
	return []message.HandlerMiddleware{func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			produced, err := h(msg)
			if err == nil && calls.Add(1) == 1 {
				before()
				return nil, rig.ErrFailed
			}
			return produced, err
		}
	}}
}

// Given a router that nacks and a publishing connection that passes nothing, then the
// Subscriber tells its hand-over as DelayedRetry does.
func TestFailingMachineryOfTheSubscriberIsTold(t *testing.T) {
	t.Parallel()
	rig.Virtually(t, func(t *testing.T, broker *peer.Server) {
		var told events
		proxy := testbroker.NewProxy(t, broker.URL())
		r := rig.Start(t, rig.Config{
			URL: broker.URL(), PublisherURL: proxy.URL(), Queue: "orders", Keep: true,
			Policy: backoff.List{time.Second}, Handle: rig.Succeed,
			ClientOptions: []topology.Option{
				topology.WithObserver(&told),
			},
			Outer: failOnce(func() { proxy.Blackhole(true) }),
		})
		r.Publish(amqp.Publishing{MessageId: "m-1", Body: []byte("nacked")})
		_, all := told.wait(t, middleware.EventFailing)
		require.Equal(t, 1, all[1].Tries)
		require.Error(t, all[1].Err)
		proxy.Blackhole(false)
		kinds, all := told.wait(t, middleware.EventSnoozed)
		require.Equal(t, []middleware.EventKind{"handled", "failing", "recovered", "snoozed"}, kinds)
		all = all[1:]
		for _, e := range all {
			require.Equal(t, "m-1", e.MessageID)
			require.Equal(t, "handler", e.Handler)
			require.False(t, e.Called)
		}
		require.GreaterOrEqual(t, all[1].Tries, 2)
		require.Positive(t, all[1].Held)
		require.Equal(t, time.Second, all[2].DelayGiven)
	})
}
