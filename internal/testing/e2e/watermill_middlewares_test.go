package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	cenkalti "github.com/cenkalti/backoff/v5"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/sony/gobreaker"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
)

// chain are middlewares, the first outermost.
type chain = []message.HandlerMiddleware

// failing starts a service that retries quickly. Its handler fails before its nth call and sends
// the attempt of each call.
func failing(t *testing.T, retries, n int, c rig.Config) (*rig.Service, chan int) {
	t.Helper()
	attempts := make(chan int, 100)
	c.Policy = rig.Quickly(retries)
	c.Handler = rig.FailUntil(n, attempts)
	return rig.Start(t, c), attempts
}

// Given a Recoverer inside or outside, when the handler panics, then the message is retried, and
// the stack goes nowhere.
func TestComposedWithRecoverer(t *testing.T) {
	t.Parallel()
	rig.Each(t, map[string]rig.Config{
		"inside":  {Inner: chain{wmiddleware.Recoverer}},
		"outside": {Outer: chain{wmiddleware.Recoverer}},
	}, func(t *testing.T, c rig.Config) {
		c.Policy = rig.Quickly(1)
		c.Handle = func(*message.Message) error { panic("no stock") }
		r := rig.Start(t, c)
		r.Send("order")
		dead := r.DeadLetter()
		require.Equal(t, "2", dead.Headers[header.DeadFailures])
		require.Contains(t, dead.Headers[header.DeadError], "no stock")
		require.NotContains(t, dead.Headers[header.DeadError], "goroutine")
	})
}

// Given a Timeout inside, when it ends the context of the message, then that is a failure as any
// other, and no interruption.
func TestComposedWithTimeout(t *testing.T) {
	t.Parallel()
	attempts := make(chan int, 10)
	r := rig.Start(t, rig.Config{
		Policy: rig.Quickly(1), Inner: chain{wmiddleware.Timeout(50 * time.Millisecond)},
		RetryOptions: []middleware.Option{
			middleware.WithDefaultClass(header.ClassPermanent),
			middleware.WithClassifier(middleware.RetryableErrors(context.DeadlineExceeded)),
		},
		Handle: func(msg *message.Message) error {
			attempts <- middleware.Attempt(msg.Context())
			<-msg.Context().Done()
			return msg.Context().Err()
		},
	})
	r.Send("order")
	dead := r.DeadLetter()
	rig.AwaitAttempts(t, attempts, 1, 2)
	require.Equal(t, "exhausted", dead.Headers[header.DeadReason])
}

// Given a Timeout outside, when it ends the context, then that looks like a shutdown. No attempt
// is counted, and the log says so.
func TestTimeoutOutsideIsNamed(t *testing.T) {
	t.Parallel()
	attempts := make(chan int, 10)
	var calls atomic.Int32
	r := rig.Start(t, rig.Config{
		Policy: rig.Quickly(1), Outer: chain{wmiddleware.Timeout(50 * time.Millisecond)},
		Handle: func(msg *message.Message) error {
			attempts <- middleware.Attempt(msg.Context())
			if calls.Add(1) < 3 {
				<-msg.Context().Done()
				return msg.Context().Err()
			}
			return nil
		},
	})
	r.Send("order")
	rig.AwaitAttempts(t, attempts, 1, 1, 1)
	require.Contains(t, r.Logs.Text(), "a Timeout middleware belongs inside DelayedRetry")
	r.RequireNothingLeft(0)
}

