package e2e_test

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/internal/testing/peer"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
)

// Given a prefetch below the concurrency, when a service starts, then the prefetch is raised to
// twice the concurrency. A larger one stays. When one handler blocks, then the others go on. Close
// ends all, and the blocked message goes back to its queue with nothing spent.
func TestPrefetchFollowsConcurrency(t *testing.T) {
	t.Parallel()
	const messages = 200
	for _, c := range []struct{ concurrency, prefetch, unacked int }{
		{8, 1, 16}, {64, 1, 128}, {8, 4, 8}, {2, 50, 50},
	} {
		t.Run(fmt.Sprintf("%d in flight, prefetch %d", c.concurrency, c.prefetch), func(t *testing.T) {
			t.Parallel()
			rig.Virtually(t, func(t *testing.T, broker *peer.Server) {
				handlers, free := rig.NewCalls(), make(chan struct{})
				r := rig.Start(t, rig.Config{
					URL: broker.URL(), Policy: backoff.List{time.Second}, Configure: rig.Prefetch(c.prefetch),
					SubscriberOptions: rig.InFlight(c.concurrency),
					Handle: func(msg *message.Message) error {
						defer handlers.Enter(string(msg.Payload))()
						if string(msg.Payload) == "0" {
							<-msg.Context().Done()
							return msg.Context().Err()
						}
						<-free
						return nil
					},
				})
				rig.Fill(t, r.URL, r.Queue, messages)
				<-time.After(time.Second)
				require.Equal(t, c.concurrency, handlers.Now())
				require.Equal(t, messages-c.unacked, r.Depth(""), "the others are delivered")
				close(free)
				<-time.After(time.Second)
				require.Equal(t, []int{messages, 1}, []int{handlers.Count(), handlers.Now()})

				r.Stop()
				require.Equal(t, []int{messages, c.concurrency}, []int{handlers.Total(), handlers.Peak()})
				back := rig.Take(t, r.URL, r.Queue)
				require.Equal(t, "0", string(back.Body))
				require.NotContains(t, back.Headers, keys.Failures)
				require.Equal(t, []int{0, 0}, []int{r.Depth(""), r.Depth(".wait.1s")})
			})
		})
	}
}

// Given eight handlers that do not notice the end of the connection, when it is cut, then no other
// begins before one of them ends. When it is cut again and again under failures, then no message
// is lost, and there are never more than eight.
func TestNoMoreHandlersAcrossReconnects(t *testing.T) {
	t.Parallel()
	const n, messages = 8, 200
	url := testbroker.URL(t)
	proxy := testbroker.NewProxy(t, url)
	handlers, done, free := rig.NewCalls(), rig.NewCalls(), make(chan struct{})
	r := rig.Start(t, rig.Config{
		URL: proxy.URL(), PublisherURL: url, AdminURL: url, SubscriberOptions: rig.InFlight(n),
		Configure: func(cfg *wamqp.Config) { rig.QuorumQueue(cfg); rig.QuickReconnect(cfg) },
		Policy:    backoff.List{500 * time.Millisecond, 500 * time.Millisecond},
		Handle: func(msg *message.Message) error {
			body := string(msg.Payload)
			defer handlers.Enter(body)()
			<-free
			if handlers.Of(body) == 1 {
				return rig.ErrFailed
			}
			done.Handle(body)
			return nil
		},
	})
	depth := func(suffix string) int { return testbroker.Depth(t, url, r.Queue+suffix) }
	rig.Fill(t, url, r.Queue, messages)
	rig.WaitFor(t, "all places to be taken", func() bool { return handlers.Now() == n })
	proxy.Cut()
	rig.WaitFor(t, "the second consumer", func() bool { return r.Logs.Said("Consuming") == 2 })
	rig.WaitFor(t, "the next deliveries", func() bool { return depth("") == messages-2*n })
	require.Equal(t, n, handlers.Peak(), "handlers of both connections")
	close(free)
	for cut := 1; cut <= 3; cut++ {
		rig.WaitFor(t, "some to be handled", func() bool { return done.Count() >= cut*messages/5 })
		proxy.Cut()
	}
	rig.WaitFor(t, "all to be handled", func() bool { return done.Count() == messages })
	require.Equal(t, n, handlers.Peak())
	r.Stop()
	require.Zero(t, depth(".dlq"))
}

const neverReturns = "Handler does not return: use Watermill's Timeout"

