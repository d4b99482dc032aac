package middleware_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	cenkalti "github.com/cenkalti/backoff/v5"
	"github.com/sony/gobreaker"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/middleware/middlewaretest"
)

type chained = []message.HandlerMiddleware

// composed is a DelayedRetry between other middlewares, the first of which is outermost.
type composed struct {
	outer, inner chained
	retries      int // each after a second
	options      options
	broker       *middlewaretest.Broker
	logs         *watermill.CaptureLoggerAdapter
}

// around returns h inside all of the middlewares.
func (c *composed) around(t *testing.T, h message.HandlerFunc) message.HandlerFunc {
	t.Helper()
	c.broker, c.logs = newBroker(), watermill.NewCaptureLogger()
	policy := backoff.Constant{Interval: time.Second, Retries: c.retries}
	c.options = append(c.options, withLogger(c.logs))
	retry, err := middleware.NewDelayedRetry(c.broker, policy, c.options...)
	require.NoError(t, err)
	for _, m := range slices.Backward(slices.Concat(c.outer, chained{retry.Middleware}, c.inner)) {
		h = m(h)
	}
	return h
}

// run has the handler handle one message until its end. It returns that, and the attempt of each
// call.
func (c *composed) run(t *testing.T, handler message.HandlerFunc) (middlewaretest.Result, []int) {
	t.Helper()
	var attempts []int
	h := c.around(t, func(msg *message.Message) ([]*message.Message, error) {
		attempts = append(attempts, middleware.Attempt(msg.Context()))
		return handler(msg)
	})
	return c.broker.Run(h, newMessage(delivery{})), attempts
}

// said counts the lines in the log that begin so.
func (c *composed) said(text string) (n int) {
	for _, lines := range c.logs.Captured() {
		for _, line := range lines {
			if strings.HasPrefix(line.Msg, text) {
				n++
			}
		}
	}
	return n
}

// wantDead requires a dead letter after so many failures.
func wantDead(t *testing.T, r middlewaretest.Result, reason header.Reason, failures int) {
	t.Helper()
	assert.Equal(t, middlewaretest.DeadLettered, r.Outcome)
	assert.Equal(t, reason, r.State.Reason)
	assert.Equal(t, failures, r.State.Failures)
}

// until returns a handler that fails until its nth call.
func until(n int) message.HandlerFunc {
	return consumer(func(*message.Message) error {
		if n--; n > 0 {
			return errBoom
		}
		return nil
	})
}

// A panic is a failure with the Recoverer inside or outside, and its stack goes nowhere.
func TestComposedWithRecoverer(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]composed{
		"inside":  {inner: chained{wmiddleware.Recoverer}, retries: 1},
		"outside": {outer: chained{wmiddleware.Recoverer}, retries: 1},
	} {
		result, _ := c.run(t, func(*message.Message) ([]*message.Message, error) { panic("no stock") })
		wantDead(t, result, exhausted, 2)
		assert.Contains(t, result.State.Error, "no stock", name)
		assert.NotContains(t, result.State.Error, "goroutine", name)
	}
}

// A Timeout inside that ends the context of the message is a failure as any other. Outside it looks
// like a shutdown: no attempt is counted, and the log says so.
func TestComposedWithTimeout(t *testing.T) {
	t.Parallel()
	slow := func(msg *message.Message) ([]*message.Message, error) {
		<-msg.Context().Done()
		return nil, msg.Context().Err()
	}
	timeout := chained{wmiddleware.Timeout(10 * time.Millisecond)}
	inside := composed{inner: timeout, retries: 1, options: options{
		middleware.WithDefaultClass(header.ClassPermanent),
		withClassifier(retryableErrors(context.DeadlineExceeded)),
	}}
	result, attempts := inside.run(t, slow)
	wantDead(t, result, exhausted, 2)
	assert.Equal(t, []int{1, 2}, attempts)

	outside := composed{outer: timeout, retries: 1}
	result, _ = outside.run(t, slow)
	assert.Equal(t, middlewaretest.Nacked, result.Outcome)
	assert.Zero(t, result.State)
	assert.Contains(t, fmt.Sprint(outside.logs.Captured()),
		"a Timeout middleware belongs inside DelayedRetry")
}

