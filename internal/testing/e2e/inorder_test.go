package e2e_test

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/peer"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/inorder"
)

// keyOf is the key of a message in these tests: the body up to the colon.
func keyOf(msg *message.Message) string {
	key, _, _ := strings.Cut(string(msg.Payload), ":")
	return key
}

// bodies of messages, in the order of their handling.
type bodies struct {
	mu   sync.Mutex
	done []string
}

func (j *bodies) add(body string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.done = append(j.done, body)
}

// handle handles a message.
func (j *bodies) handle(msg *message.Message) error {
	j.add(string(msg.Payload))
	return nil
}

// of returns the bodies of a key, in the order in which they were handled.
func (j *bodies) of(key string) (of []string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, body := range j.done {
		if strings.HasPrefix(body, key+":") {
			of = append(of, body)
		}
	}
	return of
}

func (j *bodies) len() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.done)
}

// ofKey returns the bodies of n messages of a key.
func ofKey(key string, n int) (of []string) {
	for i := range n {
		of = append(of, key+":"+strconv.Itoa(i))
	}
	return of
}

var errNotYet = errors.New("not yet")

// orderedBy is a service that handles its queue in order.
func orderedBy(
	in inorder.Strategy, policy backoff.Policy, handle func(*message.Message) error,
) rig.Config {
	if in.KeyBy == nil {
		in.KeyBy = keyOf
	}
	return rig.Config{
		Strategy: in, Policy: policy, Handle: handle,
		Configure: func(cfg *wamqp.Config) {
			rig.QuickReconnect(cfg)
			cfg.Queue.Arguments = rig.OneActive()
		},
		SubscriberOptions: []topology.SubscriberOption{topology.WithConcurrency(8)},
	}
}

// inMemory is a service on the queue orders of a peer.
func inMemory(broker *peer.Server, c rig.Config) rig.Config {
	c.URL, c.Queue, c.Keep = broker.URL(), "orders", true
	return c
}

// often is a policy that does not give up within a test.
func often(interval time.Duration) backoff.Policy {
	return backoff.Constant{Interval: interval, Retries: 500}
}

// Given messages of two keys, when the first message of one fails until the messages of the other
// are handled, then those are handled, and its own later messages wait behind it.
func TestAFailedMessageIsNotOvertakenByItsKey(t *testing.T) {
	t.Parallel()
	rig.Each(t, map[string]amqp.Table{
		"quorum": rig.OneActive(), "classic": {"x-single-active-consumer": true},
	}, func(t *testing.T, arguments amqp.Table) {
		var handled bodies
		c := orderedBy(inorder.Strategy{}, often(100*time.Millisecond),
			func(msg *message.Message) error {
				if string(msg.Payload) == "a:0" && len(handled.of("b")) < 20 {
					return errNotYet
				}
				return handled.handle(msg)
			})
		c.Configure = rig.WithQueue(arguments)
		r := rig.Start(t, c)
		var sent []string
		for i := range 20 {
			sent = append(sent, "a:"+strconv.Itoa(i), "b:"+strconv.Itoa(i))
		}
		r.Send(sent...)
		rig.WaitFor(t, "all messages are handled", func() bool { return handled.len() == 40 })
		require.Equal(t, ofKey("a", 20), handled.of("a"))
		r.RequireNothingLeft(0)
	})
}

// Given messages that wait in the line, when their process stops, loses its connection, or another
// begins, then the next one hands them out in their order, with a higher fencing token.
func TestTheNextProcessKeepsTheOrder(t *testing.T) {
	t.Parallel()
	url := testbroker.URL(t)
	for name, end := range map[string]func(first *rig.Service, proxy *testbroker.Proxy){
		"stops":      func(first *rig.Service, _ *testbroker.Proxy) { first.Stop() },
		"is cut off": func(_ *rig.Service, proxy *testbroker.Proxy) { proxy.Cut() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var handled, tried bodies
			var open atomic.Bool
			var epochs sync.Map
			c := orderedBy(inorder.Strategy{}, often(200*time.Millisecond),
				func(msg *message.Message) error {
					tried.add(string(msg.Payload))
					epochs.Store(middleware.StateOf(msg.Context()).Epoch, true)
					if string(msg.Payload) == "a:0" && !open.Load() {
						return errNotYet
					}
					return handled.handle(msg)
				})
			proxy := testbroker.NewProxy(t, url)
			c.URL, c.AdminURL, c.Queue = proxy.URL(), url, testbroker.Queue(t)
			first := rig.Start(t, c)
			c.URL = url
			second := rig.Start(t, c)
			second.Send(ofKey("a", 30)...)
			rig.WaitFor(t, "the first message fails", func() bool { return tried.len() > 1 })
			end(first, proxy)
			second.Send("a:30", "b:0")
			rig.WaitFor(t, "the next process leads", func() bool { return len(handled.of("b")) == 1 })
			require.Empty(t, handled.of("a"))
			open.Store(true)
			want := ofKey("a", 31)
			rig.WaitFor(t, "all messages are handled", func() bool {
				return slices.Contains(handled.of("a"), want[30])
			})
			next := 0 // the cut may repeat a message and those behind it, in their order
			for _, body := range handled.of("a") {
				n := slices.Index(want, body)
				require.LessOrEqual(t, n, next, "%s is early in %v", body, handled.of("a"))
				next = n + 1
			}
			n := 0
			epochs.Range(func(any, any) bool { n++; return true })
			require.Greater(t, n, 1, "the fencing token has not changed")
			first.Stop()
			second.RequireNothingLeft(0)
		})
	}
}

