package e2e_test

import (
	"context"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/internal/testing/peer"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
)

// nackOutside is a middleware outside DelayedRetry that makes the router nack.
func nackOutside(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		_, _ = h(msg)
		return nil, rig.ErrFailed
	}
}

// orphan leaves msg in a queue as if a process had ended with it in hand.
func orphan(t *testing.T, url, queue string, msg amqp.Publishing) {
	t.Helper()
	rig.DeclareQueue(t, url, queue, amqp.Table{"x-queue-type": "quorum"})
	rig.Publish(t, url, "", queue, msg)
	conn := testbroker.Dial(t, url)
	ch, err := conn.Channel()
	require.NoError(t, err)
	deliveries, err := ch.Consume(queue, "", false, false, false, false, nil)
	require.NoError(t, err)
	rig.Await(t, deliveries)
	require.NoError(t, conn.Close())
	rig.AwaitDepth(t, url, queue, 1)
}

// Given a dead letter of DelayedRetry, or of the Subscriber for any reason, then the hook is told
// of it once, after the broker has confirmed it and before the delivery is acked.
func TestTheHookIsToldOfEveryReason(t *testing.T) {
	t.Parallel()
	permanent := func(*message.Message) error { return middleware.Permanent(rig.ErrFailed) }
	big := rig.Message("letter")
	big.Headers = amqp.Table{"big": strings.Repeat("x", 130_000)}
	type testCase struct {
		reason header.Reason
		c      rig.Config
		msg    amqp.Publishing
		err    string // of the dead letter
		own    bool   // the Subscriber makes it
	}
	rig.Each(t, map[string]testCase{
		"permanent": {reason: header.ReasonPermanent, err: "closed", c: rig.Config{Handle: permanent}},
		"oversized after a nack": {
			reason: header.ReasonOversized, err: "do not fit", msg: big, own: true,
			c: rig.Config{Handle: rig.Succeed, Outer: []message.HandlerMiddleware{nackOutside}},
		},
		"undecodable": {
			reason: header.ReasonUndecodable, err: "not for me", msg: rig.Message("refuse"), own: true,
			c: rig.Config{Handle: rig.Succeed, Configure: rig.Picky},
		},
		"undecodable, by a panic": {
			reason: header.ReasonUndecodable, err: "not for me", msg: rig.Message("panic"), own: true,
			c: rig.Config{Handle: rig.Succeed, Configure: rig.Picky},
		},
		"crash loop": {
			reason: header.ReasonCrashLoop, err: "has ended each", own: true,
			c: rig.Config{Handle: rig.Succeed, Configure: rig.QuorumQueue},
		},
	}, func(t *testing.T, test testCase) {
		test.c.URL, test.c.Queue = testbroker.URL(t), testbroker.Queue(t)
		test.c.Policy = backoff.List{time.Hour}
		if test.msg.Body == nil {
			test.msg.Body = []byte("letter")
		}
		test.msg.MessageId = "id-7"
		told := make(chan middleware.DeadLetter, 10)
		test.c.RetryOptions = []middleware.Option{middleware.WithDeadLetterHook(
			func(ctx context.Context, dead middleware.DeadLetter) {
				if depth := testbroker.Depth(t, test.c.URL, test.c.Queue+".dlq"); depth != 1 {
					t.Errorf("%d dead letters are confirmed", depth)
				}
				if ctx.Err() != nil { // it ends with the ack
					t.Error("the delivery is settled already")
				}
				told <- dead
			})}
		if test.reason == header.ReasonCrashLoop {
			test.msg.Headers = forged(test.c.Queue, keys.Interruptions, "4").Headers
			orphan(t, test.c.URL, test.c.Queue, test.msg)
		}
		r := rig.Start(t, test.c)
		if test.reason != header.ReasonCrashLoop {
			r.Publish(test.msg)
		}
		dead := rig.Await(t, told)
		letter := r.DeadLetter()
		r.Stop()
		require.Empty(t, told, "told once")
		require.Zero(t, r.Depth(""))

		require.Equal(t, test.reason, dead.State.Reason)
		require.Equal(t, string(test.reason), letter.Headers[header.DeadReason])
		require.Equal(t, test.msg.Body, []byte(dead.Message.Payload))
		require.Equal(t, []string{r.Queue, r.Queue}, []string{dead.Queue, dead.Topic})
		require.False(t, dead.State.DeadAt.IsZero())
		require.ErrorContains(t, dead.Err, test.err)
		if test.own {
			require.Equal(t, "id-7", dead.Message.UUID)
			big, _ := test.msg.Headers["big"].(string)
			require.Equal(t, big, dead.Message.Metadata["big"])
		}
	})
}

