package topology_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
)

// busy counts the handlers that run at once, and the calls for each message.
type busy struct {
	mu            sync.Mutex
	running, most int
	calls         map[string]int
}

func newBusy() *busy { return &busy{calls: map[string]int{}} }

// enter counts a call; leave ends it.
func (b *busy) enter(body string) (leave func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.running++
	b.most = max(b.most, b.running)
	b.calls[body]++
	return func() { b.mu.Lock(); defer b.mu.Unlock(); b.running-- }
}

func (b *busy) now() int        { b.mu.Lock(); defer b.mu.Unlock(); return b.running }
func (b *busy) peak() int       { b.mu.Lock(); defer b.mu.Unlock(); return b.most }
func (b *busy) of(s string) int { b.mu.Lock(); defer b.mu.Unlock(); return b.calls[s] }
func (b *busy) distinct() int   { b.mu.Lock(); defer b.mu.Unlock(); return len(b.calls) }
func inFlight(n int) []topology.SubscriberOption {
	return []topology.SubscriberOption{topology.WithConcurrency(n)}
}

// With 64 in flight, one blocked handler does not stop the others; Close ends all,
// and the blocked one's message goes back to its queue with nothing spent.
func TestBlockedHandlerDoesNotStopTheOthers(t *testing.T) {
	t.Parallel()
	const n, more = 64, 300
	handlers, together := newBusy(), make(chan struct{})
	r := newRig(t, rigConfig{
		policy:     backoff.List{30 * time.Second},
		subOptions: append(inFlight(n), topology.WithDrainTimeout(500*time.Millisecond)),
		handler: func(msg *message.Message) ([]*message.Message, error) {
			defer handlers.enter(string(msg.Payload))()
			if string(msg.Payload) == "blocked" {
				<-msg.Context().Done()
				return nil, msg.Context().Err()
			}
			select {
			case <-together:
			case <-time.After(patience):
				t.Error("never all at once")
			}
			return nil, nil
		},
	})
	r.publish(amqp.Publishing{Body: []byte("blocked"), DeliveryMode: amqp.Persistent})
	fill(t, r.url, r.queue, more)
	testbroker.WaitFor(t, "all run at once", patience, func() bool { return handlers.now() == n })
	require.Equal(t, more+1-n, testbroker.Depth(t, r.url, r.queue), "as many as there are places are prefetched")
	close(together)
	testbroker.WaitFor(t, "the others are handled", patience, func() bool { return handlers.distinct() == more+1 && handlers.now() == 1 })

	begun := time.Now()
	r.stop()
	require.Less(t, time.Since(begun), ceiling)
	require.Equal(t, n, handlers.peak())
	back := take(t, r.url, r.queue)
	require.Equal(t, "blocked", string(back.Body))
	require.NotContains(t, back.Headers, header.Failures)
	require.Zero(t, testbroker.Depth(t, r.url, r.queue))
	require.Zero(t, testbroker.Depth(t, r.url, r.queue+".wait.30s"))
}

// Prefetch follows: a smaller one is raised, a larger one stays.
func TestPrefetchFollowsConcurrency(t *testing.T) {
	t.Parallel()
	const messages = 60
	for _, c := range []struct{ concurrency, prefetch, unacked int }{{8, 1, 8}, {2, 50, 50}} {
		t.Run(fmt.Sprintf("%d in flight, prefetch %d", c.concurrency, c.prefetch), func(t *testing.T) {
			t.Parallel()
			handlers, free := newBusy(), make(chan struct{})
			r := newRig(t, rigConfig{
				policy: backoff.List{time.Second}, config: prefetch(c.prefetch), subOptions: inFlight(c.concurrency),
				handler: func(msg *message.Message) ([]*message.Message, error) {
					defer handlers.enter(string(msg.Payload))()
					<-free
					return nil, nil
				},
			})
			fill(t, r.url, r.queue, messages)
			testbroker.WaitFor(t, "the prefetched are away", patience, func() bool {
				return handlers.now() == c.concurrency && testbroker.Depth(t, r.url, r.queue) == messages-c.unacked
			})
			close(free)
			testbroker.WaitFor(t, "all are handled", patience, func() bool { return handlers.distinct() == messages })
			require.Equal(t, c.concurrency, handlers.peak())
		})
	}
}

