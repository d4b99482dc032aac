package e2e_test

import (
	"errors"
	"strconv"
	"strings"
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
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/inorder"
)

// handler handles everything but a:0, which fails until it is opened, and hang:0, which hangs.
type handler struct {
	bodies
	open, failed, hangs atomic.Bool
	hang                chan struct{}
	touch               atomic.Pointer[func()] // runs once, right before a:0 fails
}

func newHandler() *handler { return &handler{hang: make(chan struct{})} }

func (h *handler) handle(msg *message.Message) error {
	body := string(msg.Payload)
	switch {
	case body == "a:0" && !h.open.Load():
		h.failed.Store(true)
		if touch := h.touch.Swap(nil); touch != nil {
			(*touch)()
		}
		return errNotYet
	case strings.HasPrefix(body, "hang:"):
		h.hangs.Store(true)
		<-h.hang
	}
	h.add(body)
	return nil
}

// A person may purge or delete the queues of a process that leads: it goes on. The leader stores a
// copy right afterwards. If it declared the line again at once, RabbitMQ 3.10 would leave the
// consumers of both processes deaf (F54).
func TestTheQueuesOfALeaderAreTouched(t *testing.T) {
	t.Parallel()
	remove := func(suffix string) func(*amqp.Channel, string) error {
		return func(ch *amqp.Channel, queue string) error {
			_, err := ch.QueueDelete(queue+suffix, false, false, false)
			return err
		}
	}
	for name, c := range map[string]struct {
		touch func(ch *amqp.Channel, queue string) error
		lost  bool // the messages in the line
	}{
		"the line is deleted":  {remove(".line"), true},
		"the queue is deleted": {remove(""), false},
		"the line is purged": {func(ch *amqp.Channel, queue string) error {
			_, err := ch.QueuePurge(queue+".line", false)
			return err
		}, false},
		"both are deleted": {func(ch *amqp.Channel, queue string) error {
			return errors.Join(remove(".line")(ch, queue), remove("")(ch, queue))
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHandler()
			cfg := orderedBy(inorder.Strategy{}, often(100*time.Millisecond), h.handle)
			r := rig.Start(t, cfg)
			cfg.Queue = r.Queue
			passive := rig.Start(t, cfg)
			r.Send(ofKey("a", 5)...)
			operator := rig.OpenOperator(t, r.URL)
			rig.WaitFor(t, "the key is in the line", func() bool {
				line, err := operator.Order(t.Context(), r.Plan)
				return err == nil && line.Messages == 5
			})
			ch := testbroker.Channel(t, r.URL)
			touched := make(chan error, 1)
			touch := func() { touched <- c.touch(ch, r.Queue) }
			h.touch.Store(&touch)
			require.NoError(t, <-touched)
			again, limit := time.NewTicker(200*time.Millisecond), time.After(30*time.Second)
			defer again.Stop()
			for len(h.of("b")) == 0 { // a message that comes before the queue is back is lost
				_ = ch.PublishWithContext(t.Context(), "", r.Queue, false, false, rig.Message("b:0"))
				select {
				case <-again.C:
				case <-limit:
					t.Fatal("other keys are not handled")
				}
			}
			h.open.Store(true)
			if !c.lost {
				within(t, 30*time.Second, "the key is handled", func() bool { return len(h.of("a")) >= 5 })
				require.Equal(t, ofKey("a", 5), first(h.of("a")))
			}
			r.Send("a:5")
			within(t, 30*time.Second, "the key goes on", func() bool {
				return len(h.of("a")) > 0 && h.of("a")[len(h.of("a"))-1] == "a:5"
			})
			for _, s := range []*rig.Service{r, passive} {
				require.Zero(t, s.Logs.Said("its lease could not be renewed"), "the broker tells the leader")
			}
		})
	}
}