// hooked adds a dead-letter hook that sends each dead letter to a channel.
func hooked(c *rig.Config) (told chan middleware.DeadLetter) {
	told = make(chan middleware.DeadLetter, 10)
	c.RetryOptions = append(c.RetryOptions, middleware.WithDeadLetterHook(
		func(_ context.Context, dead middleware.DeadLetter) { told <- dead }))
	return told
}

// requireToldOfMisdirected requires that the hook was told once of a message of the queue home.
func requireToldOfMisdirected(t *testing.T, told chan middleware.DeadLetter, body string) {
	t.Helper()
	dead := rig.Await(t, told)
	require.Equal(t, header.ReasonMisdirected, dead.State.Reason)
	require.Equal(t, body, string(dead.Message.Payload))
	require.Equal(t, []string{home, other}, []string{dead.Queue, dead.Topic})
	require.Equal(t, 1, dead.State.Failures)
	require.Empty(t, told)
}

// Given hooks that panic, end their goroutine or hang, when the Subscriber makes a dead letter,
// then there is one dead letter, the others are handled, and Close does not wait. The context of a
// hook that hangs ends, and the message is acked, before the broker takes the delivery back: else
// each redelivery would make another dead letter.
func TestABadHookHoldsNothingUp(t *testing.T) {
	t.Parallel()
	rig.Each(t, map[string]func(ctx context.Context, release <-chan struct{}){
		"panics":             func(context.Context, <-chan struct{}) { panic("of mine") },
		"ends its goroutine": func(context.Context, <-chan struct{}) { runtime.Goexit() },
		"hangs":              func(_ context.Context, release <-chan struct{}) { <-release },
		"hangs until it is asked to end, and longer": func(ctx context.Context, release <-chan struct{}) {
			<-ctx.Done()
			<-release
		},
	}, func(t *testing.T, bad func(context.Context, <-chan struct{})) {
		rig.Virtually(t, func(t *testing.T, broker *peer.Server) {
			release := make(chan struct{})
			t.Cleanup(func() { close(release) })
			called, handled := make(chan struct{}, 10), make(chan string, 10)
			r := rig.Start(t, rig.Config{
				URL: broker.URL(), Policy: backoff.List{time.Second}, Configure: rig.Picky,
				RetryOptions: []middleware.Option{middleware.WithDeadLetterHook(
					func(ctx context.Context, _ middleware.DeadLetter) {
						called <- struct{}{}
						bad(ctx, release)
					})},
				SubscriberOptions: []topology.SubscriberOption{
					topology.WithDrainTimeout(time.Second), topology.WithConcurrency(2),
					topology.WithConsumerTimeout(4 * time.Second),
				},
				Handle: func(msg *message.Message) error { handled <- string(msg.Payload); return nil },
			})
			r.Send("refuse", "fine")
			rig.Await(t, called)
			require.Equal(t, "fine", rig.Await(t, handled))
			if strings.Contains(t.Name(), "longer") {
				r.AwaitLine("Dead-letter hook did not return, acking its message without it")
			}
			r.RequireNothingLeft(1)
			require.Empty(t, called)
		})
	})
}

