package delayed_test

import (
	"context"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/delayed"
	"github.com/millpond-go/millpond/middleware/header"
)

func TestNewRepublisherNamesEveryProblem(t *testing.T) {
	t.Parallel()
	var nobody *recorder
	_, err := delayed.NewRepublisher(nobody, nil, delayed.WithRetryTopic(nil), delayed.WithDeadLetterTopic(nil),
		delayed.WithDeadLetterPublisher(nil), delayed.WithPublishTimeout(0), delayed.WithLogger(nil))
	for _, problem := range []string{"publisher is nil", "option 0 is nil", "WithRetryTopic: name is nil", "WithDeadLetterTopic: name is nil",
		"WithDeadLetterPublisher: publisher is nil", "WithPublishTimeout: 0s is not positive", "WithLogger: logger is nil"} {
		require.ErrorContains(t, err, problem)
	}
}

func TestFailedMessageComesBackAsItArrived(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.retry(soon)
	type seen struct {
		attempt       int
		uuid, payload string
		metadata      message.Metadata
	}
	attempts := make(chan seen, 10)
	r.handle("orders", func(msg *message.Message) error {
		attempts <- seen{middleware.Attempt(msg.Context()), msg.UUID, string(msg.Payload), maps.Clone(msg.Metadata)}
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

	first := receive(t, "attempt 1", attempts)
	require.Equal(t, seen{1, "order-1", "first", message.Metadata{"customer": "7"}}, first)
	for attempt := 2; attempt <= 3; attempt++ {
		again := receive(t, "a retry", attempts)
		require.Equal(t, attempt, again.attempt)
		require.Equal(t, "order-1", again.uuid)
		require.Equal(t, "first", again.payload)
		require.Equal(t, "7", again.metadata["customer"])
		require.NotContains(t, again.metadata, "more")
		require.Equal(t, "of the handler", again.metadata[wmiddleware.CorrelationIDMetadataKey], "travels always")
		require.Equal(t, "orders", again.metadata[header.Queue])
		require.Equal(t, "1ms", again.metadata[delay.DelayedForKey])
	}
	testbroker.WaitFor(t, "the dead letter", patience, func() bool { return len(r.pubSub.to("orders.dlq")) == 1 })
	dead := r.pubSub.to("orders.dlq")[0]
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
		require.False(t, header.IsLive(key) && !origin, "live note %s on a dead letter", key)
	}
}

// Notes belong to a topic (decision 8).
func TestForwardedMessageStartsAtAttemptOne(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.retry(soon)
	r.router.AddHandler("orders", "orders", r.pubSub, "invoices", r.pubSub, func(msg *message.Message) ([]*message.Message, error) {
		if middleware.Attempt(msg.Context()) < 3 {
			return nil, errFailed
		}
		return []*message.Message{msg}, nil
	})
	type seen struct {
		attempt, past int
		live          []string
	}
	attempts := make(chan seen, 10)
	r.handle("invoices", func(msg *message.Message) error {
		s := seen{attempt: middleware.Attempt(msg.Context()), past: len(middleware.StateOf(msg.Context()).History)}
		for key := range msg.Metadata {
			if header.IsLive(key) {
				s.live = append(s.live, key)
			}
		}
		attempts <- s
		return nil
	})
	r.run()
	require.NoError(t, r.pubSub.Publish("orders", message.NewMessage("order-1", nil)))
	require.Equal(t, seen{attempt: 1}, receive(t, "the forwarded message", attempts))
}

// Two consumer groups: the one that succeeded is not shown the retries of the other.
func TestRetryTopicIsOfOneConsumerGroup(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.retry(soon, delayed.WithRetryTopic(func(string) string { return "billing.retry" }), delayed.WithDeadLetterTopic(func(string) string { return "dead" }))
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
	require.NoError(t, r.pubSub.Publish("orders", message.NewMessage("order-1", nil)))
	for attempt := 1; attempt <= 3; attempt++ {
		require.Equal(t, attempt, receive(t, "an attempt", attempts))
	}
	testbroker.WaitFor(t, "the dead letter", patience, func() bool { return len(r.pubSub.to("dead")) == 1 })
	require.Equal(t, "billing.retry", r.pubSub.to("dead")[0].Metadata[header.DeadQueue])
	require.Len(t, others, 1)
}

func TestMessageThatCannotBePublishedIsHeld(t *testing.T) {
	t.Parallel()
	r := newRig(t)
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
	require.Equal(t, 1, receive(t, "attempt 1", attempts))
	require.Equal(t, 2, receive(t, "attempt 2", attempts), "neither lost nor counted twice")
}

func TestMessageThatCameAnotherWayIsNotDelivered(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	republisher := r.retry(soon)
	another, err := delayed.NewRepublisher(r.pubSub)
	require.NoError(t, err)
	copied := make(chan error, 2)
	r.handle("orders", func(msg *message.Message) error {
		_, err := republisher.Republish(msg.Context(), msg.CopyWithContext(), time.Second, header.RetryState{})
		copied <- err
		copied <- another.DeadLetter(msg.Context(), msg, header.RetryState{})
		return nil
	})
	r.run()
	require.NoError(t, r.pubSub.Publish("orders", message.NewMessage("order-1", nil)))
	for range 2 {
		require.ErrorIs(t, receive(t, "an answer", copied), middleware.ErrNotDelivered)
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
			r := newRig(t)
			r.retry(backoff.Constant{Interval: test.interval, Retries: 3}, delayed.WithLogger(logger))
			r.handle("orders", func(*message.Message) error { return errFailed })
			r.run()
			require.NoError(t, r.pubSub.Publish("orders", message.NewMessage("order-1", nil)))
			testbroker.WaitFor(t, "the dead letter", patience, func() bool { return len(r.pubSub.to("orders.dlq")) == 1 })
			require.Len(t, logger.Captured()[watermill.ErrorLogLevel], test.want)
		})
	}
}

