package e2e_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/peer"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
)

// ahead is a service with one handler. Its copies are published through a proxy of their own.
type ahead struct {
	*rig.Service
	t         *testing.T
	url       string // past the proxies
	sub, pub  *testbroker.Proxy
	handlers  *rig.Calls
	handOvers *events
}

// startAhead starts a service all of whose messages fail, unless its handler says otherwise.
func startAhead(
	t *testing.T, broker *peer.Server, prefetch, concurrency int, handle message.NoPublishHandlerFunc,
) *ahead {
	t.Helper()
	url := broker.URL()
	a := &ahead{
		t: t, url: url, sub: testbroker.NewProxy(t, url), pub: testbroker.NewProxy(t, url),
		handlers: rig.NewCalls(), handOvers: &events{},
	}
	if handle == nil {
		handle = rig.Fail
	}
	a.pub.Tap(func(testbroker.Seen) testbroker.Fault { return testbroker.Fault{} })
	a.Service = rig.Start(t, rig.Config{
		URL: a.sub.URL(), PublisherURL: a.pub.URL(), Queue: "orders", Keep: true,
		Policy:    backoff.List{time.Hour},
		Configure: func(cfg *wamqp.Config) { rig.QuorumQueue(cfg); rig.QuickReconnect(cfg) },
		SubscriberOptions: []topology.SubscriberOption{
			topology.WithPrefetch(prefetch), topology.WithConcurrency(concurrency),
		},
		ClientOptions: []topology.Option{topology.WithConfirmTimeout(5 * time.Second)},
		RetryOptions:  []middleware.Option{middleware.WithObserver(a.handOvers)},
		Handle: func(msg *message.Message) error {
			defer a.handlers.Enter(string(msg.Payload))()
			return handle(msg)
		},
	})
	return a
}

func (a *ahead) depth(suffix string) int { return testbroker.Depth(a.t, a.url, a.Queue+suffix) }

// requireAllWait requires that each of n messages waits, and at most so many of them twice.
func (a *ahead) requireAllWait(n, twice int) {
	a.t.Helper()
	rig.WaitFor(a.t, "every message to wait", func() bool {
		ended := a.handOvers.handedOver()
		for _, e := range a.handOvers.seen() {
			if e.Kind == middleware.EventRequeued && e.Called { // or its connection ended before
				ended++
			}
		}
		return ended == a.handlers.Total() && a.handlers.Count() == n &&
			a.depth("") == 0 && a.depth(".wait.1h") >= n
	})
	a.Stop()
	require.Zero(a.t, a.depth(""), "unacked messages come back when the service ends")
	copies, waiting := map[string]int{}, a.depth(".wait.1h")
	require.LessOrEqual(a.t, waiting, n+twice)
	for range waiting {
		copies[string(rig.Take(a.t, a.url, a.Queue+".wait.1h").Body)]++
	}
	require.Len(a.t, copies, n, "lost")
	require.Zero(a.t, a.depth(".dlq"))
}

// Given one handler, when the confirms of failed messages do not come, then the next messages are
// handled meanwhile, until a confirm is late. With a prefetch of one no other message is handled.
// Nothing is acked, and no observer is told, before the confirms.
func TestAFailedMessageFreesItsPlaceBeforeItsConfirm(t *testing.T) {
	t.Parallel()
	for _, prefetch := range []int{5, 1} {
		t.Run(fmt.Sprint(prefetch), func(t *testing.T) {
			t.Parallel()
			rig.Virtually(t, func(t *testing.T, broker *peer.Server) {
				const messages = 12
				a := startAhead(t, broker, prefetch, 1, nil)
				a.pub.HoldConfirms(true)
				rig.Fill(t, a.url, a.Queue, messages)
				<-time.After(time.Second)
				require.Equal(t, prefetch, a.depth(".wait.1h"))
				require.Equal(t, prefetch, a.handlers.Total())
				require.Equal(t, 1, a.handlers.Peak(), "one handler at a time")
				require.Equal(t, messages-prefetch, a.depth(""), "nothing is acked")
				require.Zero(t, a.handOvers.handedOver(), "no observer is told")
				a.pub.HoldConfirms(false)
				a.requireAllWait(messages, 0)
				require.Equal(t, messages, a.handOvers.handedOver())
			})
		})
	}
}