// Given a broker that leaves the consumers of a queue deaf that is back at once (F54), when both
// queues vanish right before the leader stores a copy, then they stay away until their consumers
// know, and two seconds later the queue is handled. If the consumer of the process that stands by
// were deaf, and the active one, nothing would be handled until that process ends.
func TestBothQueuesOfALeaderVanish(t *testing.T) {
	t.Parallel()
	rig.Virtually(t, func(t *testing.T, broker *peer.Server) {
		h := newHandler()
		cfg := inMemory(broker, orderedBy(inorder.Strategy{}, often(100*time.Millisecond), h.handle))
		leader := rig.Start(t, cfg)
		rig.Start(t, cfg)
		vanished := make(chan time.Time, 1)
		touch := func() {
			broker.Vanish("orders.line", "orders")
			vanished <- time.Now()
		}
		h.touch.Store(&touch)
		leader.Send("a:0")
		ch := testbroker.Channel(t, broker.URL())
		for at := <-vanished; len(h.of("b")) == 0; <-time.After(100 * time.Millisecond) {
			require.Less(t, time.Since(at), 2*time.Second, "other keys are not handled")
			_ = ch.PublishWithContext(t.Context(), "", "orders", false, false, rig.Message("b:0"))
		}
	})
}

// Given a handler that hangs, when the process loses the line, then other keys go on.
func TestAHandlerThatHangsAndALineThatIsLost(t *testing.T) {
	t.Parallel()
	h := newHandler()
	cfg := orderedBy(inorder.Strategy{}, often(100*time.Millisecond), h.handle)
	r := rig.Start(t, cfg)
	t.Cleanup(func() { close(h.hang) })
	r.Send("hang:0")
	rig.WaitFor(t, "the handler hangs", h.hangs.Load)
	r.Send("b:0")
	rig.WaitFor(t, "another key is handled", func() bool { return len(h.of("b")) == 1 })
	rig.DeleteQueue(t, r.URL, r.Queue+".line")
	r.Send("b:1")
	within(t, 40*time.Second, "another key goes on", func() bool { return len(h.of("b")) >= 2 })
}

// Close returns within its time in each state of the process.
func TestCloseInEachState(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		until func(r *rig.Service, h *handler) bool
		hangs bool
	}{
		"at once": {until: func(*rig.Service, *handler) bool { return true }},
		"while the queue is opened": {until: func(r *rig.Service, _ *handler) bool {
			return r.Logs.Said("Consuming in order") > 0
		}},
		"while it leads": {until: func(_ *rig.Service, h *handler) bool { return h.failed.Load() }},
		"while a handler hangs": {
			until: func(_ *rig.Service, h *handler) bool { return h.hangs.Load() }, hangs: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHandler()
			cfg := orderedBy(inorder.Strategy{}, often(100*time.Millisecond), h.handle)
			cfg.SubscriberOptions = append(cfg.SubscriberOptions, topology.WithDrainTimeout(2*time.Second))
			r := rig.Start(t, cfg)
			cfg.Queue = r.Queue
			passive := rig.Start(t, cfg)
			r.Send(ofKey("a", 50)...)
			if c.hangs {
				r.Send("hang:0", "hang:1")
				time.AfterFunc(10*time.Second, func() { close(h.hang) })
			}
			rig.WaitFor(t, "the state", func() bool { return c.until(r, h) || c.until(passive, h) })
			began := time.Now()
			passive.Stop()
			if !c.hangs {
				r.Stop()
			} else {
				require.NoError(t, r.Subscriber.Close())
			}
			require.Less(t, time.Since(began), 15*time.Second)
			h.open.Store(true)
			next := rig.Start(t, cfg)
			within(t, 40*time.Second, "the next process handles everything", func() bool {
				return len(first(h.of("a"))) == 50
			})
			require.Equal(t, ofKey("a", 50), first(h.of("a")))
			next.Stop()
		})
	}
}

