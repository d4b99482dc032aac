package middleware_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/seam"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/middleware/middlewaretest"
)

func TestEverythingThatIsWrongIsInOneError(t *testing.T) {
	t.Parallel()
	_, err := middleware.NewDelayedRetry(nil, backoff.List{-time.Second},
		withClassifier(nil, middleware.ClassifierFunc(nil)),
		middleware.WithDefaultClass("fatal"), withMaxAttempts(0), withMaxAge(0),
		withLogger(nil), nil,
		withClassifier(permanentIf(nil)), withObserver(nil, (*events)(nil)),
		middleware.WithErrorText(nil), middleware.WithDeadLetterHook(nil), middleware.WithSnoozeLimit(0),
		middleware.WithSnoozeFor(0, errBoom), middleware.WithSnoozeFor(time.Second),
		middleware.WithSnoozeFor(time.Second, errBoom, nil), middleware.WithBudget(nil))
	require.Error(t, err)
	for _, want := range []string{
		"WithLogger: logger is nil\noption 5 is nil\nWithClassifier: classifier 0 is nil",
		"WithObserver: observer 0 is nil", "WithObserver: observer 1 is nil",
		"WithErrorText: text is nil", "WithDeadLetterHook: hook is nil",
		"WithSnoozeLimit: 0s is not positive", "WithSnoozeFor: 0s is not positive",
		"WithSnoozeFor: no errors are named", "WithSnoozeFor: error 1 is nil",
		"WithBudget: budget is nil",
		"new delayed retry: republisher is nil",
		"backoff.List",
		"WithClassifier: classifier 0 is nil", "WithClassifier: classifier 1 is nil",
		`WithDefaultClass: unknown class "fatal"`,
		"WithMaxAttempts: 0 is less than 1",
		"WithMaxAge: 0s is not positive",
	} {
		assert.ErrorContains(t, err, want)
	}
}

func TestNilIsRefused(t *testing.T) {
	t.Parallel()
	broker := newBroker()
	policy := backoff.List{time.Second}
	for name, test := range map[string]struct {
		republisher middleware.Republisher
		policy      backoff.Policy
	}{
		"republisher":                {nil, policy},
		"nil pointer as republisher": {(*middlewaretest.Broker)(nil), policy},
		"nil func as republisher":    {republishFunc(nil), policy},
		"policy":                     {broker, nil},
		"nil pointer as policy":      {broker, (*backoff.Constant)(nil)},
		"nil func as policy":         {broker, backoff.PolicyFunc(nil)},
	} {
		if retry, err := middleware.NewDelayedRetry(test.republisher, test.policy); err == nil ||
			retry != nil {
			t.Errorf("%s: got %v, %v", name, retry, err)
		}
	}
}

func TestAPolicyWithoutAnEndNeedsABound(t *testing.T) {
	t.Parallel()
	endless := backoff.Constant{Interval: time.Second}
	for name, test := range map[string]struct {
		policy  backoff.Policy
		options []middleware.Option
		refused bool
	}{
		"no end":               {endless, nil, true},
		"no end, but attempts": {endless, options{withMaxAttempts(3)}, false},
		"no end, but age":      {endless, options{withMaxAge(time.Hour)}, false},
		"no end, on purpose":   {backoff.Unbounded{Policy: endless}, nil, false},
		"end":                  {backoff.List{}, nil, false},
	} {
		_, err := middleware.NewDelayedRetry(newBroker(), test.policy, test.options...)
		assert.Equal(t, test.refused, errors.Is(err, backoff.ErrNoEnd), name)
		assert.Equal(t, test.refused, (err != nil), name)
		if test.refused {
			assert.ErrorContains(t, err, "policy is not known to stop retrying", name)
		}
	}
}

