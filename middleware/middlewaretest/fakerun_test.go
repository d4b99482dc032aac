package middlewaretest_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/attached"
	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/middleware/middlewaretest"
)

var errBoom = errors.New("boom")

type middlewareOf func(message.HandlerFunc) message.HandlerFunc

func retrying(
	t *testing.T, b *middlewaretest.Broker, policy backoff.Policy, options ...middleware.Option,
) middlewareOf {
	t.Helper()
	retry, err := middleware.NewDelayedRetry(b, policy, options...)
	require.NoError(t, err, err)
	return retry.Middleware
}

func order() *message.Message {
	return middlewaretest.NewMessage(middleware.Delivery{Queue: "orders"}, []byte("order 7"))
}

var oneAndTen = backoff.List{time.Second, 10 * time.Second}

// failing fails so many attempts, all if negative.
func failing(attempts int) message.HandlerFunc {
	return middlewaretest.Consumer(func(msg *message.Message) error {
		if attempts < 0 || middleware.Attempt(msg.Context()) <= attempts {
			return errBoom
		}
		return nil
	})
}

func TestRun(t *testing.T) {
	t.Parallel()
	endless := backoff.Unbounded{Policy: backoff.Constant{Interval: time.Hour}}
	for name, test := range map[string]struct {
		policy  backoff.Policy
		options []middleware.Option
		handler message.HandlerFunc
		want    string
		elapsed time.Duration
	}{
		"succeeds at once": {oneAndTen, nil, failing(0), "handled after 1 attempt", 0},
		"succeeds at last": {
			oneAndTen, nil, failing(2), "handled after 3 attempts, delays 1s 10s", 11 * time.Second,
		},
		"never succeeds": {
			oneAndTen, nil, failing(-1),
			"dead-lettered (exhausted) after 3 attempts, delays 1s 10s", 11 * time.Second,
		},
		"the age is reached": {
			endless,
			[]middleware.Option{middleware.WithMaxAge(2*time.Hour + time.Minute)},
			failing(-1),
			"dead-lettered (max_age) after 3 attempts, delays 1h0m0s 1h0m0s", 2 * time.Hour,
		},
		"nacked by the handler, with an error": {
			oneAndTen, nil, middlewaretest.Consumer(func(msg *message.Message) error {
				msg.Nack()
				return errBoom
			}), "nacked after 1 attempt: boom", 0,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			broker := middlewaretest.NewBroker()
			got := broker.Run(retrying(t, broker, test.policy, test.options...)(test.handler), order())
			assert.Equal(t, test.want, got.String())
			assert.Equal(t, test.elapsed, got.Elapsed())
		})
	}
}

// A snooze of a minute counts as a failure only after 1440 snoozes.
func TestRunEndsWhereThePolicyDoesNot(t *testing.T) {
	t.Parallel()
	broker := middlewaretest.NewBroker()
	h := retrying(t, broker, backoff.Unbounded{Policy: backoff.Constant{Interval: time.Hour}})
	got := broker.Run(h(failing(-1)), order())
	assert.Equal(t, middlewaretest.Waiting, got.Outcome)
	assert.Equal(t, 250, got.Attempts)
	assert.Equal(t, 250, got.State.Failures)

	got = broker.Run(h(middlewaretest.Consumer(func(*message.Message) error {
		return middleware.Snooze(errBoom, time.Minute)
	})), order())
	assert.Equal(t, middlewaretest.Waiting, got.Outcome)
	assert.Zero(t, got.Attempts)
	assert.Len(t, got.Snoozes, 250)
}

func TestEachAttemptHasTheMessageAsItArrived(t *testing.T) {
	t.Parallel()
	type key struct{}
	broker := middlewaretest.NewBroker()
	msg := order()
	msg.Metadata.Set("tenant", "7")
	msg.SetContext(context.WithValue(msg.Context(), key{}, "database"))
	seen := map[*message.Message]bool{}
	handler := middlewaretest.Consumer(func(got *message.Message) error {
		seen[got] = true
		if string(got.Payload) != "order 7" || got.Metadata["tenant"] != "7" || got.UUID != msg.UUID {
			t.Errorf("got %q, %v", got.Payload, got.Metadata)
		}
		ctx := got.Context()
		assert.Equal(t, "database", ctx.Value(key{}), "context or delivery is lost")
		assert.Equal(t, "orders", attached.Of(ctx, got).Queue, "context or delivery is lost")
		if attempt := middleware.Attempt(ctx); (attempt > 1) != (got.Metadata[keys.Failures] != "") {
			t.Errorf("attempt %d has the metadata %v", attempt, got.Metadata)
		}
		assert.Equal(t, middleware.Attempt(ctx) > 1, got.Metadata["step"] == "paid", "kept metadata")
		got.Payload[0], got.Metadata["tenant"], got.Metadata["step"] = 'X', "8", "paid"
		got.SetContext(context.Background())
		return errBoom
	})
	keeping := retrying(t, broker, oneAndTen, middleware.WithKeptMetadata("step"))
	result := broker.Run(keeping(handler), msg)
	require.Len(t, seen, 3)
	assert.Equal(t, 3, result.Attempts)
}