// Given a handler that hangs at the only place, and a message that waits for the place, when the
// process loses the queue, then it gives the lead away, and another process goes on.
func TestALeaderWithoutAFreePlaceLosesItsQueue(t *testing.T) {
	t.Parallel()
	rig.Virtually(t, func(t *testing.T, broker *peer.Server) {
		h := newHandler()
		cfg := inMemory(broker, orderedBy(inorder.Strategy{}, often(100*time.Millisecond), h.handle))
		cfg.SubscriberOptions = []topology.SubscriberOption{topology.WithConcurrency(1)}
		leader := rig.Start(t, cfg)
		rig.Start(t, cfg)
		t.Cleanup(func() { close(h.hang) })
		leader.Send("hang:0")
		time.Sleep(time.Second)
		require.True(t, h.hangs.Load())
		leader.Send("b:0")
		time.Sleep(time.Second)
		broker.Vanish("orders")
		time.Sleep(15 * time.Second) // the patience with handlers, and the pauses of both processes
		leader.Send("b:1")
		time.Sleep(time.Second)
		require.Equal(t, []string{"b:1"}, h.of("b"))
	})
}

// Given a message in the line, when a process takes the lead, then it handles the message while it
// opens the queue.
func TestTheLineBeginsBeforeTheQueue(t *testing.T) {
	t.Parallel()
	rig.Virtually(t, func(t *testing.T, broker *peer.Server) {
		h := newHandler()
		cfg := inMemory(broker, orderedBy(inorder.Strategy{}, often(time.Minute), h.handle))
		before := rig.Start(t, cfg)
		before.Send("a:0")
		time.Sleep(time.Second)
		before.Stop()
		time.Sleep(time.Minute)
		h.open.Store(true)
		rig.Start(t, cfg)
		time.Sleep(time.Second)
		require.Equal(t, []string{"a:0"}, h.of("a"))
	})
}

// Given a delivery limit, when the leader loses its connection again and again, then no message
// is lost, and the order is kept.
func TestManyTakeoversUnderADeliveryLimit(t *testing.T) {
	t.Parallel()
	for _, limit := range []int32{20, 1 << 30} {
		t.Run(strconv.Itoa(int(limit)), func(t *testing.T) {
			t.Parallel()
			url := testbroker.URL(t)
			h := newHandler()
			proxy := testbroker.NewProxy(t, url)
			slow := func(msg *message.Message) error {
				time.Sleep(10 * time.Millisecond)
				return h.handle(msg)
			}
			cfg := orderedBy(inorder.Strategy{}, often(100*time.Millisecond), slow)
			h.open.Store(true)
			cfg.URL, cfg.AdminURL = proxy.URL(), url
			cfg.Configure = func(cfg *wamqp.Config) {
				rig.QuickReconnect(cfg)
				cfg.Queue.Arguments = rig.OneActive()
				cfg.Queue.Arguments["x-delivery-limit"] = limit
			}
			r := rig.Start(t, cfg)
			const n = 500
			r.URL = url
			r.Send(ofKey("a", n)...)
			for range 25 {
				have := h.len()
				rig.WaitFor(t, "it goes on", func() bool { return h.len() > have+3 || h.len() >= n })
				proxy.Cut()
			}
			rig.WaitFor(t, "all are handled", func() bool { return len(first(h.of("a"))) >= n })
			require.Equal(t, ofKey("a", n), first(h.of("a")))
			require.Zero(t, r.Depth(".dlq"))
		})
	}
}

// Given a message that has waited in the line for longer than a delivery may be held, when its copy
// cannot be stored at the first try, then it is tried again: that is no outage.
func TestALongWaitLeavesTimeToHandOver(t *testing.T) {
	t.Parallel()
	rig.Virtually(t, func(t *testing.T, broker *peer.Server) {
		proxy := testbroker.NewProxy(t, broker.URL())
		var handled bodies
		cfg := inMemory(broker, orderedBy(inorder.Strategy{}, backoff.List{40 * time.Minute, time.Second},
			func(msg *message.Message) error {
				switch middleware.Attempt(msg.Context()) {
				case 1:
					return errNotYet
				case 2:
					proxy.Cut()
					return errNotYet
				}
				return handled.handle(msg)
			}))
		cfg.PublisherURL = proxy.URL()
		r := rig.Start(t, cfg)
		r.Send("a:0")
		time.Sleep(45 * time.Minute)
		require.Equal(t, 1, handled.len())
		require.Zero(t, r.Logs.Said("Messages could not be stored for as long as a delivery may be held"))
	})
}