// Given CorrelationID, when the first attempt sets an id, then the next attempt has it, and so has
// the produced message.
func TestComposedWithCorrelationID(t *testing.T) {
	t.Parallel()
	url, out := testbroker.URL(t), testbroker.Queue(t)
	rig.DeclareQueue(t, url, out, nil)
	pub, err := wamqp.NewPublisher(rig.QueueConfig(url), watermill.NopLogger{})
	require.NoError(t, err)
	r := rig.Start(t, rig.Config{
		URL: url, Policy: rig.Quickly(1), Publisher: pub, PublishTopic: out,
		Outer: chain{wmiddleware.CorrelationID},
		Handler: func(msg *message.Message) ([]*message.Message, error) {
			if middleware.Attempt(msg.Context()) == 1 {
				wmiddleware.SetCorrelationID("made at attempt 1", msg)
				return nil, rig.ErrFailed
			}
			return message.Messages{message.NewMessage(watermill.NewUUID(), []byte("produced"))}, nil
		},
	})
	r.Send("order")
	produced := rig.Take(t, url, out)
	require.Equal(t, "made at attempt 1", produced.Headers[wmiddleware.CorrelationIDMetadataKey])
}

// Given Watermill's Retry inside, when the handler fails, then each attempt has a few quick tries
// of which the broker sees none.
func TestComposedWithRetry(t *testing.T) {
	t.Parallel()
	permanent := middleware.Permanent(rig.ErrFailed)
	quick := wmiddleware.Retry{MaxRetries: 2, InitialInterval: time.Millisecond}.Middleware
	type testCase struct {
		err              error
		calls            int
		failures, reason string
	}
	rig.Each(t, map[string]testCase{
		"any error": {rig.ErrFailed, 6, "2", "exhausted"},
		// Retry removes cenkalti's mark and does not know millpond's.
		"cenkalti's mark":        {cenkalti.Permanent(rig.ErrFailed), 2, "2", "exhausted"},
		"our mark":               {permanent, 3, "1", "permanent"},
		"our mark in cenkalti's": {cenkalti.Permanent(permanent), 1, "1", "permanent"},
	}, func(t *testing.T, c testCase) {
		var calls rig.Timeline
		r := rig.Start(t, rig.Config{
			Policy: rig.Quickly(1), Inner: chain{quick},
			Handle: func(*message.Message) error {
				calls.Add()
				return c.err
			},
		})
		r.Send("order")
		rig.RequireDead(t, r.DeadLetter(), c.reason, c.failures)
		require.Equal(t, c.calls, calls.Count())
	})
}

// poison returns Watermill's PoisonQueue with a queue of the test's own.
func poison(t *testing.T, url string) (queue string, m message.HandlerMiddleware) {
	t.Helper()
	queue = testbroker.Queue(t)
	rig.DeclareQueue(t, url, queue, nil)
	client := rig.OpenClient(t, url, topology.PerQueue{})
	m, err := wmiddleware.PoisonQueue(rig.NewPublisher(t, client, url), queue)
	require.NoError(t, err)
	return queue, m
}

// Given a PoisonQueue inside, when the handler fails, then the PoisonQueue takes the error away,
// and the log says so once.
func TestPoisonQueueInsideIsNamed(t *testing.T) {
	t.Parallel()
	url := testbroker.URL(t)
	queue, m := poison(t, url)
	r, attempts := failing(t, 1, 10, rig.Config{URL: url, Inner: chain{m}})
	for range 3 {
		r.Publish(amqp.Publishing{Body: []byte("order"), MessageId: "id-1"})
		rig.Take(t, url, queue)
	}
	rig.AwaitAttempts(t, attempts, 1, 1, 1)
	r.RequireNothingLeft(0)
	require.Equal(t, 1, r.Logs.Said("A PoisonQueue inside DelayedRetry"))
}

// Given a PoisonQueue outside, when the handler fails, then the PoisonQueue sees no failure.
func TestComposedWithPoisonQueue(t *testing.T) {
	t.Parallel()
	url := testbroker.URL(t)
	queue, m := poison(t, url)
	r, attempts := failing(t, 1, 10, rig.Config{URL: url, Outer: chain{m}})
	r.Send("order")
	rig.AwaitAttempts(t, attempts, 1, 2)
	rig.AwaitDepth(t, r.URL, r.Queue+".dlq", 1)
	r.RequireNothingLeft(1)
	require.Zero(t, testbroker.Depth(t, url, queue))
}

