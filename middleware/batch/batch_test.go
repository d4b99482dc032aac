package batch_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/peer"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/batch"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/middleware/middlewaretest"
)

func TestMain(m *testing.M) { testbroker.Main(m, func() error { return goleak.Find() }) }

var errBoom = errors.New("boom")

// calls records the batches of a handler, each with the time since the test began.
type calls struct {
	began time.Time
	mu    sync.Mutex
	all   []string
}

func record() *calls { return &calls{began: time.Now()} }

func (c *calls) succeed(messages []*message.Message) []error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, fmt.Sprintf("%d after %v", len(messages), time.Since(c.began)))
	return make([]error, len(messages))
}

func (c *calls) made() []string { c.mu.Lock(); defer c.mu.Unlock(); return c.all }

// send calls the handler for a message, as the router does, and returns its result later.
func send(handle message.NoPublishHandlerFunc, msg *message.Message) (result chan error) {
	result = make(chan error, 1)
	go func() { result <- handle(msg) }()
	synctest.Wait()
	return result
}

func order() *message.Message { return message.NewMessage("7", nil) }

func TestABatchIsHandledWhenItIsFullOrDue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := record()
		handle := batch.Handler(3, time.Second, c.succeed)
		var results []chan error
		for _, pause := range []time.Duration{
			0, 900 * time.Millisecond, 0, // full
			500 * time.Millisecond, 0, // due a second after its first, not with the time of the first batch
		} {
			time.Sleep(pause)
			results = append(results, send(handle, order()))
		}
		for _, result := range results {
			require.NoError(t, <-result)
		}
		require.Equal(t, []string{"3 after 900ms", "2 after 2.4s"}, c.made())
	})
}

func TestTheSmallestBatches(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		most   int
		within time.Duration
	}{"none": {0, time.Hour}, "one": {1, time.Hour}, "no time": {9, -1}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c := record()
				handle := batch.Handler(test.most, test.within, c.succeed)
				require.NoError(t, handle(order()))
				require.NoError(t, handle(order()))
				require.Equal(t, []string{"1 after 0s", "1 after 0s"}, c.made())
			})
		})
	}
}

// Given a batch in which one message fails once and one for good, then each has its own end, and
// the message that failed comes back alone after its delay.
func TestEachMessageHasItsOwnFate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, broker := record(), middlewaretest.NewBroker()
		broker.Sleep = time.Sleep
		retry, err := middleware.NewDelayedRetry(broker, backoff.List{10 * time.Second})
		require.NoError(t, err)
		handle := retry.Middleware(middlewaretest.Consumer(batch.Handler(3, time.Second,
			func(messages []*message.Message) []error {
				errs := c.succeed(messages)
				for i, msg := range messages {
					switch attempt := middleware.Attempt(msg.Context()); {
					case string(msg.Payload) == "invalid":
						errs[i] = middleware.Permanent(errBoom)
					case string(msg.Payload) == "late" && attempt == 1:
						errs[i] = errBoom
					}
				}
				return errs
			})))
		var mu sync.Mutex
		var wg sync.WaitGroup
		ends := map[string]string{}
		for _, payload := range []string{"good", "invalid", "late"} {
			wg.Go(func() {
				msg := middlewaretest.NewMessage(middleware.Delivery{Queue: "orders"}, []byte(payload))
				result := broker.Run(handle, msg)
				mu.Lock()
				defer mu.Unlock()
				ends[payload] = result.String()
			})
		}
		wg.Wait()
		require.Equal(t, map[string]string{
			"good":    "handled after 1 attempt",
			"invalid": "dead-lettered (permanent) after 1 attempt",
			"late":    "handled after 2 attempts, delays 10s",
		}, ends)
		require.Equal(t, []string{"3 after 0s", "1 after 11s"}, c.made())
	})
}

func TestABatchThatFailsAsAWhole(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		handle func([]*message.Message) []error
		want   string
	}{
		"panic":   {func([]*message.Message) []error { panic(errBoom) }, "panic: boom"},
		"too few": {func([]*message.Message) []error { return nil }, "0 results for 2 messages"},
		"too many": {
			func([]*message.Message) []error { return make([]error, 3) }, "3 results for 2 messages",
		},
		"goexit": {
			func([]*message.Message) []error { runtime.Goexit(); return nil }, "ended its goroutine",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				handle := batch.Handler(2, time.Second, test.handle)
				for _, result := range []chan error{send(handle, order()), send(handle, order())} {
					err := <-result
					require.ErrorContains(t, err, test.want)
					var panicked *middleware.PanicError
					require.Equal(t, name == "panic", errors.As(err, &panicked))
					require.Equal(t, name == "panic", errors.Is(err, errBoom))
				}
			})
		})
	}
}