// Given a line with room for three messages, when a key with many more waits, then the rest stays
// in the queue, and everything is handled in its order.
func TestAFullLinePausesTheQueue(t *testing.T) {
	t.Parallel()
	var handled bodies
	var open atomic.Bool
	r := rig.Start(t, orderedBy(inorder.Strategy{MaxWaiting: 3}, often(time.Second),
		func(msg *message.Message) error {
			if string(msg.Payload) == "a:0" && !open.Load() {
				return errNotYet
			}
			return handled.handle(msg)
		}))
	r.Send("a:0", "a:1", "a:2", "b:0")
	r.Send(ofKey("a", 400)[3:]...)
	rig.WaitFor(t, "the queue is paused", func() bool { return r.Depth("") > 100 })
	require.Equal(t, []string{"b:0"}, handled.of("b"))
	require.Empty(t, handled.of("a"))
	open.Store(true)
	rig.WaitFor(t, "all messages are handled", func() bool { return handled.len() == 401 })
	require.Equal(t, ofKey("a", 400), handled.of("a"))
}

// Given a consumer timeout that is shorter than the wait, then the messages of the line are given
// back in time and come again: nothing is handled twice or out of its order.
func TestTheLineOutlastsTheConsumerTimeout(t *testing.T) {
	t.Parallel()
	var handled, tried bodies
	policy := backoff.List{5 * time.Second}
	c := orderedBy(inorder.Strategy{}, policy, func(msg *message.Message) error {
		tried.add(string(msg.Payload))
		if len(tried.of("a")) == 1 {
			return errNotYet
		}
		return handled.handle(msg)
	})
	c.ClientOptions = []topology.Option{topology.WithConfirmTimeout(time.Second)}
	c.SubscriberOptions = append(c.SubscriberOptions, topology.WithConsumerTimeout(5*time.Second))
	r := rig.Start(t, c)
	r.Send(ofKey("a", 10)...)
	rig.WaitFor(t, "all messages are handled", func() bool { return handled.len() == 10 })
	require.Equal(t, append([]string{"a:0"}, ofKey("a", 10)...), tried.of("a"))
	r.RequireNothingLeft(0)
}

// Given a message whose handler ends the process each time, then it becomes a dead letter, and the
// later messages of its key are handled in their order.
func TestAMessageThatEndsTheProcessIsFoundInOrder(t *testing.T) {
	t.Parallel()
	url, queue := testbroker.URL(t), testbroker.Queue(t)
	strategy := inorder.Strategy{KeyBy: keyOf}
	rig.RemovePlan(t, url, strategy, queue, []time.Duration{time.Second})
	rig.DeclareQueue(t, url, queue, rig.OneActive())
	for _, body := range append(ofKey("a", 10), ofKey("b", 10)...) {
		rig.Publish(t, url, "", queue, rig.Message(body))
	}
	var handled bodies
	c := rig.Config{
		URL: url, Queue: queue, Strategy: strategy, Configure: rig.WithQueue(rig.OneActive()),
	}
	over := make(chan struct{})
	deaths := 0
	for running := true; running; {
		m := rig.StartMortal(t, c, 8,
			func(m *rig.Mortal, msg *message.Message) error {
				body := string(msg.Payload)
				if body == "a:1" {
					m.Die()
				}
				if !m.Alive(func() { handled.add(body) }) {
					return rig.ErrDead
				}
				if len(first(handled.of("a")))+len(first(handled.of("b"))) == 19 {
					close(over)
				}
				return nil
			})
		select {
		case <-m.Dead:
			deaths++
			require.Less(t, deaths, 15, "the process ends without end")
		case <-over:
			running = false
		case <-time.After(rig.Patience):
			t.Fatalf("stands still after %d deaths: %v", deaths, handled.done)
		}
	}
	t.Logf("%d deaths", deaths)
	dead := rig.Take(t, url, queue+".dlq")
	require.Equal(t, "a:1", string(dead.Body))
	require.Equal(t, "crash_loop", dead.Headers[header.DeadReason])
	require.Equal(t, append([]string{"a:0"}, ofKey("a", 10)[2:]...), first(handled.of("a")))
	require.Equal(t, ofKey("b", 10), first(handled.of("b")))
}

