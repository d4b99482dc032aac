package topology_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/millpond-go/millpond/internal/testing/rig"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
)

// With 64 in flight, one blocked handler does not stop the others; Close ends all,
// and the blocked one's message goes back to its queue with nothing spent.
func TestBlockedHandlerDoesNotStopTheOthers(t *testing.T) {
	t.Parallel()
	const n, more = 64, 300
	handlers, together := rig.NewBusy(), make(chan struct{})
	r := rig.Start(t, rig.Config{
		Policy:            backoff.List{30 * time.Second},
		SubscriberOptions: append(rig.InFlight(n), topology.WithDrainTimeout(500*time.Millisecond)),
		Handler: func(msg *message.Message) ([]*message.Message, error) {
			defer handlers.Enter(string(msg.Payload))()
			if string(msg.Payload) == "blocked" {
				<-msg.Context().Done()
				return nil, msg.Context().Err()
			}
			select {
			case <-together:
			case <-time.After(rig.Patience):
				t.Error("never all at once")
			}
			return nil, nil
		},
	})
	r.Send("blocked")
	rig.Fill(t, r.URL, r.Queue, more)
	rig.WaitFor(t, "all run at once", func() bool { return handlers.Now() == n })
	require.Equal(t, more+1-n, r.Depth(""), "as many as there are places are prefetched")
	close(together)
	rig.WaitFor(t, "the others are handled", func() bool { return handlers.Distinct() == more+1 && handlers.Now() == 1 })

	begun := time.Now()
	r.Stop()
	require.Less(t, time.Since(begun), rig.Ceiling)
	require.Equal(t, n, handlers.Peak())
	back := rig.Take(t, r.URL, r.Queue)
	require.Equal(t, "blocked", string(back.Body))
	require.NotContains(t, back.Headers, header.Failures)
	require.Zero(t, r.Depth(""))
	require.Zero(t, r.Depth(".wait.30s"))
}

// Prefetch follows: a smaller one is raised, a larger one stays.
func TestPrefetchFollowsConcurrency(t *testing.T) {
	t.Parallel()
	const messages = 60
	for _, c := range []struct{ concurrency, prefetch, unacked int }{{8, 1, 8}, {2, 50, 50}} {
		t.Run(fmt.Sprintf("%d in flight, prefetch %d", c.concurrency, c.prefetch), func(t *testing.T) {
			t.Parallel()
			handlers, free := rig.NewBusy(), make(chan struct{})
			r := rig.Start(t, rig.Config{
				Policy: backoff.List{time.Second}, Configure: rig.Prefetch(c.prefetch), SubscriberOptions: rig.InFlight(c.concurrency),
				Handler: func(msg *message.Message) ([]*message.Message, error) {
					defer handlers.Enter(string(msg.Payload))()
					<-free
					return nil, nil
				},
			})
			rig.Fill(t, r.URL, r.Queue, messages)
			rig.WaitFor(t, "the prefetched are away", func() bool {
				return handlers.Now() == c.concurrency && r.Depth("") == messages-c.unacked
			})
			close(free)
			rig.WaitFor(t, "all are handled", func() bool { return handlers.Distinct() == messages })
			require.Equal(t, c.concurrency, handlers.Peak())
		})
	}
}

// 64 in flight, of which every one fails once, the first 64 together: each is
// retried once, none is lost and none comes twice.
func TestFailuresInFlightAreRetriedOnce(t *testing.T) {
	t.Parallel()
	const n, messages = 64, 500
	for name, strategy := range rig.Strategies {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			handlers, done, together := rig.NewBusy(), rig.NewLedger(), make(chan struct{})
			r := rig.Start(t, rig.Config{
				Strategy: strategy(t), Policy: backoff.List{time.Second}, SubscriberOptions: rig.InFlight(n), Configure: rig.QuorumQueue,
				Handler: func(msg *message.Message) ([]*message.Message, error) {
					body := string(msg.Payload)
					defer handlers.Enter(body)()
					if middleware.Attempt(msg.Context()) == 1 {
						<-together
						return nil, rig.ErrFailed
					}
					done.Handle(body)
					return nil, nil
				},
			})
			rig.Fill(t, r.URL, r.Queue, messages)
			rig.WaitFor(t, "all places are taken", func() bool { return handlers.Now() == n })
			close(together)
			rig.WaitFor(t, "every message is handled", func() bool { return done.Count() == messages })
			r.Stop()
			require.Equal(t, n, handlers.Peak())
			for i := range messages {
				require.Equal(t, 2, handlers.Of(fmt.Sprint(i)), "message %d", i)
			}
			for _, queue := range append([]string{r.Queue, r.Queue + ".dlq"}, rig.QueueNames(r.Plan)...) {
				require.Zero(t, testbroker.Depth(t, r.URL, queue), queue)
			}
		})
	}
}

// The consumer's connection is cut while eight handlers run that do not notice:
// until one of them ends, no other begins. Then it is cut again and again under
// failures: no message is lost, and there are never more than eight.
func TestNoMoreHandlersAcrossReconnects(t *testing.T) {
	t.Parallel()
	const n, messages = 8, 200
	url := testbroker.URL(t)
	proxy := testbroker.NewProxy(t, url)
	handlers, done, free := rig.NewBusy(), rig.NewLedger(), make(chan struct{})
	r := rig.Start(t, rig.Config{
		URL: proxy.URL(), PublisherURL: url, AdminURL: url, SubscriberOptions: rig.InFlight(n),
		Configure: func(cfg *wamqp.Config) {
			rig.QuorumQueue(cfg)
			cfg.Connection.Reconnect = &wamqp.ReconnectConfig{
				BackoffInitialInterval: 50 * time.Millisecond, BackoffMultiplier: 1.5, BackoffMaxInterval: 200 * time.Millisecond,
			}
		},
		Policy: backoff.List{500 * time.Millisecond, 500 * time.Millisecond},
		Handler: func(msg *message.Message) ([]*message.Message, error) {
			body := string(msg.Payload)
			defer handlers.Enter(body)()
			<-free
			if done.FailOnce(body) {
				return nil, rig.ErrFailed
			}
			done.Handle(body)
			return nil, nil
		},
	})
	consuming := func() int { return strings.Count(r.Logs.Text(), "Consuming") }
	rig.Fill(t, url, r.Queue, messages)
	rig.WaitFor(t, "all places are taken", func() bool { return handlers.Now() == n })
	proxy.Cut()
	rig.WaitFor(t, "it consumes again", func() bool { return consuming() == 2 })
	rig.WaitFor(t, "the broker has sent the next", func() bool { return testbroker.Depth(t, url, r.Queue) == messages-n })
	require.Equal(t, n, handlers.Peak(), "handlers of both connections")
	close(free)
	for cut := 1; cut <= 3; cut++ {
		rig.WaitFor(t, "some are handled", func() bool { return done.Count() >= cut*messages/5 })
		proxy.Cut()
	}
	rig.WaitFor(t, "every message is handled", func() bool { return done.Count() == messages })
	require.Equal(t, n, handlers.Peak())
	r.Stop()
	require.Zero(t, testbroker.Depth(t, url, r.Queue+".dlq"))
	t.Logf("consumed from %d connections, %d messages handled", consuming(), done.Count())
}