func TestNewMessageInTheMiddleOfItsRetries(t *testing.T) {
	t.Parallel()
	broker := middlewaretest.NewBroker()
	msg := middlewaretest.NewMessage(middleware.Delivery{
		Queue: "orders", State: header.RetryState{Failures: 2, FirstFailure: time.Now().Add(-time.Hour)},
	}, nil)
	assert.Equal(t, 3, middleware.Attempt(msg.Context()))
	assert.Equal(t, "2", msg.Metadata[keys.Failures])
	got := broker.Run(retrying(t, broker, oneAndTen)(failing(-1)), msg)
	assert.Equal(t, "dead-lettered (exhausted) after 1 attempt", got.String())

	msg = middlewaretest.NewMessage(middleware.Delivery{
		Queue: "orders", State: header.RetryState{Failures: 9},
	}, nil)
	got = broker.Run(retrying(t, broker, oneAndTen)(failing(-1)), msg)
	assert.Equal(t, "dead-lettered (exhausted) after 0 attempts", got.String())
}

func TestFailuresOfTheMachinery(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		broker := middlewaretest.NewBroker()
		errUnroutable := errors.New("unroutable")
		broker.FailNext(1, nil)
		broker.FailNext(2, errUnroutable)
		got := broker.Run(retrying(t, broker, oneAndTen)(failing(-1)), order())
		assert.Equal(t, "dead-lettered (exhausted) after 3 attempts, delays 1s 10s", got.String())
		var answers []error
		for _, call := range broker.Calls() {
			answers = append(answers, call.Err)
		}
		want := []error{middlewaretest.ErrRefused, errUnroutable, errUnroutable, nil, nil, nil}
		assert.Equal(t, want, answers)
		dead := broker.DeadLetters()
		if len(dead) != 1 || dead[0].State.Reason != "exhausted" || dead[0].Queue != "orders" {
			t.Errorf("dead letters: %+v", dead)
		}
	})
}

func TestManyMessagesAtOnce(t *testing.T) {
	t.Parallel()
	broker := middlewaretest.NewBroker()
	h := retrying(t, broker, oneAndTen)(failing(-1))
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			assert.Equal(t, "dead-lettered (exhausted) after 3 attempts, delays 1s 10s",
				broker.Run(h, order()).String())
			broker.Calls()
		})
	}
	wg.Wait()
	assert.Equal(t, 50, len(broker.DeadLetters()))
}

func TestRunOfASnoozedMessage(t *testing.T) {
	t.Parallel()
	broker := middlewaretest.NewBroker()
	calls := 0
	handler := middlewaretest.Consumer(func(msg *message.Message) error {
		calls++
		seen := !middleware.StateOf(msg.Context()).FirstSeen.IsZero()
		if inMetadata := msg.Metadata[keys.FirstSeen] != ""; seen != (calls > 1) || inMetadata != seen {
			t.Errorf("delivery %d: seen %v, metadata %v", calls, seen, msg.Metadata)
		}
		switch calls {
		case 1, 3:
			return middleware.Snooze(errBoom, time.Minute)
		case 2:
			return errBoom
		default:
			return nil
		}
	})
	got := broker.Run(retrying(t, broker, oneAndTen)(handler), order())
	assert.Equal(t, "handled after 2 attempts, delays 1s, snoozed 1m0s 1m0s", got.String())
	assert.Equal(t, 2*time.Minute+time.Second, got.Elapsed())
	var snoozed []bool
	for _, call := range broker.Calls() {
		snoozed = append(snoozed, call.Snoozed)
	}
	assert.Equal(t, []bool{true, false, true}, snoozed)
}

