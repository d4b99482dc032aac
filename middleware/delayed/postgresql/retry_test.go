package postgresql_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	wsql "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
)

var soon = backoff.Constant{Interval: time.Millisecond, Retries: 1}

type call struct {
	attempt  int
	at       time.Time
	uuid     string
	payload  string
	customer string
}

func TestMessageIsRetriedAfterItsDelay(t *testing.T) {
	t.Parallel()
	calls := make(chan call, 10)
	policy := backoff.List{300 * time.Millisecond, 2 * time.Second, time.Second}
	r := newRig(t, policy, func(msg *message.Message) error {
		attempt, customer := middleware.Attempt(msg.Context()), msg.Metadata["customer"]
		calls <- call{attempt, time.Now(), msg.UUID, string(msg.Payload), customer}
		msg.Metadata["customer"], msg.Payload[0] = "changed", '?'
		return errFailed
	})
	sent := r.publish(`{"order":1}`)
	var last time.Time
	for i, asked := range append([]time.Duration{0}, policy...) {
		select {
		case c := <-calls:
			require.Equal(t, i+1, c.attempt)
			require.Equal(t, sent.UUID, c.uuid)
			require.Equal(t, `{"order":1}`, c.payload)
			require.Equal(t, "7", c.customer, "as it arrived")
			if i > 0 {
				require.GreaterOrEqual(t, c.at.Sub(last), asked-slack, "attempt %d came early", c.attempt)
				require.LessOrEqual(t, c.at.Sub(last), asked+10*time.Second, "attempt %d came late", c.attempt)
			}
			last = c.at
		case <-time.After(patience):
			t.Fatalf("waited %s for attempt %d", patience, i+1)
		}
	}
	dead := r.dead()
	require.Equal(t, sent.UUID, dead.uuid)
	require.JSONEq(t, `{"order":1}`, dead.payload)
	require.Equal(t, "7", dead.metadata["customer"])
	require.Equal(t, "exhausted", dead.metadata[header.DeadReason])
	require.Equal(t, "4", dead.metadata[header.DeadFailures])
	require.Equal(t, r.topic, dead.metadata[wmiddleware.PoisonedTopicKey])
	testbroker.WaitFor(t, "the acks", patience, func() bool { return len(r.rows(r.topic)) == 0 })
	r.stop()
	require.Empty(t, calls, "no fifth attempt")
}

// A snoozed message spends no attempt. A permanent error dead-letters it at once.
func TestMarksWorkAsOnRabbitMQ(t *testing.T) {
	t.Parallel()
	attempts := make(chan int, 10)
	var n atomic.Int32
	hourly := backoff.Constant{Interval: time.Hour, Retries: 3}
	r := newRig(t, hourly, func(msg *message.Message) error {
		attempts <- middleware.Attempt(msg.Context())
		if n.Add(1) == 1 {
			return middleware.Snooze(errFailed, 10*time.Millisecond)
		}
		return middleware.Permanent(errFailed)
	})
	r.publish(`{}`)
	require.Equal(t, "permanent", r.dead().metadata[header.DeadReason])
	require.Equal(t, 1, <-attempts)
	require.Equal(t, 1, <-attempts)
}

// One NUL in the metadata of one row, and PostgreSQL reads no row of the topic.
func TestNulInAnErrorMadeATopicUnreadable(t *testing.T) {
	t.Parallel()
	var calls atomic.Int32
	r := newRig(t, soon, func(msg *message.Message) error {
		wmiddleware.SetCorrelationID("cor\x00related", msg)
		calls.Add(1)
		return errors.New("half\x00read")
	})
	r.publish(`{}`)
	require.Equal(t, "half\uFFFDread", r.dead().metadata[header.DeadError])
	require.EqualValues(t, 2, calls.Load())
}

// The dead letters of a topic are a topic. A subscriber that takes only messages with a
// delay gets them, too, and a message that is moved back starts at attempt 1.
func TestDeadLetterMovedBackStartsAtAttemptOne(t *testing.T) {
	t.Parallel()
	type seen struct{ attempt, past int }
	calls := make(chan seen, 10)
	r := newRig(t, soon, func(msg *message.Message) error {
		ctx := msg.Context()
		calls <- seen{middleware.Attempt(ctx), len(middleware.StateOf(ctx).History)}
		return errFailed
	})
	r.publish(`{}`)
	r.dead()
	sub, err := wsql.NewDelayedPostgreSQLSubscriber(wsql.BeginnerFromStdSQL(r.db),
		wsql.DelayedPostgreSQLSubscriberConfig{DeleteOnAck: true})
	require.NoError(t, err)
	defer sub.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	letters, err := sub.Subscribe(ctx, r.topic+".dlq")
	require.NoError(t, err)
	letter, ok := <-letters
	require.True(t, ok, "waited %s for the dead letter", patience)
	bare := message.NewMessage(letter.UUID, letter.Payload)
	require.NoError(t, r.pub.Publish(r.topic, bare), "without metadata")
	again := message.NewMessage(letter.UUID, letter.Payload)
	again.Metadata = letter.Metadata
	letter.Ack()
	for _, want := range []seen{{1, 0}, {2, 1}, {1, 0}, {2, 1}} {
		require.Equal(t, want, <-calls)
	}
	require.NoError(t, r.pub.Publish(r.topic, again))
	for _, want := range []seen{{1, 2}, {2, 3}} {
		require.Equal(t, want, <-calls)
	}
}

// Given a handler that takes longer than watermill-sql's AckDeadline, then it is
// interrupted, no attempt is counted, and the messages read with it are not lost.
func TestMessagesAfterASlowOneWereLost(t *testing.T) {
	t.Parallel()
	const messages = 6
	handled := make(chan string, 100)
	published := make(chan struct{})
	var n atomic.Int32
	hourly := backoff.Constant{Interval: time.Hour, Retries: 1}
	r := newRig(t, hourly, func(msg *message.Message) error {
		switch n.Add(1) {
		case 1: // so that the others are read together, where they are read in batches
			<-published
		case 3:
			<-msg.Context().Done()
			return errFailed
		}
		assert.Equal(t, 1, middleware.Attempt(msg.Context()))
		handled <- msg.UUID
		return nil
	})
	missing := map[string]bool{}
	for range messages {
		missing[r.publish(`{}`).UUID] = true
	}
	close(published)
	limit := time.After(patience)
	for len(missing) > 0 {
		select {
		case uuid := <-handled:
			delete(missing, uuid)
		case <-limit:
			t.Fatalf("waited %s for %d messages that are not in the table any more: %v",
				patience, len(missing), r.rows(r.topic))
		}
	}
}