// An id that the first attempt sets is there at the next one, and in the produced message.
func TestComposedWithCorrelationID(t *testing.T) {
	t.Parallel()
	c := composed{outer: chained{wmiddleware.CorrelationID}, retries: 1}
	result, _ := c.run(t, func(msg *message.Message) ([]*message.Message, error) {
		if middleware.Attempt(msg.Context()) == 1 {
			wmiddleware.SetCorrelationID("made at attempt 1", msg)
			return nil, errBoom
		}
		return message.Messages{message.NewMessage("id", nil)}, nil
	})
	require.Len(t, result.Produced, 1)
	assert.Equal(t, "made at attempt 1", wmiddleware.MessageCorrelationID(result.Produced[0]))
}

// With Watermill's Retry inside, each attempt has a few quick tries.
func TestComposedWithRetry(t *testing.T) {
	t.Parallel()
	permanent := middleware.Permanent(errBoom)
	for name, want := range map[string]struct {
		err      error
		calls    []int
		failures int
		reason   header.Reason
	}{
		"any error": {errBoom, []int{1, 1, 1, 2, 2, 2}, 2, exhausted},
		// Retry removes cenkalti's mark and does not know millpond's.
		"cenkalti's mark":        {cenkalti.Permanent(errBoom), []int{1, 2}, 2, exhausted},
		"our mark":               {permanent, []int{1, 1, 1}, 1, header.ReasonPermanent},
		"our mark in cenkalti's": {cenkalti.Permanent(permanent), []int{1}, 1, header.ReasonPermanent},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			quick := wmiddleware.Retry{MaxRetries: 2, InitialInterval: time.Millisecond}
			c := composed{inner: chained{quick.Middleware}, retries: 1}
			result, attempts := c.run(t, failsWith(want.err))
			wantDead(t, result, want.reason, want.failures)
			assert.Equal(t, want.calls, attempts)
		})
	}
}

// poison is the publisher of a PoisonQueue.
type poison struct{ taken message.Messages }

func (p *poison) Publish(_ string, messages ...*message.Message) error {
	p.taken = append(p.taken, messages...)
	return nil
}

func (p *poison) Close() error { return nil }

// A PoisonQueue inside takes the error away, and the log says so once. A PoisonQueue outside sees
// no failure, but a message that could not be handed over.
func TestComposedWithPoisonQueue(t *testing.T) {
	t.Parallel()
	var p poison
	queue, err := wmiddleware.PoisonQueue(&p, "poison")
	require.NoError(t, err)

	inside := composed{inner: chained{queue}, retries: 1}
	h := inside.around(t, failsWith(errBoom))
	for range 3 {
		result := inside.broker.Run(h, newMessage(delivery{}))
		assert.Equal(t, middlewaretest.Handled, result.Outcome)
	}
	assert.Len(t, p.taken, 3)
	assert.Equal(t, 1, inside.said("A PoisonQueue inside DelayedRetry"))

	outside := composed{outer: chained{queue}, retries: 1}
	result, _ := outside.run(t, failsWith(errBoom))
	wantDead(t, result, exhausted, 2)
	assert.Len(t, p.taken, 3)

	h = outside.around(t, failsWith(errBoom))
	outside.broker.FailNext(1, nil)
	outside.broker.Run(h, newMessage(delivery{Closing: closedChan()}))
	require.Len(t, p.taken, 4)
	assert.Contains(t, p.taken[3].Metadata[wmiddleware.ReasonForPoisonedKey],
		middleware.ErrNotHandedOver.Error())
}

// A Duplicator outside calls DelayedRetry twice: the message is handed over once, and the log names
// the Duplicator. A bug once doubled the message at each attempt. Inside, two calls of which one
// fails are one failure.
func TestComposedWithDuplicator(t *testing.T) {
	t.Parallel()
	duplicator := chained{wmiddleware.Duplicator}
	outside := composed{outer: duplicator, retries: 3}
	result, attempts := outside.run(t, failsWith(errBoom))
	wantDead(t, result, exhausted, 4)
	assert.Equal(t, []int{1, 2, 3, 4}, attempts)
	assert.Len(t, outside.broker.Calls(), 4)
	assert.Equal(t, 1, outside.said("DelayedRetry was called again for a message"))

	inside := composed{inner: duplicator, retries: 3}
	result, attempts = inside.run(t, until(3))
	assert.Equal(t, middlewaretest.Handled, result.Outcome)
	assert.Equal(t, []int{1, 2, 3, 3}, attempts)
}