// Given a policy for one queue, when a Subscriber with For declares two queues, then the wait
// queues of that policy are declared for its queue alone, and those of the other for the other.
func TestForPlansAPolicyWhereItIsAsked(t *testing.T) {
	t.Parallel()
	url, one, other := testbroker.URL(t), testbroker.Queue(t), testbroker.Queue(t)
	client := rig.OpenClient(t, url, topology.PerQueue{})
	retry, err := middleware.NewDelayedRetry(client, backoff.List{2 * time.Second},
		middleware.WithPolicyFor(middleware.Selector{Queue: one}, backoff.List{3 * time.Second}))
	require.NoError(t, err)
	sub, err := client.NewSubscriber(rig.QueueConfig(url), retry)
	require.NoError(t, err)
	for _, queue := range []string{one, other} {
		rig.RemovePlan(t, url, topology.PerQueue{}, queue, backoff.List{2 * time.Second, 3 * time.Second})
		require.NoError(t, sub.SubscribeInitialize(queue))
	}
	for queue, depth := range map[string]int{
		one + ".wait.3s": 0, one + ".wait.2s": -1, other + ".wait.2s": 0, other + ".wait.3s": -1,
	} {
		require.Equal(t, depth, testbroker.Depth(t, url, queue), queue)
	}
}

// Given two services of one Client, when one of their Subscribers makes a dead letter, then with
// For it tells the hook and the observer of the DelayedRetry that For names, and without For none.
func TestForNamesTheHook(t *testing.T) {
	t.Parallel()
	url := testbroker.URL(t)
	rig.Each(t, map[string]bool{"For": true, "no For": false}, func(t *testing.T, named bool) {
		queue, policy := testbroker.Queue(t), backoff.List{time.Second}
		client := rig.OpenClient(t, url, topology.PerQueue{})
		var first, second atomic.Int32
		counting := func(n *atomic.Int32) *middleware.DelayedRetry {
			observer := middleware.ObserverFunc(func(_ context.Context, e middleware.Event) {
				if e.Kind == middleware.EventDeadLettered {
					n.Add(10)
				}
			})
			retry, err := middleware.NewDelayedRetry(client, policy, middleware.WithObserver(observer),
				middleware.WithDeadLetterHook(func(context.Context, middleware.DeadLetter) { n.Add(1) }))
			require.NoError(t, err)
			return retry
		}
		retry, _ := counting(&first), counting(&second)
		cfg := rig.QueueConfig(url)
		rig.Picky(&cfg)
		options := []topology.SubscriberOption{topology.ForPolicy(policy)}
		if named {
			options = append(options, topology.For(retry))
		}
		sub, err := client.NewSubscriberWithoutRetry(cfg, options...)
		require.NoError(t, err)
		_, err = sub.Subscribe(t.Context(), queue)
		require.NoError(t, err)
		rig.Publish(t, url, "", queue, rig.Message("refuse"))
		rig.Take(t, url, queue+".dlq")
		require.NoError(t, sub.Close()) // waits for the hooks
		require.Equal(t, named, first.Load() == 11)
		require.Zero(t, second.Load())
	})
}

// Given a Subscriber with a DelayedRetry whose middleware was forgotten, when its messages are
// nacked, then one line says so, on an error's level. Two Subscriptions of a queue warn of its type
// once.
func TestAForgottenMiddlewareIsNamed(t *testing.T) {
	t.Parallel()
	url, queue, logs := testbroker.URL(t), testbroker.Queue(t), &rig.Logs{}
	client := rig.OpenClient(t, url, topology.PerQueue{}, topology.WithLogger(logs))
	retry, err := middleware.NewDelayedRetry(client, backoff.List{time.Second})
	require.NoError(t, err)
	for range 2 {
		sub, err := client.NewSubscriber(rig.QueueConfig(url), retry)
		require.NoError(t, err)
		require.NoError(t, sub.SubscribeInitialize(queue))
		messages, err := sub.Subscribe(t.Context(), queue)
		require.NoError(t, err)
		for _, body := range []string{"one", "two"} {
			rig.Publish(t, url, "", queue, rig.Message(body))
			rig.Await(t, messages).Nack()
		}
		require.NoError(t, sub.Close())
		require.Equal(t, 1, logs.Said("Warning: the queue is a classic one"), logs.Text())
	}
	forgotten := logs.Saying("has not passed the middleware")
	require.Len(t, forgotten, 2, "one for each Subscription")
	require.Contains(t, forgotten[0], "error")
}