// 64 in flight, of which every one fails once, the first 64 together: each is
// retried once, none is lost and none comes twice.
func TestFailuresInFlightAreRetriedOnce(t *testing.T) {
	t.Parallel()
	const n, messages = 64, 500
	for name, strategy := range strategies {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			handlers, done, together := newBusy(), newLedger(), make(chan struct{})
			r := newRig(t, rigConfig{
				strategy: strategy(t), policy: backoff.List{time.Second}, subOptions: inFlight(n), config: quorumQueue,
				handler: func(msg *message.Message) ([]*message.Message, error) {
					body := string(msg.Payload)
					defer handlers.enter(body)()
					if middleware.Attempt(msg.Context()) == 1 {
						<-together
						return nil, errFailed
					}
					done.handle(body)
					return nil, nil
				},
			})
			fill(t, r.url, r.queue, messages)
			testbroker.WaitFor(t, "all places are taken", patience, func() bool { return handlers.now() == n })
			close(together)
			testbroker.WaitFor(t, "every message is handled", patience, func() bool { return done.count() == messages })
			r.stop()
			require.Equal(t, n, handlers.peak())
			for i := range messages {
				require.Equal(t, 2, handlers.of(fmt.Sprint(i)), "message %d", i)
			}
			for _, queue := range append([]string{r.queue, r.queue + ".dlq"}, names(r.plan)...) {
				require.Zero(t, testbroker.Depth(t, r.url, queue), queue)
			}
		})
	}
}

func names(p topology.Plan) []string {
	var names []string
	for _, q := range p.Queues {
		names = append(names, q.Name)
	}
	return names
}

// The consumer's connection is cut while eight handlers run that do not notice:
// until one of them ends, no other begins. Then it is cut again and again under
// failures: no message is lost, and there are never more than eight.
func TestNoMoreHandlersAcrossReconnects(t *testing.T) {
	t.Parallel()
	const n, messages = 8, 200
	url := testbroker.URL(t)
	proxy := testbroker.NewProxy(t, url)
	handlers, done, free := newBusy(), newLedger(), make(chan struct{})
	r := newRig(t, rigConfig{
		url: proxy.URL(), publisherURL: url, adminURL: url, subOptions: inFlight(n),
		config: func(cfg *wamqp.Config) {
			quorumQueue(cfg)
			cfg.Connection.Reconnect = &wamqp.ReconnectConfig{
				BackoffInitialInterval: 50 * time.Millisecond, BackoffMultiplier: 1.5, BackoffMaxInterval: 200 * time.Millisecond,
			}
		},
		policy: backoff.List{500 * time.Millisecond, 500 * time.Millisecond},
		handler: func(msg *message.Message) ([]*message.Message, error) {
			body := string(msg.Payload)
			defer handlers.enter(body)()
			<-free
			if done.failOnce(body) {
				return nil, errFailed
			}
			done.handle(body)
			return nil, nil
		},
	})
	consuming := func() int { return strings.Count(r.logs.text(), "Consuming") }
	fill(t, url, r.queue, messages)
	testbroker.WaitFor(t, "all places are taken", patience, func() bool { return handlers.now() == n })
	proxy.Cut()
	testbroker.WaitFor(t, "it consumes again", patience, func() bool { return consuming() == 2 })
	testbroker.WaitFor(t, "the broker has sent the next", patience, func() bool { return testbroker.Depth(t, url, r.queue) == messages-n })
	require.Equal(t, n, handlers.peak(), "handlers of both connections")
	close(free)
	for cut := 1; cut <= 3; cut++ {
		testbroker.WaitFor(t, "some are handled", patience, func() bool { return done.count() >= cut*messages/5 })
		proxy.Cut()
	}
	testbroker.WaitFor(t, "every message is handled", patience, func() bool { return done.count() == messages })
	require.Equal(t, n, handlers.peak())
	r.stop()
	require.Zero(t, testbroker.Depth(t, url, r.queue+".dlq"))
	t.Logf("consumed from %d connections, %d messages handled", consuming(), done.count())
}
