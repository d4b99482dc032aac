package topology_test

import (
	"context"
	"testing"
	"time"

	"github.com/millpond-go/millpond/internal/testing/rig"

	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
)

// A handler asks to come back later: no attempt is spent, however often, also
// where that is longer than every wait step (C6).
func TestLaterSpendsNoAttempt(t *testing.T) {
	t.Parallel()
	var calls rig.Timeline
	attempts := make(chan int, 10)
	r := rig.Start(t, rig.Config{
		Strategy: topology.PerQueue{WaitSteps: []time.Duration{time.Second}},
		Policy:   backoff.List{time.Second},
		Handler: func(msg *message.Message) ([]*message.Message, error) {
			attempts <- middleware.Attempt(msg.Context())
			switch calls.Add() {
			case 1:
				return nil, middleware.Snooze(rig.ErrFailed, 2500*time.Millisecond)
			case 2:
				return nil, middleware.Snooze(rig.ErrFailed, 0)
			}
			return nil, rig.ErrFailed
		},
	})
	r.Publish(amqp.Publishing{Body: []byte("later")})
	dead := r.DeadLetter()
	require.Equal(t, "2", dead.Headers[header.DeadFailures])
	calls.RequireGaps(t, 2500*time.Millisecond, time.Second, time.Second)
	require.Equal(t, []int{1, 1, 1, 2}, []int{<-attempts, <-attempts, <-attempts, <-attempts})
}

// A message whose notes say more failures than the policy allows is
// dead-lettered without calling the handler; an empty or foreign count is none.
func TestForgedCountsAreGuarded(t *testing.T) {
	t.Parallel()
	attempts := make(chan int, 10)
	r := rig.Start(t, rig.Config{
		Policy: backoff.List{time.Second},
		Handler: func(msg *message.Message) ([]*message.Message, error) {
			attempts <- middleware.Attempt(msg.Context())
			return nil, nil
		},
	})
	for _, forged := range []string{"2", "99999999999999999999"} {
		r.Publish(amqp.Publishing{Headers: amqp.Table{header.Queue: r.Queue, header.Failures: forged}, Body: []byte("forged")})
		dead := r.DeadLetter()
		require.Equal(t, "exhausted", dead.Headers[header.DeadReason])
	}
	require.Empty(t, attempts)
	for _, headers := range []amqp.Table{
		{header.Queue: r.Queue, header.Failures: "-3"},
		{header.Queue: r.Queue, header.Failures: "many"},
		{header.Queue: "another", header.Failures: "99"},
		{header.Failures: int64(99)},
	} {
		r.Publish(amqp.Publishing{Headers: headers, Body: []byte("harmless")})
		require.Equal(t, 1, <-attempts)
	}
}

// Of what a handler or a middleware does to the metadata only the correlation id
// and named keys travel; a header that was only read keeps its type.
func TestKeptMetadataTravels(t *testing.T) {
	t.Parallel()
	dead := make(chan middleware.DeadLetter, 1)
	r := rig.Start(t, rig.Config{
		Policy: backoff.List{100 * time.Millisecond},
		RetryOptions: []middleware.Option{
			middleware.WithKeptMetadata("step", "number"),
			middleware.WithDeadLetterHook(func(_ context.Context, d middleware.DeadLetter) { dead <- d }),
		},
		Handler: func(msg *message.Message) ([]*message.Message, error) {
			if middleware.Attempt(msg.Context()) == 1 {
				msg.Metadata.Set(wmiddleware.CorrelationIDMetadataKey, "corr-7")
				msg.Metadata.Set("step", "charged")
				msg.Metadata.Set("other", "lost")
			}
			return nil, rig.ErrFailed
		},
	})
	r.Publish(amqp.Publishing{Headers: amqp.Table{"number": int64(7)}, MessageId: "id-7", Body: []byte("kept")})
	letter := r.DeadLetter()
	require.Equal(t, "corr-7", letter.Headers[wmiddleware.CorrelationIDMetadataKey])
	require.Equal(t, "charged", letter.Headers["step"])
	require.Equal(t, int64(7), letter.Headers["number"])
	require.NotContains(t, letter.Headers, "other")
	hooked := <-dead
	require.Equal(t, header.ReasonExhausted, hooked.State.Reason)
	require.Len(t, hooked.State.History, 2)
	require.ErrorIs(t, hooked.Err, rig.ErrFailed)
}