// The policy decides the delay with a DelayOnError inside, because the message with the other delay
// does not travel. The log says so once.
func TestDelayOnErrorInsideIsNamed(t *testing.T) {
	t.Parallel()
	onError := &wmiddleware.DelayOnError{
		InitialInterval: time.Hour, MaxInterval: time.Hour, Multiplier: 2,
	}
	c := composed{inner: chained{onError.Middleware}, retries: 2}
	result, _ := c.run(t, consumer(func(msg *message.Message) error {
		assert.Empty(t, msg.Metadata.Get(delay.DelayedForKey))
		return errBoom
	}))
	wantDead(t, result, exhausted, 3)
	assert.Equal(t, []time.Duration{time.Second, time.Second}, result.Delays)
	assert.Equal(t, 1, c.said("DelayOnError inside DelayedRetry has no effect"))
}

// An error that IgnoreErrors lists is a success. It compares texts, so an error wrapped with %w is
// not listed.
func TestComposedWithIgnoreErrors(t *testing.T) {
	t.Parallel()
	ignore := wmiddleware.NewIgnoreErrors([]error{errBoom})
	for err, want := range map[error]middlewaretest.Outcome{
		errBoom:                         middlewaretest.Handled,
		middleware.Permanent(errBoom):   middlewaretest.Handled,
		fmt.Errorf("sell: %w", errBoom): middlewaretest.DeadLettered,
	} {
		c := composed{inner: chained{ignore.Middleware}, retries: 1}
		result, _ := c.run(t, failsWith(err))
		assert.Equal(t, want, result.Outcome, "%T", err)
	}
}

// A RandomFail or RandomPanic is a failure inside. Outside, no attempt is counted.
func TestComposedWithRandomFail(t *testing.T) {
	t.Parallel()
	for text, m := range map[string]message.HandlerMiddleware{
		"random fail occurred":  wmiddleware.RandomFail(1),
		"random panic occurred": wmiddleware.RandomPanic(1),
	} {
		inside := composed{inner: chained{m}, retries: 1}
		result, _ := inside.run(t, until(1))
		wantDead(t, result, exhausted, 2)
		assert.Contains(t, result.State.Error, text)

		outside := composed{outer: chained{wmiddleware.Recoverer, m}, retries: 1}
		result, _ = outside.run(t, until(1))
		assert.Equal(t, middlewaretest.Nacked, result.Outcome)
		assert.Empty(t, outside.broker.Calls())
	}
}

// keysSeen remembers keys for ever. Watermill's own repository never ends its goroutine.
type keysSeen struct{ sync.Map }

func (k *keysSeen) IsDuplicate(_ context.Context, key string) (bool, error) {
	_, seen := k.LoadOrStore(key, true)
	return seen, nil
}

func deduplicator(key wmiddleware.MessageHasher) message.HandlerMiddleware {
	d := &wmiddleware.Deduplicator{KeyFactory: key, Repository: &keysSeen{}, Timeout: time.Second}
	return d.Middleware
}

// With its default key a Deduplicator swallows the first retry: the key is the same at every
// attempt. The message is neither handled nor dead.
func TestDeduplicatorSwallowsTheRetries(t *testing.T) {
	t.Parallel()
	c := composed{inner: chained{deduplicator(nil)}, retries: 3}
	result, attempts := c.run(t, failsWith(errBoom))
	assert.Equal(t, []int{1}, attempts)
	assert.Equal(t, middlewaretest.Handled, result.Outcome)
	assert.Len(t, c.broker.Calls(), 1)
}