// Given processes that have ended repeatedly, then the messages that they had in hand are handled
// side by side again once some of them were handled in peace.
func TestMessagesAreTriedTogether(t *testing.T) {
	t.Parallel()
	rig.Virtually(t, func(t *testing.T, broker *peer.Server) {
		const messages, together = 200, 3
		c := inMemory(broker, orderedBy(inorder.Strategy{}, nil, nil))
		start := func(handle func(*rig.Mortal, *message.Message) error) *rig.Mortal {
			return rig.StartMortal(t, c, 8, handle)
		}
		for i := range 3 {
			m := start(func(m *rig.Mortal, _ *message.Message) error {
				m.Die()
				return rig.ErrDead
			})
			if i == 0 {
				rig.Fill(t, broker.URL(), "orders", messages)
			}
			<-m.Dead
		}
		var atOnce, handled, soonest atomic.Int32
		soonest.Store(10 * messages)
		start(func(*rig.Mortal, *message.Message) error {
			if atOnce.Add(1) == together && soonest.Load() > handled.Load() {
				soonest.Store(handled.Load())
			}
			time.Sleep(50 * time.Millisecond) // so that others may begin meanwhile
			atOnce.Add(-1)
			handled.Add(1)
			return nil
		})
		rig.WaitFor(t, "all messages are handled", func() bool { return handled.Load() >= messages })
		require.Less(t, soonest.Load(), int32(messages/2))
	})
}

// Given connections that are cut again and again, then messages are still handled side by side:
// the process has not ended.
func TestCutConnectionsAreNoCrashes(t *testing.T) {
	t.Parallel()
	url := testbroker.URL(t)
	var handled bodies
	together := make(chan struct{})
	proxy := testbroker.NewProxy(t, url)
	c := orderedBy(inorder.Strategy{}, often(10*time.Millisecond), func(msg *message.Message) error {
		if strings.HasPrefix(string(msg.Payload), "last") {
			select { // the other key's handler meets this one
			case together <- struct{}{}:
			case <-together:
			case <-msg.Context().Done():
			}
		}
		return handled.handle(msg)
	})
	c.URL, c.AdminURL = proxy.URL(), url
	r := rig.Start(t, c)
	for i := range 6 {
		key := strconv.Itoa(i)
		rig.Publish(t, url, "", r.Queue, rig.Message(key+":0"))
		rig.WaitFor(t, "the message is handled", func() bool { return len(handled.of(key)) > 0 })
		proxy.Cut()
	}
	rig.Publish(t, url, "", r.Queue, rig.Message("last1:0"))
	rig.Publish(t, url, "", r.Queue, rig.Message("last2:0"))
	rig.WaitFor(t, "two messages are handled side by side", func() bool {
		return len(handled.of("last1")) > 0 && len(handled.of("last2")) > 0
	})
}

// first returns each body where it stands first. A message whose ack was lost is handled again.
func first(all []string) (of []string) {
	seen := map[string]bool{}
	for _, body := range all {
		if !seen[body] {
			seen[body], of = true, append(of, body)
		}
	}
	return of
}