// Given messages that wait for their batch, when the context of one ends, then it leaves, and the
// others are handled without it at their time. When it ends in the call, it waits for its result.
func TestAMessageThatEndsLeavesItsBatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, errCut := record(), errors.New("connection is lost")
		handle := batch.Handler(3, time.Second, c.succeed)
		ending := func(handle message.NoPublishHandlerFunc) (end func(), result chan error) {
			ctx, cancel := context.WithCancelCause(t.Context())
			msg := order()
			msg.SetContext(ctx)
			return func() { cancel(errCut) }, send(handle, msg)
		}
		endAlone, alone := ending(handle)
		endAlone()
		require.ErrorIs(t, <-alone, errCut)
		time.Sleep(2 * time.Second)
		require.Empty(t, c.made())

		endFirst, first := ending(handle)
		second := send(handle, order())
		endFirst()
		require.ErrorIs(t, <-first, errCut)
		third := send(handle, order())
		require.Empty(t, c.made(), "two of three are there")
		require.NoError(t, errors.Join(<-second, <-third))
		require.Equal(t, []string{"2 after 3s"}, c.made())

		endInCall, inCall := ending(batch.Handler(1, 0, func(messages []*message.Message) []error {
			<-messages[0].Context().Done()
			time.Sleep(time.Second)
			return []error{errBoom}
		}))
		endInCall()
		require.ErrorIs(t, <-inCall, errBoom)
		require.Equal(t, 4*time.Second, time.Since(c.began))
	})
}

// Given 80 messages and a concurrency of 8, when every tenth fails once, then 88 attempts are 22
// calls of 4 messages, and each message that failed has waited on its own.
func TestBatchesOnABroker(t *testing.T) {
	t.Parallel()
	const size, messages = 4, 80
	handled, failed := rig.NewCalls(), rig.NewCalls()
	var mu sync.Mutex
	var sizes []int
	r := rig.Start(t, rig.Config{
		SubscriberOptions: rig.InFlight(2 * size), Policy: backoff.List{time.Second},
		// No batch is handled before it is full, however slow the machine is.
		Handle: batch.Handler(size, rig.Patience, func(batch []*message.Message) []error {
			mu.Lock()
			defer mu.Unlock()
			sizes = append(sizes, len(batch))
			errs := make([]error, len(batch))
			for i, msg := range batch {
				body := string(msg.Payload)
				if body[len(body)-1] == '7' && middleware.Attempt(msg.Context()) == 1 {
					failed.Handle(body)
					errs[i] = errBoom
					continue
				}
				handled.Handle(body)
			}
			return errs
		}),
	})
	rig.Fill(t, r.URL, r.Queue, messages)
	rig.WaitFor(t, "all messages to be handled", func() bool { return handled.Count() == messages })
	r.Stop()
	assert.Equal(t, messages, handled.Total(), "each once")
	assert.Equal(t, []int{8, 8}, []int{failed.Count(), failed.Total()})
	assert.Equal(t, slices.Repeat([]int{size}, 22), sizes)
	r.RequireNothingLeft(0)
}

// Given two of four messages that wait for their batch for up to an hour, when the service stops,
// then it does not wait for them. They are back in their queue, with nothing spent.
func TestStopDoesNotWaitForABatch(t *testing.T) {
	t.Parallel()
	rig.Virtually(t, func(t *testing.T, broker *peer.Server) {
		c := record()
		r := rig.Start(t, rig.Config{
			URL: broker.URL(), SubscriberOptions: rig.InFlight(4), Policy: backoff.List{time.Second},
			Handle: batch.Handler(4, time.Hour, c.succeed),
		})
		rig.Fill(t, r.URL, r.Queue, 2)
		<-time.After(time.Second)
		require.Zero(t, r.Depth(""), "both are delivered")
		r.Stop()
		require.Less(t, time.Since(c.began), time.Minute)
		require.Empty(t, c.made())
		for range 2 {
			require.NotContains(t, rig.Take(t, r.URL, r.Queue).Headers, header.Queue)
		}
	})
}