func TestDelayIsNeverCutShort(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.retry(backoff.List{time.Millisecond, 300 * time.Millisecond, time.Second, 90 * time.Second})
	r.handle("orders", func(*message.Message) error { return errFailed })
	r.run()
	began := time.Now()
	require.NoError(t, r.pubSub.Publish("orders", message.NewMessage("order-1", nil)))
	testbroker.WaitFor(t, "the dead letter", patience, func() bool { return len(r.pubSub.to("orders.dlq")) == 1 })
	retries := r.pubSub.to("orders")[1:]
	require.Len(t, retries, 4)
	for i, asked := range []time.Duration{time.Millisecond, 300 * time.Millisecond, time.Second, 90 * time.Second} {
		require.Equal(t, asked.String(), retries[i].Metadata[delay.DelayedForKey])
		until, err := time.Parse(time.RFC3339, retries[i].Metadata[delay.DelayedUntilKey])
		require.NoError(t, err)
		require.GreaterOrEqual(t, until.Sub(began), asked)
		require.LessOrEqual(t, until.Sub(began), asked+time.Second+patience)
	}
	dead, err := time.Parse(time.RFC3339, r.pubSub.to("orders.dlq")[0].Metadata[delay.DelayedUntilKey])
	require.NoError(t, err)
	require.False(t, dead.After(time.Now()), "a dead letter waits for nothing")
}

// PostgreSQL reads no row of a topic that has one NUL in one row's metadata.
func TestNulInAnErrorMadeATopicUnreadable(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.retry(soon)
	r.handle("orders", func(*message.Message) error { return errNul })
	r.run()
	require.NoError(t, r.pubSub.Publish("orders", message.NewMessage("order-1", nil)))
	testbroker.WaitFor(t, "the dead letter", patience, func() bool { return len(r.pubSub.to("orders.dlq")) == 1 })
	for _, msg := range slices.Concat(r.pubSub.to("orders"), r.pubSub.to("orders.dlq")) {
		for key, value := range msg.Metadata {
			require.NotContains(t, value, "\x00", key)
		}
	}
	require.Equal(t, "half\uFFFDread", r.pubSub.to("orders.dlq")[0].Metadata[header.DeadError])
}

type nulError struct{}

func (nulError) Error() string { return "half\x00read" }

var errNul = nulError{}
