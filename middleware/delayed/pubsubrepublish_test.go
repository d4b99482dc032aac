package delayed_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/delayed"
	"github.com/millpond-go/millpond/middleware/header"
)

var (
	errFailed = errors.New("the shop is closed")
	soon      = backoff.Constant{Interval: time.Millisecond, Retries: 2}
	silent    = watermill.NopLogger{}
)

const patience = 10 * time.Second

// routed is a router on Watermill's GoChannel, which ignores delays, so that retries
// follow at once. recorder sees each message that is published.
type routed struct {
	t      *testing.T
	pubSub *recorder
	router *message.Router
}

// recorder is a GoChannel that remembers the published messages.
type recorder struct {
	*gochannel.GoChannel
	mu        sync.Mutex
	published map[string][]*message.Message
	failures  int
}

func (r *recorder) Publish(topic string, messages ...*message.Message) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failures > 0 {
		r.failures--
		return errFailed
	}
	for _, msg := range messages {
		r.published[topic] = append(r.published[topic], msg.Copy())
	}
	return r.GoChannel.Publish(topic, messages...)
}

func (r *recorder) to(topic string) []*message.Message {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.published[topic]
}

func newRouted(t *testing.T) *routed {
	t.Helper()
	pubSub := &recorder{
		GoChannel: gochannel.NewGoChannel(gochannel.Config{OutputChannelBuffer: 100}, silent),
		published: map[string][]*message.Message{},
	}
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: patience}, silent)
	require.NoError(t, err)
	return &routed{t: t, pubSub: pubSub, router: router}
}

// retry gives the router's handlers the republisher's middleware and subscriber.
func (r *routed) retry(policy backoff.Policy, options ...delayed.Option) *delayed.Republisher {
	r.t.Helper()
	republisher, err := delayed.NewRepublisher(r.pubSub, options...)
	require.NoError(r.t, err)
	retry, err := middleware.NewDelayedRetry(republisher, policy)
	require.NoError(r.t, err)
	r.router.AddSubscriberDecorators(republisher.Subscriber)
	r.router.AddMiddleware(retry.Middleware)
	return republisher
}

func (r *routed) handle(topic string, handler message.NoPublishHandlerFunc) {
	r.router.AddConsumerHandler(topic, topic, r.pubSub, handler)
}

func (r *routed) run() {
	r.t.Helper()
	ended := rig.Run(r.t, r.router)
	r.t.Cleanup(func() {
		require.NoError(r.t, errors.Join(r.router.Close(), <-ended, r.pubSub.Close()))
	})
}

// publish publishes order-1 to the topic orders.
func (r *routed) publish() {
	r.t.Helper()
	require.NoError(r.t, r.pubSub.Publish("orders", message.NewMessage("order-1", nil)))
}

// dead waits for the dead letter in a topic.
func (r *routed) dead(topic string) *message.Message {
	r.t.Helper()
	rig.WaitFor(r.t, "the dead letter", func() bool { return len(r.pubSub.to(topic)) == 1 })
	return r.pubSub.to(topic)[0]
}

func TestNewRepublisherNamesEveryProblem(t *testing.T) {
	t.Parallel()
	_, err := delayed.NewRepublisher((*recorder)(nil), nil,
		delayed.WithRetryTopic(nil), delayed.WithDeadLetterTopic(nil),
		delayed.WithDeadLetterPublisher(nil), delayed.WithPublishTimeout(0), delayed.WithLogger(nil))
	require.EqualError(t, err, `new delayed republisher: publisher is nil
option 0 is nil
WithRetryTopic: name is nil
WithDeadLetterTopic: name is nil
WithDeadLetterPublisher: publisher is nil
WithPublishTimeout: 0s is not positive
WithLogger: logger is nil`)
}

