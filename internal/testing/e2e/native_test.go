package e2e_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/native"
)

// seen records the deliveries that a handler gets, and their attempts.
type seen struct {
	rig.Timeline
	mu         sync.Mutex
	deliveries []amqp.Delivery
	attempts   []int
	ages       []time.Duration // since the first failure
}

// note returns the number of the call, 1-based.
func (s *seen) note(msg *message.Message) int {
	raw, _ := topology.Received(msg.Context())
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deliveries = append(s.deliveries, raw)
	s.attempts = append(s.attempts, middleware.Attempt(msg.Context()))
	if first := middleware.StateOf(msg.Context()).FirstFailure; !first.IsZero() {
		s.ages = append(s.ages, time.Since(first))
	}
	return s.Record(msg)
}

// waited reports for each delivery whether it has passed a wait queue.
func (s *seen) waited() (passed []bool) {
	for _, raw := range s.deliveries {
		_, dead := raw.Headers["x-death"]
		passed = append(passed, dead)
	}
	return passed
}

// fail notes the call and fails.
func (s *seen) fail(msg *message.Message) error {
	return fmt.Errorf("call %d", s.note(msg))
}

// startNative starts a service on a queue that holds rejected messages from least to most.
func startNative(t *testing.T, least, most time.Duration, c rig.Config) *rig.Service {
	t.Helper()
	strategy, args := rig.Native(t, testbroker.URL(t), least, most)
	configure := c.Configure
	c.Strategy, c.Configure = strategy, func(cfg *wamqp.Config) {
		if configure != nil {
			configure(cfg)
		}
		rig.WithQueue(args)(cfg)
	}
	return rig.Start(t, c)
}

// Given a queue that holds rejected messages for 400 ms, 800 ms and then 1 s, when its handler
// always fails, then the message waits in its queue alone: nothing is published but the dead
// letter, which has all its failures.
func TestNativeWaitsInItsQueue(t *testing.T) {
	t.Parallel()
	var s seen
	r := startNative(t, 400*time.Millisecond, time.Second, rig.Config{
		Policy: backoff.Linear{
			Initial: 400 * time.Millisecond, Step: 400 * time.Millisecond, Max: time.Second, Retries: 4,
		},
		Handle: s.fail,
	})
	msg := rig.Named("fails")
	msg.Headers = amqp.Table{"colour": "red"}
	r.Publish(msg)
	dead := r.DeadLetter()
	s.RequireGaps(t, r.Plan, 400*time.Millisecond, 800*time.Millisecond, time.Second, time.Second)
	require.Equal(t, []int{1, 2, 3, 4, 5}, s.attempts)
	require.Equal(t, make([]bool, 5), s.waited())
	oldest := []time.Duration{
		400 * time.Millisecond, 1200 * time.Millisecond, 2200 * time.Millisecond, 3200 * time.Millisecond,
	}
	for i, age := range s.ages {
		require.Greater(t, age, oldest[i]-rig.Grace)
	}
	rig.RequireDead(t, dead, "exhausted", "5")
	require.Equal(t, "fails", string(dead.Body))
	require.Equal(t, "red", dead.Headers["colour"])
	require.Equal(t, "call 5", dead.Headers[header.DeadError])
	require.NotContains(t, dead.Headers[keys.DeadHistory], "call 4", "the queue has kept no history")
	require.Equal(t, 1, r.Logs.Said("policies cannot be seen without WithManagement"))
	r.RequireNothingLeft(0)
}

