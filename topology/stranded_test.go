package topology_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
)

// Given two subscriptions of one client, then each growth of their stranded queue is one line of
// the log, and a purge is none. Observers are told of each change.
func TestStrandedMessagesAreSaidOnceForAClient(t *testing.T) {
	t.Parallel()
	url, strategy := testbroker.URL(t), rig.Shared(t, topology.Quorum)
	stranded, policy, logs := strategy.Prefix+".stranded", backoff.List{time.Second}, &rig.Logs{}
	var mu sync.Mutex
	var told []int
	client, sub := rig.OpenSubscriber(t, url, strategy, policy,
		topology.WithLogger(logs), topology.WithStrandedPause(50*time.Millisecond),
		topology.WithObserver(middleware.ObserverFunc(func(_ context.Context, e middleware.Event) {
			mu.Lock()
			defer mu.Unlock()
			if assert.Equal(t, middleware.EventStranded, e.Kind) && assert.Equal(t, stranded, e.Queue) {
				told = append(told, e.Messages)
			}
		})))
	tells := func(want ...int) {
		t.Helper()
		rig.WaitFor(t, fmt.Sprintf("the observer to be told %v", want), func() bool {
			mu.Lock()
			defer mu.Unlock()
			return slices.Equal(want, told)
		})
	}
	queues := []string{testbroker.Queue(t), testbroker.Queue(t)}
	for _, queue := range queues {
		rig.RemovePlan(t, url, strategy, queue, policy)
		require.NoError(t, sub.SubscribeInitialize(queue))
	}
	requireSaid := func(want ...int) {
		t.Helper()
		saying := func() []string { return logs.Saying("Messages are stranded") }
		rig.WaitFor(t, "the lines of the log", func() bool { return len(saying()) >= len(want) })
		lines := saying()
		require.Len(t, lines, len(want))
		for i, n := range want {
			require.Contains(t, lines[i], fmt.Sprintf("messages:%d queue:%s", n, stranded))
		}
	}
	rig.Fill(t, url, stranded, 2)
	rig.AwaitDepth(t, url, stranded, 2)
	for _, queue := range queues {
		_, err := sub.Subscribe(t.Context(), queue)
		require.NoError(t, err)
	}
	requireSaid(2)
	tells(2)
	rig.Fill(t, url, stranded, 1)
	requireSaid(2, 3)
	tells(2, 3)
	_, err := testbroker.Channel(t, url).QueuePurge(stranded, false)
	require.NoError(t, err)
	rig.AwaitDepth(t, url, stranded, 0)
	tells(2, 3, 0)
	require.NoError(t, client.Close())
	requireSaid(2, 3)
}

// quitting is a marshaler that ends its goroutine, once.
type quitting struct {
	wamqp.DefaultMarshaler
	did atomic.Bool
}

func (q *quitting) Unmarshal(d amqp.Delivery) (*message.Message, error) {
	if q.did.CompareAndSwap(false, true) {
		runtime.Goexit()
	}
	return q.DefaultMarshaler.Unmarshal(d)
}

// The goroutine that is gone is given nothing more: the next message goes on.
func TestMarshalerThatEndsItsGoroutineStopsNothing(t *testing.T) {
	t.Parallel()
	handled := make(chan struct{}, 2)
	r := rig.Start(t, rig.Config{
		Policy:    backoff.List{time.Second},
		Configure: func(cfg *wamqp.Config) { cfg.Marshaler = new(quitting); rig.Prefetch(10)(cfg) },
		Handler: func(*message.Message) ([]*message.Message, error) {
			handled <- struct{}{}
			return nil, nil
		},
	})
	rig.Fill(t, r.URL, r.Queue, 2)
	rig.WaitFor(t, "the second message", func() bool { return len(handled) == 1 })
}

func TestMain(m *testing.M) {
	testbroker.Main(m, func() error { return goleak.Find() })
}