func TestFailedMessageComesBackAsItArrived(t *testing.T) {
	t.Parallel()
	r := newRouted(t)
	r.retry(soon)
	type seen struct {
		attempt       int
		uuid, payload string
		metadata      message.Metadata
	}
	attempts := make(chan seen, 10)
	r.handle("orders", func(msg *message.Message) error {
		attempt := middleware.Attempt(msg.Context())
		attempts <- seen{attempt, msg.UUID, string(msg.Payload), maps.Clone(msg.Metadata)}
		// In place, where the republisher could still see it.
		msg.Payload[0] = '?'
		msg.Metadata["customer"], msg.Metadata["more"] = "changed", "added"
		wmiddleware.SetCorrelationID("of the handler", msg)
		msg.UUID = "changed"
		return errFailed
	})
	r.run()
	msg := message.NewMessage("order-1", message.Payload("first"))
	msg.Metadata["customer"] = "7"
	require.NoError(t, r.pubSub.Publish("orders", msg))

	first := rig.Await(t, attempts)
	require.Equal(t, seen{1, "order-1", "first", message.Metadata{"customer": "7"}}, first)
	for attempt := 2; attempt <= 3; attempt++ {
		again := rig.Await(t, attempts)
		require.Equal(t, attempt, again.attempt)
		require.Equal(t, "order-1", again.uuid)
		require.Equal(t, "first", again.payload)
		require.Equal(t, "7", again.metadata["customer"])
		require.NotContains(t, again.metadata, "more")
		correlation := again.metadata[wmiddleware.CorrelationIDMetadataKey]
		require.Equal(t, "of the handler", correlation, "travels always")
		require.Equal(t, "orders", again.metadata[header.Queue])
		require.Equal(t, "1ms", again.metadata[delay.DelayedForKey])
	}
	dead := r.dead("orders.dlq")
	require.Equal(t, "order-1", dead.UUID)
	require.Equal(t, "first", string(dead.Payload))
	for key, value := range map[string]string{
		"customer":                       "7",
		header.DeadReason:                "exhausted",
		header.DeadFailures:              "3",
		header.DeadQueue:                 "orders",
		header.DeadHandler:               "orders",
		header.DeadError:                 errFailed.Error(),
		wmiddleware.ReasonForPoisonedKey: errFailed.Error(),
		wmiddleware.PoisonedTopicKey:     "orders",
		wmiddleware.PoisonedHandlerKey:   "orders",
		delay.DelayedForKey:              "0s",
	} {
		require.Equal(t, value, dead.Metadata[key], key)
	}
	require.NotEmpty(t, dead.Metadata[wmiddleware.PoisonedSubscriberKey])
	for key := range dead.Metadata {
		origin := key == header.OriginExchange || key == header.OriginRoutingKey
		require.False(t, header.IsLive(key) && !origin, "live header %s on a dead letter", key)
	}
}

// Live headers belong to a topic (decision 8).
func TestForwardedMessageStartsAtAttemptOne(t *testing.T) {
	t.Parallel()
	r := newRouted(t)
	r.retry(soon)
	forward := func(msg *message.Message) ([]*message.Message, error) {
		if middleware.Attempt(msg.Context()) < 3 {
			return nil, errFailed
		}
		return []*message.Message{msg}, nil
	}
	r.router.AddHandler("orders", "orders", r.pubSub, "invoices", r.pubSub, forward)
	type seen struct {
		attempt, past int
		live          []string
	}
	attempts := make(chan seen, 10)
	r.handle("invoices", func(msg *message.Message) error {
		ctx := msg.Context()
		s := seen{attempt: middleware.Attempt(ctx), past: len(middleware.StateOf(ctx).History)}
		for key := range msg.Metadata {
			if header.IsLive(key) {
				s.live = append(s.live, key)
			}
		}
		attempts <- s
		return nil
	})
	r.run()
	r.publish()
	require.Equal(t, seen{attempt: 1}, rig.Await(t, attempts))
}

// Given two consumer groups, when one of them fails, then the other does not get its retries.
func TestRetryTopicIsOfOneConsumerGroup(t *testing.T) {
	t.Parallel()
	r := newRouted(t)
	r.retry(soon, delayed.WithRetryTopic(func(string) string { return "billing.retry" }),
		delayed.WithDeadLetterTopic(func(string) string { return "dead" }))
	attempts := make(chan int, 10)
	bill := func(msg *message.Message) error {
		attempts <- middleware.Attempt(msg.Context())
		return errFailed
	}
	r.handle("orders", bill)
	r.handle("billing.retry", bill)
	others := make(chan string, 10)
	r.router.AddConsumerHandler("others", "orders", r.pubSub, func(msg *message.Message) error {
		others <- msg.UUID
		return nil
	})
	r.run()
	r.publish()
	for attempt := 1; attempt <= 3; attempt++ {
		require.Equal(t, attempt, rig.Await(t, attempts))
	}
	require.Equal(t, "billing.retry", r.dead("dead").Metadata[header.DeadQueue])
	rig.Await(t, others)
	require.Empty(t, others)
}

