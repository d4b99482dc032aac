package topology_test

import (
	"testing"
	"time"

	"github.com/millpond-go/millpond/internal/testing/rig"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
)

// A handler returns the very message it received: the notes of its first queue
// do not count on the next.
func TestForwardedMessageStartsAtAttemptOne(t *testing.T) {
	t.Parallel()
	url := testbroker.URL(t)
	second := testbroker.Queue(t)
	var calls rig.Timeline
	attempts := make(chan int, 10)
	rig.Start(t, rig.Config{
		URL: url, Queue: second,
		Policy: backoff.Constant{Interval: 50 * time.Millisecond, Retries: 1},
		Handler: func(msg *message.Message) ([]*message.Message, error) {
			for key := range msg.Metadata {
				if middleware.Attempt(msg.Context()) == 1 && header.IsLive(key) {
					t.Errorf("note %s of another queue is visible", key)
				}
			}
			attempts <- middleware.Attempt(msg.Context())
			return nil, rig.ErrFailed
		},
	})

	pub, err := wamqp.NewPublisher(wamqp.NewDurableQueueConfig(url), watermill.NopLogger{})
	require.NoError(t, err)
	first := rig.Start(t, rig.Config{
		URL:          url,
		Policy:       backoff.Constant{Interval: 50 * time.Millisecond, Retries: 3},
		Publisher:    pub,
		PublishTopic: second,
		Handler: func(msg *message.Message) ([]*message.Message, error) {
			if calls.Add() < 3 {
				return nil, rig.ErrFailed
			}
			return []*message.Message{msg}, nil
		},
	})
	first.Publish(amqp.Publishing{Body: []byte("forwarded")})
	dead := rig.Take(t, url, second+".dlq")
	require.Equal(t, 1, <-attempts)
	require.Equal(t, 2, <-attempts)
	require.Equal(t, "2", dead.Headers[header.DeadFailures])
	require.Equal(t, second, dead.Headers[header.DeadQueue])
}

// A dead letter moved back with a plain get and publish of all its headers
// starts at attempt 1, with its history.
func TestDeadLetterMovedBackStartsAtAttemptOne(t *testing.T) {
	t.Parallel()
	attempts := make(chan int, 10)
	past := make(chan int, 10)
	r := rig.Start(t, rig.Config{
		Policy: backoff.Constant{Interval: 50 * time.Millisecond, Retries: 1},
		Handler: func(msg *message.Message) ([]*message.Message, error) {
			attempts <- middleware.Attempt(msg.Context())
			past <- len(middleware.PastAttempts(msg.Context()))
			return nil, rig.ErrFailed
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

// Two queues on one topic exchange: only the one that failed sees the retry, and
// the original routing key is readable on every attempt (T3).
func TestRetryReturnsToItsOwnQueueOnly(t *testing.T) {
	t.Parallel()
	url, base := testbroker.URL(t), testbroker.Queue(t)
	topic := func(cfg *wamqp.Config) {
		cfg.Exchange = wamqp.ExchangeConfig{GenerateName: func(string) string { return base }, Type: "topic", Durable: true}
		cfg.QueueBind.GenerateRoutingKey = func(string) string { return "order.#" }
	}
	t.Cleanup(func() { _ = testbroker.Channel(t, url).ExchangeDelete(base, false, false) })
	queues := []string{base + ".failing", base + ".fine"}
	for _, q := range queues {
		testbroker.Delete(t, q, q+".dlq", q+".wait.100ms", q+".wait.1s")
	}
	policy := backoff.Constant{Interval: 100 * time.Millisecond, Retries: 3}
	var failing, fine rig.Timeline
	rig.Start(t, rig.Config{URL: url, Queue: queues[1], Configure: topic, Policy: policy, Handler: func(*message.Message) ([]*message.Message, error) {
		fine.Add()
		return nil, nil
	}})
	keys := make(chan string, 10)
	rig.Start(t, rig.Config{URL: url, Queue: queues[0], Configure: topic, Policy: policy, Handler: func(msg *message.Message) ([]*message.Message, error) {
		exchange, key, _ := middleware.Origin(msg.Context())
		keys <- exchange + " " + key
		if failing.Add() < 4 {
			return nil, rig.ErrFailed
		}
		return nil, nil
	}})
	rig.Publish(t, url, base, "order.created.eu", amqp.Publishing{Body: []byte("both")})
	rig.WaitFor(t, "the fourth attempt", func() bool { return failing.Count() == 4 })
	for range 4 {
		require.Equal(t, base+" order.created.eu", <-keys)
	}
	require.Equal(t, 1, fine.Count())
}
