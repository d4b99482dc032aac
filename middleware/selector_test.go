package middleware_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/middleware/middlewaretest"
)

// every is a policy that can be told from others by its delay.
func every(seconds int) backoff.Policy {
	return backoff.Constant{Interval: time.Duration(seconds) * time.Second, Retries: 3}
}

func TestTheFirstSelectorThatMatchesWins(t *testing.T) {
	t.Parallel()
	errLimit := errors.New("rate limit")
	panics := middleware.ClassifierFunc(func(error) (header.Class, bool) { panic("of mine") })
	policies := options{
		middleware.WithPolicyFor(middleware.Selector{Queue: "panics", Error: panics}, every(9)),
		middleware.WithPolicyFor(middleware.Selector{Queue: "orders", Error: middleware.RetryableErrors(errLimit)}, every(2)),
		middleware.WithPolicyFor(middleware.Selector{Queue: "slow"}, every(3)),
		middleware.WithPolicyFor(middleware.Selector{Error: middleware.RetryableErrors(errLimit)}, every(4)),
		middleware.WithPolicyFor(middleware.Selector{Queue: "orders", Error: always(permanent)}, every(5)),
	}
	for name, test := range map[string]struct {
		queue string
		err   error
		want  time.Duration
	}{
		"queue and error":                 {"orders", fmt.Errorf("a: %w", errLimit), 2 * time.Second},
		"queue":                           {"slow", errBoom, 3 * time.Second},
		"queue before error":              {"slow", errLimit, 3 * time.Second},
		"error, on any queue":             {"mail", errLimit, 4 * time.Second},
		"an opinion, whichever the class": {"orders", errBoom, 5 * time.Second},
		"none matches":                    {"mail", errBoom, time.Second},
		"a panic is no match":             {"panics", errBoom, time.Second},
		"a panic is no match, the next":   {"panics", errLimit, 4 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			broker := middlewaretest.NewBroker()
			logger := watermill.NewCaptureLogger()
			h := newRetry(t, broker, append(policies, middleware.WithLogger(logger))...).Middleware(failsWith(test.err))
			acked(t, h, newMessage(middleware.Delivery{Queue: test.queue}))
			assert.Equal(t, test.want, broker.Calls()[0].Delay)
			lines := logger.Captured()[watermill.ErrorLogLevel]
			if panicked := test.queue == "panics"; panicked != (len(lines) == 1) {
				t.Fatalf("logged %+v", lines)
			} else if panicked && lines[0].Msg != "Retry decision: classifier of WithPolicyFor 1 panicked" {
				t.Errorf("logged %+v", lines)
			}
		})
	}
}

// Only a router names handlers and topics.
func TestSelectorsByHandlerAndTopic(t *testing.T) {
	t.Parallel()
	pubSub := gochannel.NewGoChannel(gochannel.Config{Persistent: true}, watermill.NopLogger{})
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(t, err)
	broker := middlewaretest.NewBroker()
	decided := make(chan bool, 4)
	retry := newRetry(t, broker,
		middleware.WithPolicyFor(middleware.Selector{Handler: "billing", Topic: "orders"}, every(2)),
		middleware.WithPolicyFor(middleware.Selector{Handler: "billing"}, every(3)),
		middleware.WithPolicyFor(middleware.Selector{Topic: "orders"}, every(4)),
		middleware.WithObserver(middleware.ObserverFunc(func(context.Context, middleware.Event) { decided <- true })),
	)
	router.AddMiddleware(retry.Middleware)
	last := make(chan bool, 4)
	for _, handler := range []struct{ name, topic string }{
		{"billing", "orders"}, {"mail", "orders"}, {"stock", "parcels"},
	} {
		router.AddConsumerHandler(handler.name, handler.topic, pubSub, func(msg *message.Message) error {
			last <- middleware.LastAttempt(msg.Context())
			return errBoom
		})
	}
	ended := make(chan error, 1)
	go func() { ended <- router.Run(context.Background()) }()
	<-router.Running()
	for _, topic := range []string{"orders", "parcels"} {
		require.NoError(t, pubSub.Publish(topic, message.NewMessage(topic, nil)))
	}
	for range 3 {
		if <-last {
			t.Error("LastAttempt is true")
		}
		<-decided // closing the router would interrupt what comes after the handler
	}
	require.NoError(t, errors.Join(router.Close(), <-ended, pubSub.Close()))
	got := map[string]time.Duration{}
	for _, call := range broker.Calls() {
		got[call.Notes.Handler] = call.Delay
	}
	want := map[string]time.Duration{"billing": 2 * time.Second, "mail": 4 * time.Second, "stock": time.Second}
	assert.Equal(t, want, got)
}

func TestLastAttemptGoesByThePolicyOfThePlace(t *testing.T) {
	t.Parallel()
	broker := middlewaretest.NewBroker()
	var last []bool
	h := newRetry(t, broker,
		middleware.WithPolicyFor(middleware.Selector{Error: middleware.RetryableErrors(errBoom)}, every(1)),
		middleware.WithPolicyFor(middleware.Selector{Queue: "orders"}, backoff.List{time.Second}),
	).Middleware(middlewaretest.Consumer(func(msg *message.Message) error {
		last = append(last, middleware.LastAttempt(msg.Context()))
		return errNoStock
	}))
	broker.Run(h, newMessage(middleware.Delivery{}))
	assert.Equal(t, []bool{false, true}, last)
}

func TestTheCountIsOneForAllPolicies(t *testing.T) {
	t.Parallel()
	broker := middlewaretest.NewBroker()
	errOther := errors.New("other")
	h := newRetry(t, broker, // 1s 10s for any error
		middleware.WithPolicyFor(middleware.Selector{Error: middleware.RetryableErrors(errOther)}, backoff.List{2, 3, 4 * time.Second}),
	).Middleware(middlewaretest.Consumer(func(msg *message.Message) error {
		if middleware.Attempt(msg.Context()) == 3 {
			return errOther
		}
		return errBoom
	}))
	got := broker.Run(h, newMessage(middleware.Delivery{}))
	assert.Equal(t, "dead-lettered (exhausted) after 4 attempts, delays 1s 10s 4s", got.String())
}