// Messages without a key have no order. A KeyBy that panics, a message that cannot be decoded, an
// outer middleware that fails, and a handler that settles by itself hold up nothing but their
// message and its key.
func TestFunctionsThatFailHoldUpNoKey(t *testing.T) {
	t.Parallel()
	rig.Virtually(t, func(t *testing.T, broker *peer.Server) {
		var handled bodies
		var nacks, failures atomic.Int32
		c := inMemory(broker, orderedBy(inorder.Strategy{KeyBy: func(msg *message.Message) string {
			switch key := keyOf(msg); key {
			case "panic":
				panic("no key")
			case "x":
				return ""
			default:
				return key
			}
		}}, often(50*time.Millisecond), func(msg *message.Message) error {
			switch body := string(msg.Payload); {
			case body == "x:0" && len(handled.of("x")) < 9:
				return errNotYet
			case body == "acked:0":
				msg.Ack()
				return errNotYet
			case body == "nacked:0" && nacks.Add(1) == 1:
				msg.Nack()
				return nil
			}
			return handled.handle(msg)
		}))
		c.Outer = []message.HandlerMiddleware{func(next message.HandlerFunc) message.HandlerFunc {
			return func(msg *message.Message) ([]*message.Message, error) {
				if string(msg.Payload) == "outer:0" && failures.Add(1) < 4 {
					return nil, errNotYet
				}
				return next(msg)
			}
		}}
		configure := c.Configure
		c.Configure = func(cfg *wamqp.Config) {
			configure(cfg)
			rig.Picky(cfg)
		}
		r := rig.Start(t, c)
		r.Send("panic:0", "refuse", "panic:1")
		keys := []string{"x", "acked", "nacked", "outer", "other"}
		for _, key := range keys {
			r.Send(ofKey(key, 10)...)
		}
		time.Sleep(time.Minute)
		require.Len(t, handled.of("panic"), 2)
		require.Len(t, handled.of("x"), 10)
		require.Equal(t, "x:0", handled.of("x")[9], "without a key the failed message holds up no other")
		require.Equal(t, ofKey("acked", 10)[1:], handled.of("acked"))
		for _, key := range keys[2:] {
			require.Equal(t, ofKey(key, 10), handled.of(key))
		}
		rig.RequireDead(t, r.DeadLetter(), "undecodable", "0")
		require.Equal(t, 1, r.Logs.Said("KeyBy of inorder.Strategy has panicked"))
		r.RequireNothingLeft(0)
	})
}

// quitter is a marshaler that ends its goroutine at one message.
type quitter struct{ wamqp.Marshaler }

func (q quitter) Unmarshal(d amqp.Delivery) (*message.Message, error) {
	if string(d.Body) == "quit marshaler" {
		runtime.Goexit()
	}
	return q.Marshaler.Unmarshal(d)
}

// A function of the user that ends its goroutine stops nothing but its message.
func TestFunctionsThatEndTheirGoroutineHoldUpNoKey(t *testing.T) {
	t.Parallel()
	rig.Virtually(t, func(t *testing.T, broker *peer.Server) {
		var handled bodies
		var ended atomic.Bool
		c := inMemory(broker, orderedBy(inorder.Strategy{KeyBy: func(msg *message.Message) string {
			if string(msg.Payload) == "quit key" {
				runtime.Goexit()
			}
			return keyOf(msg)
		}}, often(100*time.Millisecond), handled.handle))
		configure := c.Configure
		c.Configure = func(cfg *wamqp.Config) {
			configure(cfg)
			cfg.Marshaler = quitter{cfg.Marshaler}
		}
		c.ClientOptions = []topology.Option{topology.WithObserver(middleware.ObserverFunc(
			func(_ context.Context, e middleware.Event) {
				if e.Kind == middleware.EventHandled && ended.CompareAndSwap(false, true) {
					runtime.Goexit()
				}
			}))}
		rig.Start(t, c).Send("a:0", "quit marshaler", "a:1", "quit key", "a:2")
		time.Sleep(time.Minute)
		require.True(t, ended.Load(), "the observer")
		require.Equal(t, ofKey("a", 3), first(handled.of("a")))
	})
}

// Subscribe refuses what cannot be handled in order, and says the way out.
func TestWhatCannotBeHandledInOrderIsRefused(t *testing.T) {
	t.Parallel()
	low := rig.OneActive()
	low["x-delivery-limit"] = int32(19)
	type testCase struct {
		strategy  inorder.Strategy
		arguments amqp.Table
		option    topology.SubscriberOption
	}
	ordered, one := inorder.Strategy{KeyBy: keyOf}, topology.WithConcurrency(1)
	for want, c := range map[string]testCase{
		"x-single-active-consumer true":   {ordered, amqp.Table{"x-queue-type": "quorum"}, one},
		"has no KeyBy":                    {inorder.Strategy{}, rig.OneActive(), one},
		"x-delivery-limit of at least 20": {ordered, low, one},
		"gives messages back out of their order": {
			ordered, rig.OneActive(), topology.WithOldInstances(),
		},
	} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			url, queue := testbroker.URL(t), testbroker.Queue(t)
			cfg := rig.QueueConfig(url)
			cfg.Queue.Arguments = c.arguments
			sub, err := rig.OpenClient(t, url, c.strategy).NewSubscriberWithoutRetry(cfg, c.option)
			require.NoError(t, err)
			rig.RemovePlan(t, url, c.strategy, queue, nil)
			_, err = sub.Subscribe(t.Context(), queue)
			require.ErrorContains(t, err, want)
		})
	}
}