// Given two handlers that do not return, then each is named once, while a third one works on.
// When they return, their messages are acked. Without a warning none is named.
func TestHandlerThatNeverReturnsIsNamed(t *testing.T) {
	t.Parallel()
	for _, warning := range []time.Duration{time.Second, 0} {
		t.Run(warning.String(), func(t *testing.T) {
			t.Parallel()
			rig.Virtually(t, func(t *testing.T, broker *peer.Server) {
				release, quick := make(chan struct{}), rig.NewCalls()
				handler := func(msg *message.Message) ([]*message.Message, error) {
					if string(msg.Payload) != "quick" {
						<-release
					}
					quick.Enter(string(msg.Payload))()
					return nil, nil
				}
				r := rig.Start(t, rig.Config{
					URL: broker.URL(), Policy: rig.Quickly(1),
					SubscriberOptions: append(rig.InFlight(3), topology.WithHandlerWarning(warning)),
					// Timeout replaces the context of the message meanwhile.
					Handler: rig.Inside(handler, wmiddleware.Timeout(time.Minute)),
				})
				ids := []string{"id-1", "id-2"}
				for _, id := range ids {
					r.Publish(amqp.Publishing{Body: []byte("stuck"), MessageId: id})
				}
				for range 3 {
					r.Publish(amqp.Publishing{Body: []byte("quick"), MessageId: "id-quick"})
					<-time.After(time.Second) // The ticker of the warning comes four times in this time.
				}
				require.Equal(t, 3, quick.Of("quick"))
				close(release)
				r.RequireNothingLeft(0)
				require.Equal(t, 2, quick.Of("stuck"))
				require.Empty(t, r.Logs.About("id-quick"))
				_, err := r.Client.NewSubscriberWithoutRetry(rig.QueueConfig(r.URL),
					topology.WithHandlerWarning(-1))
				require.ErrorContains(t, err, "WithHandlerWarning: -1ns is negative")
				if warning == 0 {
					require.Zero(t, r.Logs.Said(neverReturns))
					return
				}
				require.Equal(t, 2, r.Logs.Said(neverReturns))
				for _, id := range ids {
					lines := r.Logs.About(id)
					require.Len(t, lines, 1)
					require.Equal(t, "handler", lines[0].Fields["handler"])
					require.Equal(t, r.Queue, lines[0].Fields["queue"])
					require.Equal(t, 1, lines[0].Fields["attempt"])
					require.GreaterOrEqual(t, lines[0].Fields["held"], time.Second)
					require.ErrorContains(t, lines[0].Err, `handler "handler" has had the message for 1`)
				}
			})
		})
	}
}

// rewrite changes everything of a message until the channel is closed, so that the race
// detector sees a reader. Without the pauses the detector would forget the stacks it reports.
func rewrite(msg *message.Message, until <-chan struct{}) {
	type key struct{}
	ctx, uuid := msg.Context(), msg.UUID
	pause := time.NewTicker(50 * time.Microsecond)
	defer pause.Stop()
	for i := 0; ; i++ {
		select {
		case <-until:
			msg.UUID = uuid
			msg.SetContext(ctx)
			return
		case <-pause.C:
		}
		msg.UUID = strconv.Itoa(i)
		msg.Payload = []byte(msg.UUID)
		msg.Metadata.Set(wmiddleware.CorrelationIDMetadataKey, msg.UUID)
		msg.Metadata.Set("key "+strconv.Itoa(i%50), msg.UUID)
		delete(msg.Metadata, "key "+strconv.Itoa(i*7%50))
		msg.SetContext(context.WithValue(ctx, key{}, i))
	}
}

// Given a handler that changes its message all the time, when it is warned of, loses its
// connection, settles the message itself or outlives the drain, then log and events leave the
// message alone. A map that is read while it is written ends the process.
func TestNothingReadsAMessageThatItsHandlerHas(t *testing.T) {
	t.Parallel()
	ack, nack := func(m *message.Message) { m.Ack() }, func(m *message.Message) { m.Nack() }
	type testCase struct {
		cut    bool                     // the connection is lost first
		settle func(m *message.Message) // then the handler settles the message itself
		said   string                   // then this is logged
		told   middleware.EventKind     // or told
	}
	rig.Each(t, map[string]testCase{
		"given back after the drain":      {},
		"given back on a lost connection": {cut: true, said: "Cannot nack"},
		"acked":                           {settle: ack},
		"acked on a lost connection":      {cut: true, settle: ack, said: "Cannot ack"},
		"nacked":                          {settle: nack, told: middleware.EventSnoozed},
		"nacked on a lost connection":     {cut: true, settle: nack, told: middleware.EventRequeued},
	}, func(t *testing.T, c testCase) {
		url := testbroker.URL(t)
		proxy := testbroker.NewProxy(t, url)
		var told events
		handling, lost, stop := make(chan struct{}), make(chan struct{}), make(chan struct{})
		var again atomic.Bool
		r := rig.Start(t, rig.Config{
			URL: proxy.URL(), PublisherURL: url, AdminURL: url, Verbose: true,
			Policy:        backoff.List{time.Second},
			ClientOptions: []topology.Option{topology.WithObserver(&told)},
			SubscriberOptions: []topology.SubscriberOption{
				topology.WithHandlerWarning(50 * time.Millisecond),
				topology.WithDrainTimeout(300 * time.Millisecond),
			},
			RetryOptions: []middleware.Option{middleware.WithObserver(&told)},
			Handle: func(msg *message.Message) error {
				if again.Swap(true) {
					return nil
				}
				ctx := msg.Context()
				close(handling)
				rewrite(msg, lost)
				if c.cut {
					<-ctx.Done()
				}
				if c.settle != nil {
					c.settle(msg)
				}
				rewrite(msg, stop)
				return rig.ErrFailed
			},
		})
		rig.Publish(t, url, "", r.Queue, amqp.Publishing{Body: []byte("busy")})
		<-handling
		r.AwaitLine(neverReturns)
		if c.cut {
			proxy.Refuse(true) // The message must not come again meanwhile.
			proxy.Cut()
		}
		close(lost)
		if c.told != "" {
			rig.WaitFor(t, "the event "+string(c.told), func() bool { return told.has(c.told) })
		}
		closed := make(chan struct{})
		go func() { defer close(closed); r.Stop() }()
		r.AwaitLine("Stopped consuming")
		require.Contains(t, r.Logs.Text(), c.said)
		close(stop)
		<-closed
	})
}