// Given wait queues with some delays, when the middleware asks for others, then the
// message waits on the next longer one or in rounds, and grows older by that delay.
func TestRunWaitsOnTheWaitSteps(t *testing.T) {
	t.Parallel()
	tenMinutes := middleware.WithMaxAge(10 * time.Minute)
	for name, test := range map[string]struct {
		policy  backoff.Policy
		given   func(time.Duration) time.Duration
		options []middleware.Option
		msg     *message.Message
		want    string
		elapsed time.Duration
	}{
		"rounded up": {
			oneAndTen, middlewaretest.WaitSteps(time.Minute, 5*time.Second), nil, order(),
			"dead-lettered (exhausted) after 3 attempts, delays 1s 10s, given 5s 10s", 15 * time.Second,
		},
		"exactly": {
			oneAndTen, middlewaretest.WaitSteps(oneAndTen...), nil, order(),
			"dead-lettered (exhausted) after 3 attempts, delays 1s 10s", 11 * time.Second,
		},
		"never shorter than asked": {
			oneAndTen, func(time.Duration) time.Duration { return 5 * time.Second }, nil, order(),
			"dead-lettered (exhausted) after 3 attempts, delays 1s 10s, given 5s 10s", 15 * time.Second,
		},
		"the age is the sum of the delays given": {
			backoff.Constant{Interval: time.Second, Retries: 9},
			middlewaretest.WaitSteps(4 * time.Minute),
			[]middleware.Option{tenMinutes},
			order(),
			"dead-lettered (max_age) after 3 attempts, delays 1s 1s, given 4m0s 4m0s", 8 * time.Minute,
		},
		"a message without a delivery": {
			oneAndTen, middlewaretest.WaitSteps(time.Minute), nil, message.NewMessage("plain", nil),
			"dead-lettered (exhausted) after 3 attempts, delays 1s 10s, given 1m0s 1m0s", 2 * time.Minute,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			broker := middlewaretest.NewBroker()
			broker.Given = test.given
			h := retrying(t, broker, test.policy, test.options...)(failing(-1))
			got := broker.Run(h, test.msg)
			assert.Equal(t, test.want, got.String())
			assert.Equal(t, test.elapsed, got.Elapsed())
			if call := broker.Calls()[0]; call.Delay != time.Second || call.Given != got.Given[0] {
				t.Errorf("asked %v, given %v", call.Delay, call.Given)
			}
		})
	}
}

// These are the delays of topology.Plan for the same wait steps.
func TestWaitSteps(t *testing.T) {
	t.Parallel()
	steps := middlewaretest.WaitSteps(time.Hour, time.Minute, 5*time.Second)
	none := middlewaretest.WaitSteps()
	for asked, want := range map[time.Duration]time.Duration{
		time.Millisecond:              5 * time.Second,
		5 * time.Second:               5 * time.Second,
		5*time.Second + 1:             10 * time.Second, // two rounds
		47 * time.Second:              50 * time.Second, // ten
		48 * time.Second:              time.Minute,      // a quarter longer
		time.Minute + 1:               65 * time.Second,
		10*time.Minute + 1:            time.Hour, // more than ten rounds of a minute
		time.Hour:                     time.Hour,
		time.Hour + 30*time.Second:    time.Hour + time.Minute,
		2*time.Hour + 2*time.Minute:   2*time.Hour + 2*time.Minute,
		2*time.Hour + 12*time.Minute:  3 * time.Hour,
		25*time.Hour + 50*time.Second: 25*time.Hour + time.Minute,
	} {
		assert.Equal(t, want, steps(asked))
		assert.Equal(t, asked, none(asked))
	}
}

// With Sleep a policy that looks at the time of day is asked when the message is back.
func TestTheClockMovesWithSleep(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		broker, began := middlewaretest.NewBroker(), time.Now()
		broker.Sleep = time.Sleep
		var asked []time.Duration
		policy := backoff.PolicyFunc(func(f backoff.Failure) (time.Duration, bool) {
			asked = append(asked, f.Now.Sub(began))
			return time.Hour, f.Count < 3
		})
		retry, err := middleware.NewDelayedRetry(broker, policy, middleware.WithMaxAge(90*time.Minute))
		require.NoError(t, err)
		h := retry.Middleware(middlewaretest.Consumer(func(*message.Message) error { return errBoom }))
		result := broker.Run(h, middlewaretest.NewMessage(middleware.Delivery{Queue: "orders"}, nil))
		require.Equal(t, middlewaretest.DeadLettered, result.Outcome)
		require.Equal(t, []time.Duration{0, time.Hour}, asked)
	})
}
