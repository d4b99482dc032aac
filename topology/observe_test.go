package topology_test

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/millpond-go/millpond/internal/testing/rig"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
)

// events keeps what an observer is told. middleware/metrics has the test of every
// way a message can take.
type events struct {
	mu  sync.Mutex
	all []middleware.Event
}

func (o *events) Observe(_ context.Context, e middleware.Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.all = append(o.all, e)
}

// wait returns the events once the last of them is of that kind, tries that failed
// in a row as one.
func (o *events) wait(t *testing.T, last middleware.EventKind) (kinds []middleware.EventKind, all []middleware.Event) {
	t.Helper()
	rig.WaitFor(t, "the event "+string(last), func() bool {
		o.mu.Lock()
		defer o.mu.Unlock()
		all = slices.Clone(o.all)
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

// failOnce is a middleware outside of DelayedRetry that fails the first time, so
// that the router nacks.
func failOnce(before func()) message.HandlerMiddleware {
	var calls atomic.Int32
	return func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			produced, err := h(msg)
			if err == nil && calls.Add(1) == 1 {
				before()
				return nil, rig.ErrFailed
			}
			return produced, err
		}
	}
}

// A delay longer than every wait step is waited for in rounds, one between two wait steps
// takes the longer: given and measured say so.
func TestDelaysAreTold(t *testing.T) {
	t.Parallel()
	var told events
	rig.Start(t, rig.Config{
		Strategy: topology.PerQueue{WaitSteps: []time.Duration{200 * time.Millisecond, time.Second}},
		Policy: backoff.Limit{Retries: 2, Policy: backoff.PolicyFunc(func(f backoff.Failure) (time.Duration, bool) {
			return []time.Duration{0, 2500 * time.Millisecond, 300 * time.Millisecond}[f.Count], true
		})},
		RetryOptions: []middleware.Option{middleware.WithObserver(&told)},
		Handler:      func(*message.Message) ([]*message.Message, error) { return nil, rig.ErrFailed },
	}).Publish(amqp.Publishing{Body: []byte("far")})
	kinds, all := told.wait(t, middleware.EventDeadLettered)
	require.Equal(t, []middleware.EventKind{"retried", "retried", "dead_lettered"}, kinds)
	for i, want := range []struct{ asked, given time.Duration }{
		{2500 * time.Millisecond, 3 * time.Second}, {300 * time.Millisecond, time.Second},
	} {
		require.Equal(t, want.asked, all[i].DelayAsked)
		require.Equal(t, want.given, all[i].DelayGiven)
		require.Equal(t, want.asked, all[i+1].LastDelay)
		// What is left of a round under max(50 ms, 1 %) is not waited for.
		require.GreaterOrEqual(t, all[i+1].DelayMeasured, want.given-50*time.Millisecond-rig.Grace)
		require.Less(t, all[i+1].DelayMeasured, want.given+rig.Ceiling)
	}
}

// The Subscriber tells of its own hand-over as DelayedRetry does.
func TestFailingMachineryOfTheSubscriberIsTold(t *testing.T) {
	t.Parallel()
	var told events
	url := testbroker.URL(t)
	proxy := testbroker.NewProxy(t, url)
	r := rig.Start(t, rig.Config{
		URL: url, PublisherURL: proxy.URL(), Policy: backoff.List{time.Second}, Handler: succeed,
		ClientOptions: []topology.Option{topology.WithObserver(&told), topology.WithConfirmTimeout(time.Second)},
		Outer:         []message.HandlerMiddleware{failOnce(func() { proxy.Blackhole(true) })},
	})
	r.Publish(amqp.Publishing{MessageId: "m-1", Body: []byte("nacked")})
	_, all := told.wait(t, middleware.EventFailing)
	require.Equal(t, 1, all[0].Tries)
	require.Error(t, all[0].Err)
	proxy.Blackhole(false)
	kinds, all := told.wait(t, middleware.EventSnoozed)
	require.Equal(t, []middleware.EventKind{"failing", "recovered", "snoozed"}, kinds)
	for _, e := range all {
		require.Equal(t, "m-1", e.MessageID)
		require.Equal(t, "handler", e.Handler)
		require.False(t, e.Called)
	}
	require.GreaterOrEqual(t, all[1].Tries, 2)
	require.Positive(t, all[1].Held)
	require.Equal(t, time.Second, all[2].DelayGiven)
}

// A message that the router nacks at shutdown goes back, which the Subscriber
// tells, for nobody else has.
func TestAMessageGivenBackAtShutdownIsTold(t *testing.T) {
	t.Parallel()
	var told events
	began := make(chan struct{})
	r := rig.Start(t, rig.Config{
		Policy:        backoff.List{time.Second},
		ClientOptions: []topology.Option{topology.WithObserver(&told)},
		RetryOptions:  []middleware.Option{middleware.WithObserver(&told)},
		Handler: func(msg *message.Message) ([]*message.Message, error) {
			close(began)
			<-middleware.DeliveryOf(msg.Context(), msg).Closing
			return nil, nil
		},
		Outer: []message.HandlerMiddleware{failOnce(func() {})},
	})
	r.Publish(amqp.Publishing{Body: []byte("late")})
	<-began
	r.Stop()
	kinds, _ := told.wait(t, middleware.EventRequeued)
	require.Equal(t, []middleware.EventKind{"handled", "requeued"}, kinds)
	require.Equal(t, 1, r.Depth(""))
}

// One that panics is logged once, and the message is settled all the same.
func TestAnObserverOfTheClientThatPanics(t *testing.T) {
	t.Parallel()
	var told events
	r := rig.Start(t, rig.Config{
		Policy: backoff.List{time.Second}, Handler: succeed, Configure: rig.Picky,
		ClientOptions: []topology.Option{topology.WithObserver(
			middleware.ObserverFunc(func(context.Context, middleware.Event) { panic("of mine") }), &told)},
	})
	for range 2 {
		r.Publish(amqp.Publishing{Body: []byte("refuse")})
		require.Equal(t, "refuse", string(r.DeadLetter().Body))
	}
	rig.WaitFor(t, "both to be told", func() bool {
		told.mu.Lock()
		defer told.mu.Unlock()
		return len(told.all) == 2
	})
	panics := 0
	for _, line := range r.Logs.All() {
		if line.Msg == "Observer panicked" {
			require.Equal(t, watermill.LogFields{"value": "of mine"}, line.Fields)
			panics++
		}
	}
	require.Equal(t, 1, panics)
}
