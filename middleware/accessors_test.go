package middleware_test

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/attached"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
)

func TestAccessorsWithoutADelivery(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	assert.Equal(t, 1, middleware.Attempt(ctx))
	assert.False(t, middleware.LastAttempt(ctx))
	assert.Zero(t, middleware.StateOf(ctx))
}

func TestLastAttemptGoesByAllLimits(t *testing.T) {
	t.Parallel()
	hourAgo := time.Now().Add(-time.Hour)
	// Where the end of the policy is not known, the message reaches the handler.
	unknownEnd := options{
		policyFor(selector{Queue: "orders"}, backoff.PolicyFunc(backoff.List{time.Second}.Delay)),
		withMaxAge(24 * time.Hour),
	}
	for name, test := range map[string]struct {
		notes   header.RetryState
		options []middleware.Option
		want    bool
	}{
		"first of three": {state{}, nil, false},
		"third of three": {state{Failures: 2}, nil, true},
		"attempts":       {state{}, options{withMaxAttempts(1)}, true},
		"age": {
			state{Failures: 1, FirstFailure: hourAgo}, options{withMaxAge(time.Hour)}, true,
		},
		"deadline":          {state{Deadline: hourAgo}, nil, true},
		"any default class": {state{}, options{middleware.WithDefaultClass(permanent)}, false},
		"forged, far above": {state{Failures: 1 << 62}, unknownEnd, true},
		"forged, negative":  {state{Failures: -1}, nil, false},
		"forged, first in 2999": {
			state{FirstFailure: time.Date(2999, 1, 1, 0, 0, 0, 0, time.UTC)},
			options{withMaxAge(time.Hour)},
			false,
		},
	} {
		var got bool
		acked(t, newRetry(t, newBroker(), test.options...).Middleware(
			consumer(func(msg *message.Message) error {
				got = middleware.LastAttempt(msg.Context())
				return nil
			}),
		), newMessage(delivery{State: test.notes}))
		assert.Equal(t, test.want, got, name)
	}
}

// A policy that chooses by error may take it for granted that there is one.
func TestLastAttemptShowsThePolicyAnError(t *testing.T) {
	t.Parallel()
	broker := newBroker()
	retry, err := middleware.NewDelayedRetry(broker, backoff.PolicyFunc(func(f backoff.Failure) (
		time.Duration, bool,
	) {
		return time.Second, f.Err.Error() != "unknown error"
	}), withMaxAttempts(5))
	require.NoError(t, err)
	broker.Run(retry.Middleware(consumer(func(msg *message.Message) error {
		assert.True(t, middleware.LastAttempt(msg.Context()))
		return nil
	})), newMessage(delivery{}))
}

func TestAFirstFailureThatLiesAheadIsNow(t *testing.T) {
	t.Parallel()
	msg := newMessage(delivery{State: state{Failures: 1, FirstFailure: time.Now().Add(time.Hour)}})
	at := middleware.StateOf(msg.Context()).FirstFailure
	assert.WithinDuration(t, time.Now(), at, time.Minute)
}

func TestPastAttemptsIsACopy(t *testing.T) {
	t.Parallel()
	notes := state{History: []header.AttemptError{{Attempt: 1}}}
	ctx := newMessage(delivery{State: notes}).Context()
	middleware.StateOf(ctx).History[0].Attempt = 9
	assert.Equal(t, 1, middleware.StateOf(ctx).History[0].Attempt)
}

func TestDeduplicationKey(t *testing.T) {
	t.Parallel()
	key := func(uuid string, d delivery) string {
		t.Helper()
		msg := message.NewMessage(uuid, nil)
		attach(d).Attach(msg)
		key, err := middleware.DeduplicationKey(msg)
		assert.NoError(t, err)
		assert.NotEqual(t, "", key)
		return key
	}
	for name, test := range map[string]struct {
		uuid string
		d    delivery
		same bool // the key of another message with the same ids
	}{
		"first delivery":          {"uuid", delivery{Queue: "orders"}, true},
		"with a message id":       {"uuid", delivery{Queue: "orders", MessageID: "id"}, true},
		"with a message id alone": {"", delivery{Queue: "orders", MessageID: "id"}, true},
		"with no id":              {"", delivery{Queue: "orders"}, false},
		"redelivered":             {"uuid", delivery{Redelivered: true}, false},
		"retried":                 {"uuid", delivery{State: state{Failures: 1}}, false},
		"snoozed":                 {"uuid", delivery{State: state{FirstSeen: time.Now()}}, false},
		"moved back when it was dead": {
			"uuid", delivery{State: state{History: make([]header.AttemptError, 1)}}, false,
		},
	} {
		one, another := key(test.uuid, test.d), key(test.uuid, test.d)
		assert.Equal(t, test.same, (one == another), name)
	}
	byID := delivery{Queue: "orders", MessageID: "id"}
	assert.Equal(t, key("another", byID), key("one", byID))
	assert.NotEqual(t, key("uuid", delivery{Queue: "mails"}), key("uuid", delivery{Queue: "orders"}))
	got, err := middleware.DeduplicationKey(message.NewMessage("uuid", nil))
	require.NoError(t, err)
	assert.Equal(t, key("uuid", delivery{}), got)
}