func TestPoliciesAreChecked(t *testing.T) {
	t.Parallel()
	_, err := middleware.NewDelayedRetry(newBroker(), backoff.None{}, policyFor(selector{}, every(1)),
		policyFor(selector{Queue: "orders"}, nil),
		policyFor(selector{Queue: "orders", Handler: "billing"}, every(1)),
		policyFor(selector{Topic: "a"}, backoff.List{-1}),
		policyFor(selector{Topic: "b"}, backoff.Constant{Interval: time.Second}),
		policyFor(selector{Error: retryableIf(nil)}, every(1)),
		policyFor(selector{Handler: "mail", Error: middleware.NetworkErrors()}, every(1)),
		policyFor(selector{Handler: "mail"}, every(1)))
	require.Error(t, err)
	for _, want := range []string{
		"WithPolicyFor 1: selector is empty", "WithPolicyFor 2: policy is nil",
		"WithPolicyFor 3: never reached, because WithPolicyFor 2 matches the same failures",
		"WithPolicyFor 4: backoff.List", "WithPolicyFor 5: backoff.Constant",
		"WithPolicyFor 6: classifier of the selector is nil",
	} {
		assert.ErrorContains(t, err, want)
	}
	require.Len(t, strings.Split(err.Error(), "\n"), 6)
	assert.ErrorIs(t, err, backoff.ErrNoEnd)
	for name, option := range map[string]middleware.Option{
		"attempts": withMaxAttempts(3), "age": withMaxAge(time.Hour),
	} {
		_, err := middleware.NewDelayedRetry(newBroker(), backoff.None{}, option,
			policyFor(selector{Topic: "b"}, backoff.Constant{Interval: time.Second}))
		assert.NoError(t, err, name)
	}
}

func TestPolicies(t *testing.T) {
	t.Parallel()
	logger := watermill.NewCaptureLogger()
	unbounded := backoff.Unbounded{Policy: backoff.Constant{Interval: time.Second}}
	retry, err := middleware.NewDelayedRetry(newBroker(), every(1),
		policyFor(selector{Queue: "a"}, every(2)),
		policyFor(selector{Queue: "b"}, unbounded), withLogger(logger))
	require.NoError(t, err)
	want := []backoff.Policy{every(1), every(2), unbounded}
	retry.Policies()[0] = nil
	assert.Equal(t, want, retry.Policies())
	lines := logger.Captured()[watermill.InfoLogLevel]
	require.Len(t, lines, 1)
	assert.Equal(t, backoff.Remarks(unbounded)[0], lines[0].Fields["remark"])
	retry = newRetry(t, newBroker(), policyFor(selector{Queue: "a", Error: retryableErrors(errBoom)},
		every(2)), policyFor(selector{Topic: "b"}, every(3)), policyFor(selector{Handler: "h"}, every(4)))
	base, of := retry.Policies()[0], seam.RetryOf(retry).Policies
	assert.Equal(t, []backoff.Policy{every(2), every(4), base}, of("a", "a"))
	assert.Equal(t, []backoff.Policy{every(3)}, of("b", "b"), "nothing else is asked")
	assert.Equal(t, []backoff.Policy{every(4), base}, of("c", "c"))
}

// every is a policy that can be told from others by its delay.
func every(seconds int) backoff.Policy {
	return backoff.Constant{Interval: time.Duration(seconds) * time.Second, Retries: 3}
}

func TestTheFirstSelectorThatMatchesWins(t *testing.T) {
	t.Parallel()
	errLimit := errors.New("rate limit")
	panics := middleware.ClassifierFunc(func(error) (header.Class, bool) { panic("of mine") })
	policies := options{
		policyFor(selector{Queue: "panics", Error: panics}, every(9)),
		policyFor(selector{Queue: "orders", Error: retryableErrors(errLimit)}, every(2)),
		policyFor(selector{Queue: "slow"}, every(3)),
		policyFor(selector{Error: retryableErrors(errLimit)}, every(4)),
		policyFor(selector{Queue: "orders", Error: always(permanent)}, every(5)),
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
			broker := newBroker()
			logger := watermill.NewCaptureLogger()
			h := newRetry(t, broker, append(policies, withLogger(logger))...).Middleware(failsWith(test.err))
			acked(t, h, newMessage(delivery{Queue: test.queue}))
			assert.Equal(t, test.want, broker.Calls()[0].Delay)
			lines := logger.Captured()[watermill.ErrorLogLevel]
			lines = slices.DeleteFunc(lines, func(line watermill.CapturedMessage) bool {
				return line.Fields["selector"] != nil // of queues without a handler here
			})
			if test.queue != "panics" {
				assert.Empty(t, lines)
				return
			}
			require.Len(t, lines, 1)
			assert.Equal(t, "Retry decision: classifier of WithPolicyFor 1 panicked", lines[0].Msg)
		})
	}
}

