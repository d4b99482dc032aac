package e2e_test

import (
	"context"
	"fmt"
	"os"
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
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/budget"
	"github.com/millpond-go/millpond/topology"
)

// Given 64 messages in flight, when one handler blocks, then the others go on. Close ends all, and
// the blocked message goes back to its queue with nothing spent.
func TestBlockedHandlerDoesNotStopTheOthers(t *testing.T) {
	t.Parallel()
	const n, more = 64, 300
	handlers, together := rig.NewBusy(), make(chan struct{})
	drain := topology.WithDrainTimeout(500 * time.Millisecond)
	r := rig.Start(t, rig.Config{
		Policy: backoff.List{30 * time.Second}, SubscriberOptions: append(rig.InFlight(n), drain),
		Handle: func(msg *message.Message) error {
			defer handlers.Enter(string(msg.Payload))()
			if string(msg.Payload) == "blocked" {
				<-msg.Context().Done()
				return msg.Context().Err()
			}
			select {
			case <-together:
			case <-time.After(rig.Patience):
				t.Error("never all at once")
			}
			return nil
		},
	})
	r.Send("blocked")
	rig.Fill(t, r.URL, r.Queue, more)
	rig.WaitFor(t, "all to run at once", func() bool { return handlers.Now() == n })
	require.Equal(t, more+1-2*n, r.Depth(""), "twice as many as there are places are prefetched")
	close(together)
	rig.WaitFor(t, "the others to be handled", func() bool {
		return handlers.Distinct() == more+1 && handlers.Now() == 1
	})

	begun := time.Now()
	r.Stop()
	require.Less(t, time.Since(begun), rig.Ceiling)
	require.Equal(t, n, handlers.Peak())
	back := rig.Take(t, r.URL, r.Queue)
	require.Equal(t, "blocked", string(back.Body))
	require.NotContains(t, back.Headers, keys.Failures)
	require.Zero(t, r.Depth(""))
	require.Zero(t, r.Depth(".wait.30s"))
}

// Given a prefetch below the concurrency, when a service starts, then the prefetch is raised. A
// larger one stays.
func TestPrefetchFollowsConcurrency(t *testing.T) {
	t.Parallel()
	const messages = 60
	for _, c := range []struct{ concurrency, prefetch, unacked int }{
		{8, 1, 16}, {16, 1, 32}, {8, 4, 8}, {2, 50, 50},
	} {
		t.Run(fmt.Sprintf("%d in flight, prefetch %d", c.concurrency, c.prefetch), func(t *testing.T) {
			t.Parallel()
			handlers, free := rig.NewBusy(), make(chan struct{})
			r := rig.Start(t, rig.Config{
				Policy: backoff.List{time.Second}, Configure: rig.Prefetch(c.prefetch),
				SubscriberOptions: rig.InFlight(c.concurrency),
				Handle: func(msg *message.Message) error {
					defer handlers.Enter(string(msg.Payload))()
					<-free
					return nil
				},
			})
			rig.Fill(t, r.URL, r.Queue, messages)
			rig.WaitFor(t, "the prefetched messages to be delivered", func() bool {
				return handlers.Now() == c.concurrency && r.Depth("") == messages-c.unacked
			})
			close(free)
			rig.WaitFor(t, "all to be handled", func() bool { return handlers.Distinct() == messages })
			require.Equal(t, c.concurrency, handlers.Peak())
		})
	}
}

// Given 64 messages in flight, when each message fails once and the first 64 fail together, then
// each is retried once. None is lost, and none comes twice.
func TestFailuresInFlightAreRetriedOnce(t *testing.T) {
	t.Parallel()
	const n, messages = 64, 500
	rig.OnEachStrategy(t, func(t *testing.T, strategy topology.Strategy) {
		handlers, done, together := rig.NewBusy(), rig.NewLedger(), make(chan struct{})
		r := rig.Start(t, rig.Config{
			Strategy: strategy, Policy: backoff.List{time.Second}, Configure: rig.QuorumQueue,
			SubscriberOptions: rig.InFlight(n),
			Handle: func(msg *message.Message) error {
				body := string(msg.Payload)
				defer handlers.Enter(body)()
				if middleware.Attempt(msg.Context()) == 1 {
					<-together
					return rig.ErrFailed
				}
				done.Handle(body)
				return nil
			},
		})
		rig.Fill(t, r.URL, r.Queue, messages)
		rig.WaitFor(t, "all places to be taken", func() bool { return handlers.Now() == n })
		close(together)
		rig.WaitFor(t, "all to be handled", func() bool { return done.Count() == messages })
		r.Stop()
		require.Equal(t, n, handlers.Peak())
		for i := range messages {
			require.Equal(t, 2, handlers.Of(fmt.Sprint(i)), "message %d", i)
		}
		for _, queue := range append(rig.QueueNames(r.Plan), r.Queue, r.Queue+".dlq") {
			require.Zero(t, testbroker.Depth(t, r.URL, queue), queue)
		}
	})
}