// unsettled starts a service that cannot hand over its first failure. A middleware outside
// takes the error away.
func unsettled(t *testing.T, url string, outside message.HandlerMiddleware) (
	r *rig.Service, proxy *testbroker.Proxy, attempts chan int,
) {
	t.Helper()
	proxy, attempts = testbroker.NewProxy(t, url), make(chan int, 10)
	var calls atomic.Int32
	r = rig.Start(t, rig.Config{
		URL: url, PublisherURL: proxy.URL(), Policy: rig.Quickly(1), Outer: chain{outside},
		ClientOptions: []topology.Option{topology.WithConfirmTimeout(200 * time.Millisecond)},
		SubscriberOptions: []topology.SubscriberOption{
			topology.WithConsumerTimeout(20 * time.Millisecond),
		},
		Handle: func(msg *message.Message) error {
			attempts <- middleware.Attempt(msg.Context())
			if calls.Add(1) > 1 {
				return nil
			}
			proxy.Blackhole(true)
			return rig.ErrFailed
		},
	})
	return r, proxy, attempts
}

const ackedUnsettled = "DelayedRetry could not settle it"

// Given a PoisonQueue outside, when DelayedRetry gives an unsettled message back to its queue, then
// the PoisonQueue takes the message with an attempt that it never had. The log says so.
func TestPoisonQueueOutsideThatTakesTheUnsettledIsNamed(t *testing.T) {
	t.Parallel()
	url := testbroker.URL(t)
	queue, m := poison(t, url)
	r, proxy, attempts := unsettled(t, url, m)
	r.Send("order")
	taken := rig.Take(t, url, queue)
	rig.AwaitAttempts(t, attempts, 1)
	reason := taken.Headers[wmiddleware.ReasonForPoisonedKey]
	require.Contains(t, reason, middleware.ErrNotHandedOver.Error())
	rig.WaitFor(t, "the line in the log", func() bool { return r.Logs.Said(ackedUnsettled) == 1 })
	proxy.Blackhole(false)
}

// Given a middleware outside that swallows every error, when no copy is confirmed, then the message
// comes again. A bug once acked it, and the message was gone.
func TestSwallowedUnsettledMessageComesAgain(t *testing.T) {
	t.Parallel()
	swallow := func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			produced, _ := h(msg)
			return produced, nil
		}
	}
	r, proxy, attempts := unsettled(t, testbroker.URL(t), swallow)
	r.Send("order")
	rig.WaitFor(t, "the line in the log", func() bool { return r.Logs.Said(ackedUnsettled) == 1 })
	proxy.Blackhole(false)
	rig.AwaitAttempts(t, attempts, 1, 1)
}

// Given an InstantAck, when the handler fails, then the message is lost, and the log names each.
// Outside, the context may be done before DelayedRetry sees the message. A bug once skipped the
// handler then.
func TestInstantAckIsNamed(t *testing.T) {
	t.Parallel()
	const messages = 20
	const said = "Handler failed after its message was acked"
	acked := func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			<-msg.Context().Done()
			return h(msg)
		}
	}
	rig.Each(t, map[string]rig.Config{
		"inside":                       {Inner: chain{wmiddleware.InstantAck}},
		"outside":                      {Outer: chain{wmiddleware.InstantAck}},
		"outside, and the ack is done": {Outer: chain{wmiddleware.InstantAck, acked}},
	}, func(t *testing.T, c rig.Config) {
		r, attempts := failing(t, 1, 1000, c)
		for i := range messages {
			r.Send(fmt.Sprint("order ", i))
		}
		for range messages {
			rig.AwaitAttempts(t, attempts, 1)
		}
		rig.WaitFor(t, "a line for each message", func() bool { return r.Logs.Said(said) == messages })
		r.RequireNothingLeft(0)
		require.Empty(t, attempts)
	})
}