// Given several copies that are written and not confirmed, when a connection ends or stops at that
// moment, then nothing is lost. Only copies whose outcome was unknown exist twice, so no more than
// the prefetch.
func TestFaultsBehindAFreedPlace(t *testing.T) {
	t.Parallel()
	const prefetch, messages = 8, 30
	heal := func(a *ahead) { a.pub.HoldConfirms(false) }
	rig.Each(t, map[string]func(*ahead){
		"the publishing connection ends": func(a *ahead) { a.pub.Cut(); heal(a) },
		"the consuming connection ends":  func(a *ahead) { a.sub.Cut(); heal(a) },
		"both connections end":           func(a *ahead) { a.pub.Cut(); a.sub.Cut(); heal(a) },
		"the publishing connection stops": func(a *ahead) {
			a.pub.Freeze(true)
			heal(a)
			rig.WaitFor(a.t, "the copies to be held", func() bool { return a.handOvers.failing(1) > 0 })
			a.pub.Freeze(false)
		},
		"the broker is out of reach": func(a *ahead) {
			cutOff(a.pub)
			cutOff(a.sub)
			heal(a)
			a.AwaitLine("Cannot reconnect to RabbitMQ")
			a.pub.Refuse(false)
			a.sub.Refuse(false)
		},
	}, func(t *testing.T, fault func(*ahead)) {
		rig.Virtually(t, func(t *testing.T, broker *peer.Server) {
			a := startAhead(t, broker, prefetch, 1, nil)
			a.pub.HoldConfirms(true)
			rig.Fill(t, a.url, a.Queue, messages)
			rig.WaitFor(t, "copies without confirms", func() bool { return a.depth(".wait.1h") > 1 })
			fault(a)
			a.requireAllWait(messages, prefetch)
		})
	})
}

// Given a service under load, when failed messages cannot be stored for a minute, then its handlers
// stop: no more start than run at once, beside those whose copies were on their way. The memory of
// the outage is bounded, because no more messages than the prefetch are in the process.
func TestHandlersStopDuringAnOutage(t *testing.T) {
	t.Parallel()
	const concurrency, prefetch, before, messages = 3, 12, 100, 150
	type testCase struct {
		begin, end func(*ahead)
		most       int // handlers that start during the outage
	}
	rig.Each(t, map[string]testCase{
		"there is no connection": {
			func(a *ahead) { cutOff(a.pub) }, func(a *ahead) { a.pub.Refuse(false) },
			concurrency + prefetch,
		},
		"no confirm comes": {
			func(a *ahead) { a.pub.HoldConfirms(true) }, func(a *ahead) { a.pub.HoldConfirms(false) },
			prefetch,
		},
		"nothing is read": {
			func(a *ahead) { a.pub.Freeze(true) }, func(a *ahead) { a.pub.Freeze(false) }, prefetch,
		},
	}, func(t *testing.T, c testCase) {
		rig.Virtually(t, func(t *testing.T, broker *peer.Server) {
			var out, held atomic.Bool
			var during, behind atomic.Int64
			a := startAhead(t, broker, prefetch, concurrency, func(msg *message.Message) error {
				if out.Load() {
					during.Add(1)
				}
				if held.Load() {
					behind.Add(1)
				}
				return rig.ErrFailed
			})
			rig.Fill(t, a.url, a.Queue, before)
			rig.WaitFor(t, "some to wait", func() bool { return a.depth(".wait.1h") > 10 })
			c.begin(a)
			out.Store(true)
			for i := range messages - before {
				rig.Publish(t, a.url, "", a.Queue, rig.Message(fmt.Sprint("during ", i)))
			}
			a.AwaitLine("Failed message cannot be handed over")
			held.Store(true)
			<-time.After(time.Minute)
			require.LessOrEqual(t, messages-a.depth("")-a.depth(".wait.1h"), prefetch, "in the process")
			require.LessOrEqual(t, int(during.Load()), c.most, "handlers have started")
			require.LessOrEqual(t, int(behind.Load()), concurrency, "behind a message that is held")
			out.Store(false)
			held.Store(false)
			c.end(a)
			a.requireAllWait(messages, prefetch)
		})
	})
}

const (
	lowered = "Messages wait long for their handler"
	raised  = "Handlers are quick again in this process"
)

// Given a prefetch that has fallen for slow handlers, when they need less than an eighth of the
// time that a delivery may be held for as many messages as the prefetch, then it rises after a
// quarter of that time. It does not rise between two slow messages, nor without a message.
func TestPrefetchRisesWhenHandlersAreQuickAgain(t *testing.T) {
	t.Parallel()
	rig.Virtually(t, func(t *testing.T, broker *peer.Server) {
		const prefetch, quarter = 16, (28*time.Minute + 30*time.Second) / 4
		var handling atomic.Int64
		handlers := rig.NewCalls()
		r := rig.Start(t, rig.Config{
			URL: broker.URL(), Policy: backoff.List{time.Second}, Configure: rig.QuorumQueue,
			Handle: func(msg *message.Message) error {
				defer handlers.Enter(string(msg.Payload))()
				<-time.After(time.Duration(handling.Load()))
				return nil
			},
		})
		handle := func(took, lasting time.Duration) {
			handling.Store(int64(took))
			<-time.After(lasting)
		}
		handling.Store(int64(3 * time.Minute))
		messages := prefetch
		rig.Fill(t, r.URL, r.Queue, messages)
		<-time.After(2 * time.Hour) // 48 minutes of messages, and none
		require.Equal(t, []int{1, 0}, []int{r.Logs.Said(lowered), r.Logs.Said(raised)})
		messages += 10000
		rig.Fill(t, r.URL, r.Queue, 10000)
		handle(15*time.Second, 2*time.Hour) // 16 of them are more than 3 min 33 s, and less than 7
		require.Equal(t, []int{1, 0}, []int{r.Logs.Said(lowered), r.Logs.Said(raised)})
		handle(10*time.Second, quarter-time.Minute)
		require.Zero(t, r.Logs.Said(raised), "not yet")
		handle(10*time.Second, 4*time.Minute)
		require.Equal(t, 1, r.Logs.Said(raised))
		require.Equal(t, prefetch, messages-handlers.Total()+1-r.Depth(""), "unacked")
		handle(15*time.Second, 2*time.Hour)
		require.Equal(t, []int{1, 1}, []int{r.Logs.Said(lowered), r.Logs.Said(raised)})
		handle(3*time.Minute, time.Hour)
		require.Equal(t, []int{2, 1}, []int{r.Logs.Said(lowered), r.Logs.Said(raised)})
		handling.Store(0)
		<-time.After(time.Hour)
		require.Equal(t, messages, handlers.Total(), "each once")
		r.RequireNothingLeft(0)
	})
}