// Given such a queue, when a failure asks for a delay that the queue cannot express, or its message
// cannot be rejected, then a copy waits. The copy begins a new delivery count, and keeps the number
// of the attempt.
func TestNativeLeavesOtherDelaysToWaitQueues(t *testing.T) {
	t.Parallel()
	fails := func(*message.Message) error { return rig.ErrFailed }
	for name, c := range map[string]struct {
		msg    amqp.Publishing
		second func(*message.Message) error // what the second call returns
		waited []bool
	}{
		"RetryAfter": {
			amqp.Publishing{MessageId: "1"}, func(*message.Message) error {
				return middleware.RetryAfter(rig.ErrFailed, 1500*time.Millisecond)
			}, []bool{false, false, true, true},
		},
		"Snooze": {
			amqp.Publishing{MessageId: "2"}, func(*message.Message) error {
				return middleware.Snooze(rig.ErrFailed, time.Second)
			}, []bool{false, false, true, true, true},
		},
		"no id": {amqp.Publishing{}, fails, []bool{false, true, true, true}},
		"an expiration": {
			amqp.Publishing{MessageId: "3", Expiration: "3600000"}, fails, []bool{false, true, true, true},
		},
		"metadata that the handler has changed": {
			amqp.Publishing{MessageId: "4"}, func(msg *message.Message) error {
				msg.Metadata.Set("cursor", "17")
				return rig.ErrFailed
			}, []bool{false, false, true, true},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var s seen
			r := startNative(t, time.Second, time.Second, rig.Config{
				Policy:       backoff.Constant{Interval: time.Second, Retries: 3},
				RetryOptions: []middleware.Option{middleware.WithKeptMetadata("cursor")},
				Handle: func(msg *message.Message) error {
					if s.note(msg) == 2 {
						return c.second(msg)
					}
					return rig.ErrFailed
				},
			})
			r.Publish(c.msg)
			rig.RequireDead(t, r.DeadLetter(), "exhausted", "4")
			require.Equal(t, c.waited, s.waited())
			s.mu.Lock()
			defer s.mu.Unlock()
			require.Equal(t, []int{1, 2, 3, 4}, slices.Compact(s.attempts), "a snooze is no attempt")
			gaps := make([]time.Duration, len(c.waited)-1)
			for i := range gaps {
				gaps[i] = time.Second
			}
			s.RequireNotEarly(t, gaps...)
			r.RequireNothingLeft(0)
		})
	}
}

// Given a queue with RabbitMQ's default delivery limit of 20, when a message fails 25 times, then
// it is a dead letter after 26 attempts, and the broker has dropped nothing.
func TestNativePassesTheDeliveryLimit(t *testing.T) {
	t.Parallel()
	var s seen
	r := startNative(t, 20*time.Millisecond, 20*time.Millisecond, rig.Config{
		Policy: backoff.Constant{Interval: 20 * time.Millisecond, Retries: 25}, Handle: s.fail,
	})
	r.Publish(rig.Named("fails"))
	rig.RequireDead(t, r.DeadLetter(), "exhausted", "26")
	for i, attempt := range s.attempts {
		require.Equal(t, i+1, attempt)
	}
	r.RequireNothingLeft(0)
}

// Given a message that ends the connection each time, when that has happened as often as its policy
// grants attempts, then it is a dead letter and the handler is not called again: the broker's
// count is all there is. No message that waited behind it has spent an attempt.
func TestNativeCountsConnectionsThatEnd(t *testing.T) {
	t.Parallel()
	url := testbroker.URL(t)
	proxy := testbroker.NewProxy(t, url)
	var poison, innocent seen
	r := startNative(t, 200*time.Millisecond, 200*time.Millisecond, rig.Config{
		URL: proxy.URL(), AdminURL: url, PublisherURL: url, Configure: rig.QuickReconnect,
		Policy: backoff.Constant{Interval: 200 * time.Millisecond, Retries: 2},
		Handle: func(msg *message.Message) error {
			if string(msg.Payload) != "poison" {
				innocent.note(msg)
				return nil
			}
			poison.note(msg)
			proxy.Cut()
			<-msg.Context().Done()
			return nil
		},
	})
	r.URL = url
	rig.Post(t, url, r.Queue, rig.Named("poison"), rig.Named("innocent 1"), rig.Named("innocent 2"))
	dead := r.DeadLetter()
	require.Equal(t, "poison", string(dead.Body))
	rig.RequireDead(t, dead, "exhausted", "3")
	require.Contains(t, dead.Headers[header.DeadError], "with native.Strategy a process ended in its")
	require.Equal(t, []int{1, 2, 3}, poison.attempts)
	rig.WaitFor(t, "the other messages to be handled", func() bool { return innocent.Count() == 2 })
	require.Equal(t, []int{1, 1}, innocent.attempts)
	r.RequireNothingLeft(0)
}