// Given a Duplicator outside, when the handler fails, then the message is handed over once, and the
// log names the Duplicator. A bug once doubled the message at each attempt.
func TestDuplicatorOutsideIsNamed(t *testing.T) {
	t.Parallel()
	r, attempts := failing(t, 3, 100, rig.Config{Outer: chain{wmiddleware.Duplicator}})
	r.Send("order")
	rig.AwaitAttempts(t, attempts, 1, 2, 3, 4)
	rig.AwaitDepth(t, r.URL, r.Queue+".dlq", 1)
	r.RequireNothingLeft(1)
	require.Empty(t, attempts)
	require.Equal(t, 1, r.Logs.Said("DelayedRetry was called again for a message"))
}

// Given a Duplicator inside, when one of its two calls fails, then that is one failure.
func TestComposedWithDuplicator(t *testing.T) {
	t.Parallel()
	r, attempts := failing(t, 3, 3, rig.Config{Inner: chain{wmiddleware.Duplicator}})
	r.Send("order")
	rig.AwaitAttempts(t, attempts, 1, 2, 3, 3)
	r.RequireNothingLeft(0)
}

// Given a DelayOnError inside, when the handler fails, then the policy decides the delay, because
// the message with the other delay does not travel. The log says so once.
func TestDelayOnErrorInsideIsNamed(t *testing.T) {
	t.Parallel()
	delays := make(chan string, 10)
	see := func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			delays <- msg.Metadata.Get(delay.DelayedForKey)
			return h(msg)
		}
	}
	onError := &wmiddleware.DelayOnError{
		InitialInterval: time.Hour, MaxInterval: time.Hour, Multiplier: 2,
	}
	r, attempts := failing(t, 2, 10, rig.Config{Inner: chain{onError.Middleware, see}})
	r.Send("order")
	rig.AwaitAttempts(t, attempts, 1, 2, 3)
	for range 3 {
		require.Empty(t, <-delays)
	}
	r.DeadLetter()
	require.Equal(t, 1, r.Logs.Said("DelayOnError inside DelayedRetry has no effect"))
}

// Given an IgnoreErrors inside, when the handler fails with a listed error, then that is a success.
// IgnoreErrors compares texts, so an error wrapped with %w is not listed.
func TestComposedWithIgnoreErrors(t *testing.T) {
	t.Parallel()
	errs := map[string]error{
		"ignored": rig.ErrFailed, "marked": middleware.Permanent(rig.ErrFailed),
		"wrapped": fmt.Errorf("sell: %w", rig.ErrFailed),
	}
	ignore := wmiddleware.NewIgnoreErrors([]error{rig.ErrFailed})
	r := rig.Start(t, rig.Config{
		Policy: rig.Quickly(1), Inner: chain{ignore.Middleware},
		Handle: func(msg *message.Message) error { return errs[string(msg.Payload)] },
	})
	r.Send("ignored", "marked", "wrapped")
	require.Equal(t, "wrapped", string(r.DeadLetter().Body))
	r.RequireNothingLeft(0)
}

// Given a RandomFail or RandomPanic, when it is inside, then it is a failure. When it is outside,
// then no attempt is counted: the message is nacked and set aside for a second.
func TestComposedWithRandomFail(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		m    message.HandlerMiddleware
		text string
	}{
		"error": {wmiddleware.RandomFail(1), "random fail occurred"},
		"panic": {wmiddleware.RandomPanic(1), "random panic occurred"},
	} {
		t.Run(name+" inside", func(t *testing.T) {
			t.Parallel()
			r, _ := failing(t, 1, 100, rig.Config{Inner: chain{c.m}})
			r.Send("order")
			dead := r.DeadLetter()
			require.Equal(t, "2", dead.Headers[header.DeadFailures])
			require.Contains(t, dead.Headers[header.DeadError], c.text)
		})
		t.Run(name+" outside", func(t *testing.T) {
			t.Parallel()
			r, _ := failing(t, 1, 100, rig.Config{Outer: chain{c.m}})
			r.Send("order")
			waiting := rig.Take(t, r.URL, r.Queue+".wait.1s")
			require.NotContains(t, waiting.Headers, keys.Failures)
			require.Contains(t, waiting.Headers, keys.FirstSeen)
			r.RequireNothingLeft(0)
		})
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

// Given a Deduplicator with its default key, when a message fails, then its first retry is
// swallowed, because the key is the same at every attempt. The message is neither handled nor dead.
func TestDeduplicatorSwallowsTheRetries(t *testing.T) {
	t.Parallel()
	swallowed := make(chan int, 10)
	see := func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			produced, err := h(msg)
			if err == nil {
				swallowed <- middleware.Attempt(msg.Context())
			}
			return produced, err
		}
	}
	r, attempts := failing(t, 3, 100, rig.Config{Inner: chain{see, deduplicator(nil)}})
	r.Send("order")
	rig.AwaitAttempts(t, attempts, 1)
	rig.AwaitAttempts(t, swallowed, 2)
	r.RequireNothingLeft(0)
	require.Empty(t, attempts)
}