func TestMessageThatCannotBePublishedIsHeld(t *testing.T) {
	t.Parallel()
	r := newRouted(t)
	r.retry(soon)
	attempts := make(chan int, 10)
	r.pubSub.failures = 1
	r.handle("orders", func(msg *message.Message) error {
		attempts <- middleware.Attempt(msg.Context())
		return errFailed
	})
	r.run()
	// Past the recorder: that publish is not to fail.
	require.NoError(t, r.pubSub.GoChannel.Publish("orders", message.NewMessage("order-1", nil)))
	require.Equal(t, 1, rig.Await(t, attempts))
	require.Equal(t, 2, rig.Await(t, attempts), "neither lost nor counted twice")
}

func TestMessageThatCameAnotherWayIsNotDelivered(t *testing.T) {
	t.Parallel()
	r := newRouted(t)
	republisher := r.retry(soon)
	another, err := delayed.NewRepublisher(r.pubSub)
	require.NoError(t, err)
	copied := make(chan error, 2)
	r.handle("orders", func(msg *message.Message) error {
		ctx, state := msg.Context(), header.RetryState{}
		_, err := republisher.Republish(ctx, msg.CopyWithContext(), time.Second, state)
		copied <- err
		copied <- another.DeadLetter(ctx, msg, state)
		return nil
	})
	r.run()
	r.publish()
	for range 2 {
		require.ErrorIs(t, rig.Await(t, copied), middleware.ErrNotDelivered)
	}
	plain := message.NewMessage("order-2", nil)
	_, err = republisher.Republish(context.Background(), plain, time.Second, header.RetryState{})
	require.ErrorIs(t, err, middleware.ErrNotDelivered)
	require.ErrorContains(t, err, "AddSubscriberDecorators(republisher.Subscriber)")
}

func TestPubSubThatIgnoresDelaysIsNamedOnce(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		interval time.Duration
		want     int
	}{
		"asked for an hour":        {time.Hour, 1},
		"asked for a millisecond":  {time.Millisecond, 0},
		"the clocks of two hosts?": {900 * time.Millisecond, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			logger := watermill.NewCaptureLogger()
			r := newRouted(t)
			policy := backoff.Constant{Interval: test.interval, Retries: 3}
			r.retry(policy, delayed.WithLogger(logger))
			r.handle("orders", func(*message.Message) error { return errFailed })
			r.run()
			r.publish()
			r.dead("orders.dlq")
			require.Len(t, logger.Captured()[watermill.ErrorLogLevel], test.want)
		})
	}
}

func TestDelayIsNeverCutShort(t *testing.T) {
	t.Parallel()
	r := newRouted(t)
	policy := backoff.List{time.Millisecond, 300 * time.Millisecond, time.Second, 90 * time.Second}
	r.retry(policy)
	r.handle("orders", func(*message.Message) error { return errFailed })
	r.run()
	began := time.Now()
	r.publish()
	dead := r.dead("orders.dlq")
	retries := r.pubSub.to("orders")[1:]
	require.Len(t, retries, 4)
	for i, asked := range policy {
		require.Equal(t, asked.String(), retries[i].Metadata[delay.DelayedForKey])
		until, err := time.Parse(time.RFC3339, retries[i].Metadata[delay.DelayedUntilKey])
		require.NoError(t, err)
		require.GreaterOrEqual(t, until.Sub(began), asked)
		require.LessOrEqual(t, until.Sub(began), asked+time.Second+patience)
	}
	until, err := time.Parse(time.RFC3339, dead.Metadata[delay.DelayedUntilKey])
	require.NoError(t, err)
	require.False(t, until.After(time.Now()), "a dead letter does not wait")
}

// PostgreSQL reads no row of a topic that has one NUL in one row's metadata.
func TestNulInAnErrorMadeATopicUnreadable(t *testing.T) {
	t.Parallel()
	r := newRouted(t)
	r.retry(soon)
	r.handle("orders", func(*message.Message) error { return errNul })
	r.run()
	r.publish()
	dead := r.dead("orders.dlq")
	for _, msg := range slices.Concat(r.pubSub.to("orders"), r.pubSub.to("orders.dlq")) {
		for key, value := range msg.Metadata {
			require.NotContains(t, value, "\x00", key)
		}
	}
	require.Equal(t, "half\uFFFDread", dead.Metadata[header.DeadError])
}

type nulError struct{}

func (nulError) Error() string { return "half\x00read" }

var errNul = nulError{}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