// leave publishes a message, lets a consumer take it and leave, and returns when it is in the queue
// again.
func leave(
	t *testing.T, url, queue string, msg amqp.Publishing, how func(*amqp.Channel, amqp.Delivery) error,
) {
	t.Helper()
	rig.Publish(t, url, "", queue, msg)
	ch, err := testbroker.Dial(t, url).Channel()
	require.NoError(t, err)
	rig.WaitFor(t, "the message to be taken", func() bool {
		d, ok, err := ch.Get(queue, false)
		require.NoError(t, err)
		if ok {
			require.NoError(t, how(ch, d))
		}
		return ok
	})
	rig.WaitFor(t, "the message to be back", func() bool {
		return testbroker.Depth(t, url, queue) == 1
	})
}

// Given a message that waits in rounds, when a process ends between two of them, then the message
// still waits until it is due, and it has not failed once more.
func TestNativeKeepsARoundWhoseProcessEnds(t *testing.T) {
	t.Parallel()
	const held, delay = 300 * time.Millisecond, 15 * time.Second // the process must end within it
	url, queue := testbroker.URL(t), testbroker.Queue(t)
	_, args := rig.Native(t, url, held, held)
	rig.DeclareQueue(t, url, queue, args)
	due := time.Now().Add(delay)
	state := header.RetryState{Failures: 1, FirstFailure: time.Now(), NotBefore: due, Delay: delay}
	msg := rig.Named("fails")
	msg.Headers = amqp.Table{}
	for key, value := range state.Headers(queue) {
		msg.Headers[key] = value
	}
	leave(t, url, queue, msg, func(ch *amqp.Channel, _ amqp.Delivery) error { return ch.Close() })
	require.Less(t, time.Now(), due, "the machine is too slow for this test")
	var s seen
	var called time.Time
	r := startNative(t, held, held, rig.Config{
		Queue: queue, Policy: backoff.Constant{Interval: held, Retries: 3},
		Handle: func(msg *message.Message) error { called = time.Now(); s.note(msg); return nil },
	})
	rig.WaitFor(t, "the message to be handled", func() bool { return s.Count() == 1 })
	r.RequireNothingLeft(0)
	require.Greater(t, called, due.Add(-rig.Grace))
	require.Equal(t, []int{2}, s.attempts)
}

// Given a message with the delivery count of another queue, which a shovel has brought, when a
// consumer has given it back, then it has not failed.
func TestNativeTakesNoCountOfAnotherQueue(t *testing.T) {
	t.Parallel()
	url, queue := testbroker.URL(t), testbroker.Queue(t)
	_, args := rig.Native(t, url, 500*time.Millisecond, time.Minute)
	rig.DeclareQueue(t, url, queue, args)
	msg := rig.Named("fails")
	msg.Headers = amqp.Table{"x-delivery-count": int64(30), "x-acquired-count": int64(40)}
	leave(t, url, queue, msg, func(_ *amqp.Channel, d amqp.Delivery) error {
		return d.Nack(false, true)
	})
	var s seen
	r := startNative(t, 500*time.Millisecond, time.Minute, rig.Config{
		Queue: queue, Handle: s.fail,
		Policy: backoff.Linear{
			Initial: 500 * time.Millisecond, Step: 500 * time.Millisecond, Max: time.Minute, Retries: 2,
		},
	})
	rig.RequireDead(t, r.DeadLetter(), "exhausted", "3")
	require.Equal(t, []int{1, 2, 3}, s.attempts)
	s.RequireGaps(t, r.Plan, 500*time.Millisecond, time.Second)
	require.Equal(t, make([]bool, 3), s.waited(), "it was rejected")
	r.RequireNothingLeft(0)
}

// Given a middleware of the user that counts an attempt twice, or a handler that acks its message,
// when it republishes the message, then a copy waits: a reject would count once, and a delivery
// cannot be rejected after its ack.
func TestNativeRepublishesWhatARejectCannotSay(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		acks     bool
		failures int
	}{"counts twice": {false, 2}, "acks early": {true, 1}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const held = 300 * time.Millisecond
			var s seen
			var r *rig.Service
			started := make(chan struct{})
			r = startNative(t, held, held, rig.Config{
				Policy: backoff.Constant{Interval: held, Retries: 3},
				Handle: func(msg *message.Message) error {
					<-started
					if s.note(msg) > 1 {
						return nil
					}
					if c.acks {
						msg.Ack()
						<-msg.Context().Done() // the ack is sent
					}
					state := middleware.StateOf(msg.Context())
					state.Failures += c.failures
					_, err := r.Client.Republish(context.WithoutCancel(msg.Context()), msg, held, state)
					return err
				},
			})
			close(started)
			r.Publish(rig.Named(name))
			rig.WaitFor(t, "the second call", func() bool { return s.Count() == 2 })
			r.RequireNothingLeft(0)
			require.Equal(t, []int{1, 1 + c.failures}, s.attempts)
			require.Equal(t, []bool{false, true}, s.waited())
		})
	}
}