// Given suspects with slow handlers, which wait for each other, then the prefetch does not fall,
// and all are handled once, although together they need more than the broker's consumer timeout.
// The other messages of the queue go on beside them.
func TestPrefetchStaysWhileSuspectsWaitInLine(t *testing.T) {
	t.Parallel()
	rig.Virtually(t, func(t *testing.T, broker *peer.Server) {
		const suspects, others = 15, 100
		queue := testbroker.Queue(t)
		handlers := rig.NewCalls()
		r := rig.Start(t, rig.Config{
			URL: broker.URL(), Queue: queue, Policy: backoff.List{time.Second},
			Configure: rig.QuorumQueue, SubscriberOptions: rig.InFlight(2),
			Handle: func(msg *message.Message) error {
				defer handlers.Enter(string(msg.Payload))()
				if middleware.StateOf(msg.Context()).Interruptions > 0 {
					<-time.After(3 * time.Minute)
				}
				return nil
			},
		})
		for i := range suspects {
			msg := rig.Named(fmt.Sprint("suspect ", i))
			msg.Headers = rig.Suspect(queue)
			r.Publish(msg)
		}
		rig.Fill(t, r.URL, r.Queue, others)
		<-time.After(2 * time.Minute)
		require.Equal(t, others+1, handlers.Count())
		<-time.After(time.Hour)
		require.Equal(t, suspects+others, handlers.Count())
		require.Equal(t, suspects+others, handlers.Total(), "each once")
		require.Zero(t, r.Logs.Said(lowered))
		require.Positive(t, r.Logs.Said("Suspects of a crash wait long for their turn"))
	})
}

// Given a prefetch of the user that leaves no room for hand-overs, when a message fails, then the
// log says once how to change that.
func TestNarrowPrefetchIsLoggedOnce(t *testing.T) {
	t.Parallel()
	rig.Virtually(t, func(t *testing.T, broker *peer.Server) {
		r := rig.Start(t, rig.Config{
			URL: broker.URL(), Queue: "orders", Keep: true, Policy: backoff.List{time.Hour},
			Configure: rig.Prefetch(2), SubscriberOptions: rig.InFlight(2), Handle: rig.Fail,
		})
		rig.Fill(t, r.URL, r.Queue, 10)
		rig.WaitFor(t, "all to wait", func() bool { return r.Depth(".wait.1h") == 10 })
		require.Equal(t, 1, r.Logs.Said("The prefetch limits the rate"))
	})
}

// Given a process whose copies are written and not confirmed, when it is killed, then nothing is
// lost. As many messages come twice as copies were unconfirmed, so no more than the prefetch.
func TestAKilledProcessLeavesAsManyDuplicatesAsWereUnconfirmed(t *testing.T) {
	t.Parallel()
	rig.Virtually(t, func(t *testing.T, broker *peer.Server) {
		const prefetch, messages, queue = 16, 40, "orders" // the default prefetch
		url := broker.URL()
		proxy := testbroker.NewProxy(t, url)
		proxy.Tap(func(testbroker.Seen) testbroker.Fault { return testbroker.Fault{} })
		process := rig.StartMortal(t, rig.Config{URL: proxy.URL(), Queue: queue}, 1,
			func(*rig.Mortal, *message.Message) error { return rig.ErrFailed })
		proxy.HoldConfirms(true)
		for i := range messages {
			rig.Publish(t, url, "", queue, rig.Message(fmt.Sprint(i)))
		}
		<-time.After(time.Second / 2)
		unconfirmed := testbroker.Depth(t, url, queue+".wait.1s")
		require.Greater(t, unconfirmed, 1)
		require.LessOrEqual(t, unconfirmed, prefetch)
		process.Die()
		rig.AwaitDepth(t, url, queue, messages+unconfirmed) // the copies have waited
		require.Zero(t, proxy.Live())
		copies := map[string]int{}
		for range messages + unconfirmed {
			copies[string(rig.Take(t, url, queue).Body)]++
		}
		require.Len(t, copies, messages, "lost")
	})
}