func attach(d delivery) *attached.Delivery {
	return &attached.Delivery{Facts: attached.Facts(d)}
}

func TestHowFarADeliveryHasCome(t *testing.T) {
	t.Parallel()
	d := attach(delivery{Queue: "orders"})
	d.Attach(message.NewMessage("uuid", nil))
	assert.Equal(t, attached.Outside, d.Progress())
	gone := attach(delivery{Queue: "orders", Gone: closedChan()})
	gone.Attach(message.NewMessage("uuid", nil))
	h := newRetry(t, unused{}).Middleware(succeeds)
	_, err := h(gone.Message)
	require.ErrorIs(t, err, middleware.ErrInterrupted)
	assert.Equal(t, attached.Unsettled, gone.Progress())
	gone.Gone = nil // a middleware outside tries again, and now it works
	acked(t, h, gone.Message)
	assert.Equal(t, attached.Inside, gone.Progress())
	gone.Attach(message.NewMessageWithContext(context.Background(), "uuid", nil))
	assert.Equal(t, attached.Outside, gone.Progress())
}

// The Subscriber logs and tells while the handler has the message, so the ids of Attach count.
// Without a message the ids are the delivery's.
func TestLogFieldsAreThoseOfTheArrival(t *testing.T) {
	t.Parallel()
	detached := attach(delivery{MessageID: "m-1", CorrelationID: "c-0"})
	want := watermill.LogFields{"attempt": 1, "message_id": "m-1", "correlation_id": "c-0"}
	assert.Equal(t, want, detached.LogFields(detached.IDsThen()))

	msg := message.NewMessage("u-1", nil)
	wmiddleware.SetCorrelationID("c-1", msg)
	d := attach(delivery{CorrelationID: "c-0"})
	d.Attach(msg)
	msg.UUID = "u-2"
	msg.Metadata = message.Metadata{wmiddleware.CorrelationIDMetadataKey: "c-2"}
	want = watermill.LogFields{
		"attempt": 1, "message_id": "u-1", "message_uuid": "u-1", "correlation_id": "c-1",
	}
	assert.Equal(t, want, d.LogFields(d.IDsThen()))
}

// The Subscriber asks while the handler may write the message's context, so the context of the
// entry counts.
func TestEntryContext(t *testing.T) {
	t.Parallel()
	type key struct{}
	assert.Nil(t, new(attached.Delivery).EntryContext())
	d := attach(delivery{Queue: "orders"})
	msg := message.NewMessage("u-1", nil)
	arrived := msg.Context()
	d.Attach(msg)
	assert.True(t, d.EntryContext() == arrived)
	entered := context.WithValue(msg.Context(), key{}, "outer")
	msg.SetContext(entered)
	_, err := newRetry(t, unused{}).Middleware(func(msg *message.Message) ([]*message.Message, error) {
		msg.SetContext(context.WithValue(entered, key{}, "inner"))
		assert.Same(t, entered, d.EntryContext())
		return nil, nil
	})(msg)
	require.NoError(t, err)
}

// A delivery that is attached again, as middlewaretest does, is a new one.
func TestAttachForgetsWhichMiddlewareWasTheOuterOne(t *testing.T) {
	t.Parallel()
	broker := newBroker()
	d := attach(delivery{Queue: "orders"})
	for range 2 {
		msg := message.NewMessage("uuid", nil)
		d.Attach(msg)
		acked(t, newRetry(t, broker).Middleware(failsWith(errBoom)), msg)
	}
	for i, call := range broker.Calls() {
		assert.False(t, call.State.Inner, "delivery %d", i+1)
	}
}