// Given eight handlers that do not notice the end of the connection, when it is cut, then no other
// begins before one of them ends. When it is cut again and again under failures, then no message
// is lost, and there are never more than eight.
func TestNoMoreHandlersAcrossReconnects(t *testing.T) {
	t.Parallel()
	const n, messages = 8, 200
	url := testbroker.URL(t)
	proxy := testbroker.NewProxy(t, url)
	handlers, done, free := rig.NewBusy(), rig.NewLedger(), make(chan struct{})
	r := rig.Start(t, rig.Config{
		URL: proxy.URL(), PublisherURL: url, AdminURL: url, SubscriberOptions: rig.InFlight(n),
		Configure: func(cfg *wamqp.Config) { rig.QuorumQueue(cfg); rig.QuickReconnect(cfg) },
		Policy:    backoff.List{500 * time.Millisecond, 500 * time.Millisecond},
		Handle: func(msg *message.Message) error {
			body := string(msg.Payload)
			defer handlers.Enter(body)()
			<-free
			if done.FailOnce(body) {
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

// Given a budget, when a downstream is out while messages keep coming, then it is called no more
// often than the budget's probes allow. Every message is handled afterwards. With MILLPOND_LONG
// the outage lasts a minute at 200 messages a second, and there is a tenth of the calls at most.
func TestBudgetSparesAFailingDownstream(t *testing.T) {
	t.Parallel()
	rate, outage, long := 100, 6*time.Second, os.Getenv("MILLPOND_LONG") != ""
	if long {
		rate, outage = 200, time.Minute
	}
	const (
		slow, window    = 4 * time.Second, 3 * time.Second
		minimum, probes = 10, 10
		places          = 16 // in flight
	)
	url := testbroker.URL(t)
	type service struct {
		*rig.Service
		calls, handled atomic.Int64 // while it is out, and afterwards
	}
	var out atomic.Bool
	out.Store(true)
	serve := func(options ...middleware.Option) *service {
		s := &service{}
		s.Service = rig.Start(t, rig.Config{
			URL: url, Policy: backoff.Constant{Interval: 500 * time.Millisecond, Retries: 10_000},
			Configure: rig.Prefetch(50), RetryOptions: options,
			SubscriberOptions: append(rig.InFlight(places), topology.ForPolicy(backoff.List{slow})),
			Handle: func(*message.Message) error {
				if out.Load() {
					s.calls.Add(1)
					return rig.ErrFailed
				}
				s.handled.Add(1)
				return nil
			},
		})
		testbroker.Delete(t, s.Queue+".wait.4s")
		return s
	}
	budget, err := budget.New(budget.Config{
		Share: 0.5, Window: window, Minimum: minimum, Probes: probes, Delay: slow,
	})
	require.NoError(t, err)
	with := serve(middleware.WithBudget(budget))
	services := []*service{with}
	if long {
		services = append(services, serve()) // to compare with
	}

	ch := testbroker.Channel(t, url)
	require.NoError(t, ch.Confirm(false))
	began, sent := time.Now(), 0
	var last *amqp.DeferredConfirmation
	for tick := time.NewTicker(10 * time.Millisecond); time.Since(began) < outage; <-tick.C {
		for ; sent < int(time.Since(began).Seconds()*float64(rate)); sent++ {
			for _, s := range services {
				last, err = ch.PublishWithDeferredConfirm("", s.Queue, true, false, rig.Message(""))
				require.NoError(t, err)
			}
		}
	}
	require.True(t, last.Wait())
	out.Store(false)
	windows := int64(time.Since(began)/window) + 1
	for _, s := range services {
		rig.WaitFor(t, "all to be handled", func() bool { return s.handled.Load() >= int64(sent) })
		require.Equal(t, int64(sent), s.handled.Load())
		require.Equal(t, 0, testbroker.Depth(t, url, s.Plan.Dead.RoutingKey))
	}
	t.Logf("%d calls in an outage of %v at %d messages a second", with.calls.Load(), outage, rate)
	// A window without a delivery opens the budget. Then the first failures close it again.
	require.LessOrEqual(t, with.calls.Load(), windows*(minimum+places+probes))
	if long {
		without := services[1].calls.Load()
		t.Logf("%d calls without a budget", without)
		require.LessOrEqual(t, with.calls.Load()*10, without)
	}
	require.Positive(t, with.calls.Load())
	rig.WaitFor(t, "the budget to open", func() bool { return !budget.Closed() })
}

const neverReturns = "Handler does not return: use Watermill's Timeout"

// Given two handlers that do not return, then each is named once, while a third one works on.
// When they return, their messages are acked.
func TestHandlerThatNeverReturnsIsNamed(t *testing.T) {
	t.Parallel()
	release, quick := make(chan struct{}), make(chan struct{}, 100)
	handler := func(msg *message.Message) ([]*message.Message, error) {
		if string(msg.Payload) == "quick" {
			quick <- struct{}{}
			return nil, nil
		}
		<-release
		return nil, nil
	}
	r := rig.Start(t, rig.Config{
		Policy:            rig.Quickly(1),
		SubscriberOptions: append(rig.InFlight(3), topology.WithHandlerWarning(time.Second)),
		// Timeout replaces the context of the message meanwhile.
		Handler: rig.Inside(handler, wmiddleware.Timeout(time.Minute)),
	})
	for _, id := range []string{"id-1", "id-2"} {
		r.Publish(amqp.Publishing{Body: []byte("stuck"), MessageId: id})
	}
	rig.WaitFor(t, "both to be named while quick ones go on", func() bool {
		r.Publish(amqp.Publishing{Body: []byte("quick"), MessageId: "id-quick"})
		<-quick
		return r.Logs.Said(neverReturns) >= 2
	})
	// The ticker of the warning comes four times in this time.
	begun := time.Now()
	rig.WaitFor(t, "1.5 s", func() bool { return time.Since(begun) > 1500*time.Millisecond })
	close(release)
	r.RequireNothingLeft(0)

	require.Equal(t, 2, r.Logs.Said(neverReturns))
	require.Empty(t, r.Logs.About("id-quick"))
	for _, id := range []string{"id-1", "id-2"} {
		lines := r.Logs.About(id)
		require.Len(t, lines, 1)
		require.Equal(t, "handler", lines[0].Fields["handler"])
		require.Equal(t, r.Queue, lines[0].Fields["queue"])
		require.Equal(t, 1, lines[0].Fields["attempt"])
		require.GreaterOrEqual(t, lines[0].Fields["held"], time.Second)
		require.ErrorContains(t, lines[0].Err, `handler "handler" has had the message for 1`)
	}
}

func TestHandlerWarningCanBeLeftOut(t *testing.T) {
	t.Parallel()
	release, entered := make(chan struct{}), make(chan struct{})
	r := rig.Start(t, rig.Config{
		Policy:            rig.Quickly(1),
		SubscriberOptions: []topology.SubscriberOption{topology.WithHandlerWarning(0)},
		Handle: func(*message.Message) error {
			close(entered)
			<-release
			return nil
		},
	})
	r.Send("order")
	<-entered
	select {
	case <-time.After(300 * time.Millisecond):
	case <-t.Context().Done():
	}
	close(release)
	r.RequireNothingLeft(0)
	require.Zero(t, r.Logs.Said(neverReturns))
	_, err := r.Client.NewSubscriber(rig.QueueConfig(r.URL), topology.WithHandlerWarning(-time.Second))
	require.ErrorContains(t, err, "WithHandlerWarning: -1s is negative")
}

// Given a handler that works for longer than the consumer timeout, then its context ends,
// because the broker delivers the message again. The queue goes on at once: from 4.3 on a late
// ack would keep the next message away for another timeout (F33).
func TestHandlerBeyondTheConsumerTimeoutStopsNothing(t *testing.T) {
	t.Parallel()
	const timeout = 3 * time.Second
	node := testbroker.Private(t, testbroker.WithConsumerTimeout(timeout, timeout/6))
	told, handled := make(chan struct{}, 10), make(chan string, 100)
	first := true
	r := rig.Start(t, rig.Config{
		URL: node.URL(), Queue: "orders", Policy: backoff.List{time.Second},
		Configure: func(cfg *wamqp.Config) { rig.QuorumQueue(cfg); rig.Prefetch(1)(cfg) },
		Handle: func(msg *message.Message) error {
			if first { // One handler runs at a time.
				first = false
				<-msg.Context().Done()
				told <- struct{}{}
				return nil // Its ack comes late.
			}
			handled <- string(msg.Payload)
			return nil
		},
	})
	r.Send("slow", "next", "last")
	begun := time.Now()
	rig.Await(t, told)
	for seen := map[string]bool{}; len(seen) < 3; {
		seen[rig.Await(t, handled)] = true
	}
	require.Less(t, time.Since(begun), timeout+rig.Ceiling)
	r.Stop()
	require.Zero(t, r.Depth(""))
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