// With millpond's key a message that comes again for any reason is handled. A message that its
// producer sent twice is not.
func TestComposedWithDeduplicator(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]composed{
		"inside":  {inner: chained{deduplicator(middleware.DeduplicationKey)}, retries: 1},
		"outside": {outer: chained{deduplicator(middleware.DeduplicationKey)}, retries: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			calls := 0
			h := c.around(t, consumer(func(*message.Message) error {
				switch calls++; calls {
				case 1:
					return middleware.Snooze(errBoom, 100*time.Millisecond)
				case 2, 3, 4:
					return errBoom
				}
				return nil
			}))
			order := delivery{MessageID: "id-1"}
			result := c.broker.Run(h, newMessage(order)) // set aside, then failed twice
			wantDead(t, result, exhausted, 2)
			require.Equal(t, 3, calls)
			c.broker.Run(h, newMessage(order)) // absorbed
			require.Equal(t, 3, calls)
			back := result.State.DeadHeaders("orders")
			order.State = header.Parse("orders", func(key string) (string, bool) {
				value, ok := back[key]
				return value, ok
			})
			// Moved back, failed, and handled.
			assert.Equal(t, middlewaretest.Handled, c.broker.Run(h, newMessage(order)).Outcome)
			assert.Equal(t, 5, calls)
		})
	}
}

// The retries keep to the rate of a Throttle outside as well.
func TestComposedWithThrottle(t *testing.T) {
	t.Parallel()
	throttle := wmiddleware.NewThrottle(100, time.Second)
	c := composed{outer: chained{throttle.Middleware}, retries: 1}
	h := c.around(t, failsWith(errBoom))
	begun := time.Now()
	for range 5 {
		wantDead(t, c.broker.Run(h, newMessage(delivery{})), exhausted, 2)
	}
	// The first call may find a tick waiting.
	assert.GreaterOrEqual(t, time.Since(begun), 80*time.Millisecond)
}

func snoozeOpen(d time.Duration) options {
	return options{middleware.WithSnoozeFor(d, gobreaker.ErrOpenState, gobreaker.ErrTooManyRequests)}
}

// While the circuit of a CircuitBreaker inside is open, the message comes back later and spends no
// attempt. Without WithSnoozeFor the open circuit spends the retries without a call.
func TestComposedWithCircuitBreaker(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]struct {
		options  options
		attempts []int
		outcome  middlewaretest.Outcome
	}{
		"with WithSnoozeFor":    {snoozeOpen(time.Second), []int{1, 2, 3}, middlewaretest.Handled},
		"without WithSnoozeFor": {nil, []int{1, 2}, middlewaretest.DeadLettered},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				breaker := wmiddleware.NewCircuitBreaker(gobreaker.Settings{
					Timeout:     2 * time.Second,
					ReadyToTrip: func(c gobreaker.Counts) bool { return c.ConsecutiveFailures == 2 },
				})
				wait := func(h message.HandlerFunc) message.HandlerFunc {
					return func(msg *message.Message) ([]*message.Message, error) {
						time.Sleep(500 * time.Millisecond)
						return h(msg)
					}
				}
				c := composed{
					outer: chained{wait}, inner: chained{breaker.Middleware}, retries: 2, options: want.options,
				}
				result, attempts := c.run(t, until(3))
				assert.Equal(t, want.attempts, attempts)
				assert.Equal(t, want.outcome, result.Outcome)
			})
		})
	}
}

// With all middlewares in the order of docs/middlewares.md all attempts are made, and the log does
// not call the order wrong.
func TestComposedInTheRightOrder(t *testing.T) {
	t.Parallel()
	throttle := wmiddleware.NewThrottle(1000, time.Second)
	c := composed{
		retries: 3, options: snoozeOpen(time.Second),
		outer: chained{wmiddleware.CorrelationID, throttle.Middleware},
		inner: chained{
			deduplicator(middleware.DeduplicationKey),
			wmiddleware.NewIgnoreErrors([]error{errors.New("ignore this one")}).Middleware,
			wmiddleware.NewCircuitBreaker(gobreaker.Settings{}).Middleware,
			wmiddleware.Retry{MaxRetries: 1, InitialInterval: time.Millisecond}.Middleware,
			wmiddleware.Timeout(time.Minute),
			wmiddleware.Recoverer,
		},
	}
	result, attempts := c.run(t, func(msg *message.Message) ([]*message.Message, error) {
		if _, bounded := msg.Context().Deadline(); !bounded {
			return nil, errors.Join(middleware.Permanent(errors.New("no deadline")), context.Canceled)
		}
		panic("of no interest")
	})
	wantDead(t, result, exhausted, 4)
	assert.Equal(t, []int{1, 1, 2, 2, 3, 3, 4, 4}, attempts)
	assert.Contains(t, result.State.Error, "of no interest")
	assert.NotContains(t, fmt.Sprint(c.logs.Captured()), "wrong order")
}