// Given a Deduplicator with millpond's key, when a message comes again for any reason, then it is
// handled. A message that its producer sent twice is not.
func TestComposedWithDeduplicator(t *testing.T) {
	t.Parallel()
	rig.Each(t, map[string]rig.Config{
		"inside":  {Inner: chain{deduplicator(middleware.DeduplicationKey)}},
		"outside": {Outer: chain{deduplicator(middleware.DeduplicationKey)}},
	}, func(t *testing.T, c rig.Config) {
		var calls rig.Timeline
		attempts := make(chan int, 10)
		c.Policy = rig.Quickly(1)
		c.Handle = func(msg *message.Message) error {
			attempts <- middleware.Attempt(msg.Context())
			switch calls.Add() {
			case 1:
				return middleware.Snooze(rig.ErrFailed, 100*time.Millisecond)
			case 2, 3, 4:
				return rig.ErrFailed
			}
			return nil
		}
		r := rig.Start(t, c)
		order := amqp.Publishing{Body: []byte("order"), MessageId: "id-1"}
		r.Publish(order)
		rig.AwaitAttempts(t, attempts, 1, 1, 2) // set aside, then failed twice
		dead := r.DeadLetter()
		r.Publish(order) // absorbed
		order.Headers = dead.Headers
		r.Publish(order)
		rig.AwaitAttempts(t, attempts, 1, 2) // moved back, failed, and handled
		rig.WaitFor(t, "an empty queue", func() bool { return r.Depth("") == 0 })
		r.RequireNothingLeft(0)
		require.Empty(t, attempts)
	})
}

// Given a Deduplicator, when the connection is lost while the handler has a message, then the
// message is delivered again. It was not handled, so it is no duplicate.
func TestDeduplicatorLetsRedeliveriesThrough(t *testing.T) {
	t.Parallel()
	url := testbroker.URL(t)
	proxy := testbroker.NewProxy(t, url)
	attempts := make(chan int, 10)
	var calls rig.Timeline
	r := rig.Start(t, rig.Config{
		URL: proxy.URL(), PublisherURL: url, AdminURL: url, Policy: rig.Quickly(1),
		Inner: chain{deduplicator(middleware.DeduplicationKey)},
		Handle: func(msg *message.Message) error {
			attempts <- middleware.Attempt(msg.Context())
			if calls.Add() == 1 {
				proxy.Cut()
				<-msg.Context().Done()
				return msg.Context().Err()
			}
			return nil
		},
	})
	rig.Publish(t, url, "", r.Queue, amqp.Publishing{Body: []byte("order"), MessageId: "id-1"})
	rig.AwaitAttempts(t, attempts, 1, 1)
	r.Stop()
	require.Zero(t, testbroker.Depth(t, url, r.Queue))
}

