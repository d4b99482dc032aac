package e2e_test

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
)

// Given a handler that passes on the message that it received, when the message fails on the next
// queue, then its attempts count from one there. The retry state of the first queue is invisible.
func TestForwardedMessageStartsAtAttemptOne(t *testing.T) {
	t.Parallel()
	url, attempts := testbroker.URL(t), make(chan int, 10)
	second := rig.Start(t, rig.Config{
		URL: url, Policy: backoff.Constant{Interval: 50 * time.Millisecond, Retries: 1},
		Handle: func(msg *message.Message) error {
			for key := range msg.Metadata {
				if middleware.Attempt(msg.Context()) == 1 && header.IsLive(key) {
					t.Errorf("header %s of another queue is visible", key)
				}
			}
			attempts <- middleware.Attempt(msg.Context())
			return rig.ErrFailed
		},
	})

	pub, err := wamqp.NewPublisher(rig.QueueConfig(url), watermill.NopLogger{})
	require.NoError(t, err)
	var calls rig.Timeline
	first := rig.Start(t, rig.Config{
		URL: url, Policy: backoff.Constant{Interval: 50 * time.Millisecond, Retries: 3},
		Publisher: pub, PublishTopic: second.Queue,
		Handler: func(msg *message.Message) ([]*message.Message, error) {
			if calls.Add() < 3 {
				return nil, rig.ErrFailed
			}
			return []*message.Message{msg}, nil
		},
	})
	first.Send("forwarded")
	dead := second.DeadLetter()
	rig.AwaitAttempts(t, attempts, 1, 2)
	require.Equal(t, "2", dead.Headers[header.DeadFailures])
	require.Equal(t, second.Queue, dead.Headers[header.DeadQueue])
}

// Given a dead letter, when a plain get and publish moves it back with all its headers, then it
// starts at attempt one, with its history.
func TestDeadLetterMovedBackStartsAtAttemptOne(t *testing.T) {
	t.Parallel()
	attempts, past := make(chan int, 10), make(chan int, 10)
	r := rig.Start(t, rig.Config{
		Policy: backoff.Constant{Interval: 50 * time.Millisecond, Retries: 1},
		Handle: func(msg *message.Message) error {
			attempts <- middleware.Attempt(msg.Context())
			past <- len(middleware.PastAttempts(msg.Context()))
			return rig.ErrFailed
		},
	})
	r.Publish(amqp.Publishing{Body: []byte("again"), MessageId: "id-9"})
	for round := range 2 {
		dead := r.DeadLetter()
		require.Equal(t, "2", dead.Headers[header.DeadFailures])
		for attempt := 1; attempt <= 2; attempt++ {
			require.Equal(t, attempt, <-attempts)
			require.Equal(t, 2*round+attempt-1, <-past)
		}
		if round == 0 {
			r.Publish(amqp.Publishing{Headers: dead.Headers, MessageId: dead.MessageId, Body: dead.Body})
		} else {
			require.Contains(t, dead.Headers[header.DeadHistory], `"reason":"exhausted"`)
			require.Equal(t, r.Queue, dead.Headers[header.OriginRoutingKey])
		}
	}
}

// Given two queues on one topic exchange, when a message of one fails, then only that queue sees
// the retries. The original exchange and routing key are readable on every attempt (T3).
func TestRetryReturnsToItsOwnQueueOnly(t *testing.T) {
	t.Parallel()
	url, exchange := testbroker.URL(t), rig.TopicExchange(t)
	var failing, fine rig.Timeline
	config := rig.Config{
		URL: url, Configure: rig.OnTopic(exchange, "order.#"), Policy: rig.Quickly(3),
		Handle: fine.Succeed,
	}
	rig.Start(t, config)
	keys := make(chan string, 10)
	config.Handle = func(msg *message.Message) error {
		exchange, key, _ := middleware.Origin(msg.Context())
		keys <- exchange + " " + key
		if failing.Add() < 4 {
			return rig.ErrFailed
		}
		return nil
	}
	rig.Start(t, config)
	rig.Publish(t, url, exchange, "order.created.eu", rig.Message("both"))
	rig.WaitFor(t, "the fourth attempt", func() bool { return failing.Count() == 4 })
	for range 4 {
		require.Equal(t, exchange+" order.created.eu", <-keys)
	}
	require.Equal(t, 1, fine.Count())
}