// Given instances with Native and with another strategy on one queue, as during a rollout, when a
// message fails here and there, then each failure counts: it gets as many attempts as the policy of
// both grants, and no instance takes it for a message that ends processes.
func TestNativeBesideAnotherStrategyCountsEachAttempt(t *testing.T) {
	t.Parallel()
	const delay, retries, messages = 100 * time.Millisecond, 6, 40
	url, queue := testbroker.URL(t), testbroker.Queue(t)
	native, args := rig.Native(t, url, delay, delay)
	var mu sync.Mutex
	attempts, tried := map[string][]int{}, map[string]int{}
	var last *rig.Service
	for _, strategy := range []topology.Strategy{native, topology.PerQueue{}} {
		last = rig.Start(t, rig.Config{
			URL: url, Queue: queue, Strategy: strategy, SubscriberOptions: rig.InFlight(1),
			Configure: func(cfg *wamqp.Config) { rig.Prefetch(1)(cfg); rig.WithQueue(args)(cfg) },
			Policy:    backoff.Constant{Interval: delay, Retries: retries},
			Handle: func(msg *message.Message) error {
				mu.Lock()
				defer mu.Unlock()
				body := string(msg.Payload)
				attempts[body] = append(attempts[body], middleware.Attempt(msg.Context()))
				tried[fmt.Sprintf("%T", strategy)]++
				return rig.ErrFailed
			},
		})
	}
	for i := range messages {
		last.Publish(rig.Named(fmt.Sprint(i)))
	}
	rig.AwaitDepth(t, url, queue+".dlq", messages)
	for range messages {
		rig.RequireDead(t, last.DeadLetter(), "exhausted", "7")
	}
	last.RequireNothingLeft(0)
	require.Len(t, tried, 2, "both have tried some: %v", tried)
	require.Equal(t, 1, last.Logs.Said("Warning: the queue holds rejected messages"))
	require.Len(t, attempts, messages)
	for body, numbers := range attempts {
		require.Equal(t, []int{1, 2, 3, 4, 5, 6, 7}, numbers, "attempts of %s", body)
	}
}

// Given queues that do not hold rejected messages as the strategy says, and brokers that ignore the
// arguments, when a service subscribes, then it is refused and the error says the way out.
func TestNativeRefusesWhereRejectsComeBackAtOnce(t *testing.T) {
	t.Parallel()
	url := testbroker.URL(t)
	holds, _ := rig.HoldsRejected(t, url)
	strategy := native.Strategy{Min: time.Second, Max: time.Minute}
	ofNacks := rig.RejectArguments(time.Second, time.Minute)
	ofNacks["x-delayed-retry-type"] = "all"
	for name, c := range map[string]struct {
		args amqp.Table
		want string
	}{
		"no arguments":    {amqp.Table{"x-queue-type": "quorum"}, "it holds none"},
		"of nacks, too":   {ofNacks, "given back, too"},
		"a classic queue": {amqp.Table{"x-queue-type": "classic"}, "only a quorum queue holds"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			queue := testbroker.Queue(t)
			rig.DeclareQueue(t, url, queue, c.args)
			cfg := rig.QueueConfig(url)
			cfg.Queue.Arguments = c.args
			err := rig.SubscribeError(t, rig.OpenClient(t, url, strategy), cfg, queue,
				backoff.Linear{Initial: time.Second, Step: time.Second, Max: time.Minute, Retries: 3})
			if !holds {
				rig.RequireTexts(t, err, "ignores the delayed retry of a queue", "use another strategy")
				return
			}
			rig.RequireTexts(t, err, queue, c.want)
			if strings.HasPrefix(c.want, "it ") {
				rig.RequireTexts(t, err, "x-delayed-retry-type failed, x-delayed-retry-min 1000 and "+
					"x-delayed-retry-max 60000")
			}
		})
	}
}