// Given a Throttle outside, when messages fail, then their retries keep to the rate as well.
func TestComposedWithThrottle(t *testing.T) {
	t.Parallel()
	var calls rig.Timeline
	r := rig.Start(t, rig.Config{
		Policy: rig.Quickly(1), Outer: chain{wmiddleware.NewThrottle(10, time.Second).Middleware},
		Handle: func(msg *message.Message) error {
			calls.Add()
			if middleware.Attempt(msg.Context()) == 1 {
				return rig.ErrFailed
			}
			return nil
		},
	})
	r.Send("1", "2", "3", "4", "5")
	rig.WaitFor(t, "ten calls", func() bool { return calls.Count() == 10 })
	// The first call may find a tick waiting.
	require.GreaterOrEqual(t, calls.All()[9], 800*time.Millisecond-rig.Grace)
	r.RequireNothingLeft(0)
}

func snoozeFor(d time.Duration) []middleware.Option {
	snooze := middleware.WithSnoozeFor(d, gobreaker.ErrOpenState, gobreaker.ErrTooManyRequests)
	return []middleware.Option{snooze}
}

// Given a CircuitBreaker inside, when its circuit is open, then the message comes back later and
// spends no attempt. Without WithSnoozeFor the open circuit spends the retries without a call.
func TestComposedWithCircuitBreaker(t *testing.T) {
	t.Parallel()
	type testCase struct {
		options []middleware.Option
		calls   []int
		dead    int
	}
	rig.Each(t, map[string]testCase{
		"with WithSnoozeFor":    {snoozeFor(500 * time.Millisecond), []int{1, 2, 3}, 0},
		"without WithSnoozeFor": {nil, []int{1, 2}, 1},
	}, func(t *testing.T, c testCase) {
		breaker := wmiddleware.NewCircuitBreaker(gobreaker.Settings{
			Timeout:     2 * time.Second,
			ReadyToTrip: func(c gobreaker.Counts) bool { return c.ConsecutiveFailures == 2 },
		})
		inner := chain{breaker.Middleware}
		r, attempts := failing(t, 2, 3, rig.Config{RetryOptions: c.options, Inner: inner})
		r.Send("order")
		rig.AwaitAttempts(t, attempts, c.calls...)
		if c.dead == 1 {
			rig.AwaitDepth(t, r.URL, r.Queue+".dlq", 1)
		}
		r.RequireNothingLeft(c.dead)
		require.Empty(t, attempts)
	})
}

// Given all middlewares in the order of docs/middlewares.md, when the handler fails, then all
// attempts are made, and the log does not call the order wrong.
func TestComposedInTheRightOrder(t *testing.T) {
	t.Parallel()
	attempts := make(chan int, 10)
	h := rig.FailUntil(4, attempts)
	r := rig.Start(t, rig.Config{
		Policy: rig.Quickly(3), RetryOptions: snoozeFor(time.Second),
		Outer: chain{wmiddleware.CorrelationID, wmiddleware.NewThrottle(1000, time.Second).Middleware},
		Inner: chain{
			deduplicator(middleware.DeduplicationKey),
			wmiddleware.NewIgnoreErrors([]error{errors.New("ignore this one")}).Middleware,
			wmiddleware.NewCircuitBreaker(gobreaker.Settings{}).Middleware,
			wmiddleware.Retry{MaxRetries: 1, InitialInterval: time.Millisecond}.Middleware,
			wmiddleware.Timeout(time.Minute),
			wmiddleware.Recoverer,
		},
		Handler: func(msg *message.Message) ([]*message.Message, error) {
			if _, bounded := msg.Context().Deadline(); !bounded {
				return nil, errors.Join(middleware.Permanent(errors.New("no deadline")), context.Canceled)
			}
			produced, err := h(msg)
			if err == nil {
				panic("of no interest")
			}
			return produced, err
		},
	})
	r.Publish(amqp.Publishing{Body: []byte("order"), MessageId: "id-1"})
	dead := r.DeadLetter()
	rig.AwaitAttempts(t, attempts, 1, 1, 2, 2, 3, 3, 4, 4)
	require.Equal(t, "4", dead.Headers[header.DeadFailures])
	require.Contains(t, dead.Headers[header.DeadError], "of no interest")
	require.NotContains(t, r.Logs.Text(), "wrong order")
}