// Only a router names handlers and topics. Events name them, too.
func TestSelectorsByHandlerAndTopic(t *testing.T) {
	t.Parallel()
	pubSub := gochannel.NewGoChannel(gochannel.Config{Persistent: true}, watermill.NopLogger{})
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(t, err)
	broker := newBroker()
	decided := make(chan event, 4)
	retry := newRetry(t, broker,
		policyFor(selector{Handler: "billing", Topic: "orders"}, every(2)),
		policyFor(selector{Handler: "billing"}, every(3)),
		policyFor(selector{Topic: "orders"}, every(4)),
		withObserver(middleware.ObserverFunc(func(_ context.Context, e event) { decided <- e })),
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
		assert.False(t, <-last)
		e := <-decided // closing the router would interrupt what comes after the handler
		assert.Equal(t, map[string]string{
			"billing": "orders", "mail": "orders", "stock": "parcels",
		}[e.Handler], e.Topic)
	}
	require.NoError(t, errors.Join(router.Close(), <-ended, pubSub.Close()))
	got := map[string]time.Duration{}
	for _, call := range broker.Calls() {
		got[call.State.Handler] = call.Delay
	}
	want := map[string]time.Duration{
		"billing": 2 * time.Second, "mail": 4 * time.Second, "stock": time.Second,
	}
	assert.Equal(t, want, got)
}

func TestLastAttemptGoesByThePolicyOfThePlace(t *testing.T) {
	t.Parallel()
	broker := newBroker()
	var last []bool
	h := newRetry(t, broker,
		policyFor(selector{Error: retryableErrors(errBoom)}, every(1)),
		policyFor(selector{Queue: "orders"}, backoff.List{time.Second}),
	).Middleware(consumer(func(msg *message.Message) error {
		last = append(last, middleware.LastAttempt(msg.Context()))
		return errNoStock
	}))
	broker.Run(h, newMessage(delivery{}))
	assert.Equal(t, []bool{false, true}, last)
}

func TestTheCountIsOneForAllPolicies(t *testing.T) {
	t.Parallel()
	broker := newBroker()
	errOther := errors.New("other")
	h := newRetry(t, broker, // 1s 10s for any error
		policyFor(selector{Error: retryableErrors(errOther)}, backoff.Linear{
			Initial: 2 * time.Second, Step: time.Second, Retries: 3,
		}),
	).Middleware(consumer(func(msg *message.Message) error {
		if middleware.Attempt(msg.Context()) == 3 {
			return errOther
		}
		return errBoom
	}))
	got := broker.Run(h, newMessage(delivery{}))
	assert.Equal(t, "dead-lettered (exhausted) after 4 attempts, delays 1s 10s 4s", got.String())
}

// client is a Republisher with a logger and observers, as topology.Client is one.
type client struct {
	*middlewaretest.Broker
	logger   *watermill.CaptureLoggerAdapter
	observer *events
}

func (c client) logged() bool { return len(c.logger.Captured()) > 0 }

func init() {
	seam.ClientOf = func(republisher any) (seam.Client, bool) {
		c, ok := republisher.(client)
		if !ok || c.observer == nil {
			return seam.Client{Observers: []middleware.Observer(nil)}, ok
		}
		return seam.Client{Logger: c.logger, Observers: []middleware.Observer{c.observer}}, true
	}
}

// Given a client with a logger and an observer, when a handler fails, then both are told, unless an
// option names another logger; an observer of an option is told as well, and the same one once.
func TestLoggerAndObserversOfTheRepublisher(t *testing.T) {
	t.Parallel()
	for _, ownLogger := range []bool{true, false} {
		theirs := client{newBroker(), watermill.NewCaptureLogger(), new(events)}
		own := client{nil, watermill.NewCaptureLogger(), new(events)}
		chosen := options{withObserver(own.observer, theirs.observer)}
		if ownLogger {
			chosen = options{withLogger(own.logger)}
		}
		h := newRetry(t, theirs, chosen...).Middleware(failsWith(errBoom))
		acked(t, h, newMessage(delivery{}))
		assert.Equal(t, !ownLogger, theirs.logged())
		assert.Equal(t, ownLogger, own.logged())
		assert.Len(t, theirs.observer.all, 1)
		assert.Equal(t, !ownLogger, len(own.observer.all) == 1)
	}
	// A client without either is fine.
	h := newRetry(t, client{Broker: newBroker()}).Middleware(failsWith(errBoom))
	acked(t, h, newMessage(delivery{}))
}
