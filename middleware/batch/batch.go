// Package batch handles messages together, while each message keeps its own fate.
//
// Each message is acked, retried or dead-lettered by its own error, with its marks, as if it were
// handled alone.
//
//	subscriber, err := client.NewSubscriber(cfg, topology.WithConcurrency(100))
//	…
//	handle := batch.Handler(100, 200*time.Millisecond, insertRows)
//	router.AddConsumerHandler("rows", "rows", subscriber, handle)
//
// The concurrency must be at least the size of a batch. Otherwise no batch fills, and each one
// waits for the whole time.
package batch

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millpond-go/millpond/middleware"
)

// Handler returns a handler of Router.AddConsumerHandler that calls handle for up to most messages
// together: when there are most, or when within has passed since the first of them came. A most
// below 2 makes batches of one message. A within of 0 or less waits for no further message.
//
// handle returns an error for each message in their order, nil for success. If the number of its
// results is another, or if it panics or ends its goroutine, all messages of the batch have failed.
// A panic is a *middleware.PanicError.
//
// A message whose context ends while it waits leaves its batch. While handle runs, all its messages
// wait for it, so handle should watch the context of its first message. Calls of handle may
// overlap. Use a Handler for one handler of the router only.
func Handler(
	most int, within time.Duration, handle func([]*message.Message) []error,
) message.NoPublishHandlerFunc {
	c := &collector{most: most, within: within, handle: handle}
	return c.join
}

var errEnded = errors.New("the handler of a batch ended its goroutine")

type collector struct {
	most   int
	within time.Duration
	handle func([]*message.Message) []error

	mu   sync.Mutex
	open *batch // which the next message joins; nil if that begins one
}

type batch struct {
	messages []*message.Message
	results  []chan error
	timer    *time.Timer
}

// join returns when the message was handled, or has left its batch.
func (c *collector) join(msg *message.Message) error {
	ctx, result := msg.Context(), make(chan error, 1) // handle may set another context
	b := c.add(msg, result)
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		if c.leave(b, msg) {
			return context.Cause(ctx)
		}
		return <-result
	}
}

func (c *collector) add(msg *message.Message, result chan error) *batch {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := c.open
	if b == nil {
		b = &batch{}
		c.open = b
		b.timer = time.AfterFunc(c.within, func() {
			if c.close(b) {
				b.call(c.handle)
			}
		})
	}
	b.messages, b.results = append(b.messages, msg), append(b.results, result)
	if len(b.messages) >= c.most {
		c.open = nil
		b.timer.Stop()
		go b.call(c.handle)
	}
	return b
}

// close reports whether it has closed b. Only one caller does, and handles the batch.
func (c *collector) close(b *batch) (closed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if closed = c.open == b; closed {
		c.open = nil
	}
	return closed
}

// leave takes msg out of b, unless b is being handled.
func (c *collector) leave(b *batch, msg *message.Message) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open != b {
		return false
	}
	i := slices.Index(b.messages, msg)
	b.messages, b.results = slices.Delete(b.messages, i, i+1), slices.Delete(b.results, i, i+1)
	if len(b.messages) == 0 {
		c.open = nil
		b.timer.Stop()
	}
	return true
}

// call handles a closed batch. Every message gets a result, however handle ends.
func (b *batch) call(handle func([]*message.Message) []error) {
	var errs []error
	failed := errEnded // all of them, unless handle returns
	defer func() {
		if value := recover(); value != nil {
			failed = &middleware.PanicError{Value: value, Stack: debug.Stack()}
		}
		for i, result := range b.results {
			if failed != nil {
				result <- failed
				continue
			}
			result <- errs[i]
		}
	}()
	errs, failed = handle(b.messages), nil
	if len(errs) != len(b.results) {
		failed = fmt.Errorf("the handler of a batch returned %d results for %d messages: return "+
			"one for each, nil for success", len(errs), len(b.results))
	}
}
