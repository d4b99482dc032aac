package middlewaretest_test

import (
	"context"
	"errors"
	"reflect"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/middleware/middlewaretest"
)

var errBoom = errors.New("boom")

type middlewareOf func(message.HandlerFunc) message.HandlerFunc

func retrying(t *testing.T, b *middlewaretest.Broker, policy backoff.Policy, options ...middleware.Option) middlewareOf {
	t.Helper()
	retry, err := middleware.NewDelayedRetry(b, policy, options...)
	if err != nil {
		t.Fatal(err)
	}
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
		"succeeds at last": {oneAndTen, nil, failing(2), "handled after 3 attempts, delays 1s 10s", 11 * time.Second},
		"never succeeds": {
			oneAndTen, nil, failing(-1),
			"dead-lettered (exhausted) after 3 attempts, delays 1s 10s", 11 * time.Second,
		},
		"the age is that of the delays": {
			endless, []middleware.Option{middleware.WithMaxAge(24*time.Hour + time.Minute)}, failing(20),
			"handled after 21 attempts, delays 1h0m0s 1h0m0s 1h0m0s 1h0m0s 1h0m0s 1h0m0s 1h0m0s 1h0m0s 1h0m0s 1h0m0s " +
				"1h0m0s 1h0m0s 1h0m0s 1h0m0s 1h0m0s 1h0m0s 1h0m0s 1h0m0s 1h0m0s 1h0m0s", 20 * time.Hour,
		},
		"the age is reached": {
			endless, []middleware.Option{middleware.WithMaxAge(2*time.Hour + time.Minute)}, failing(-1),
			"dead-lettered (max_age) after 3 attempts, delays 1h0m0s 1h0m0s", 2 * time.Hour,
		},
		"nacked by the handler, with an error": {
			oneAndTen, nil, middlewaretest.Consumer(func(msg *message.Message) error {
				msg.Nack()
				return errBoom
			}), "nacked after 1 attempt: boom", 0,
		},
		"nacked by the handler": {
			oneAndTen, nil, middlewaretest.Consumer(func(msg *message.Message) error {
				msg.Nack()
				return nil
			}), "nacked after 1 attempt", 0,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			broker := middlewaretest.NewBroker()
			got := broker.Run(retrying(t, broker, test.policy, test.options...)(test.handler), order())
			if got.String() != test.want || got.Elapsed() != test.elapsed {
				t.Errorf("got  %s (%v)\nwant %s (%v)", got, got.Elapsed(), test.want, test.elapsed)
			}
		})
	}
}

func TestRunEndsWhereThePolicyDoesNot(t *testing.T) {
	t.Parallel()
	broker := middlewaretest.NewBroker()
	policy := backoff.Unbounded{Policy: backoff.Constant{Interval: time.Hour}}
	got := broker.Run(retrying(t, broker, policy)(failing(-1)), order())
	if got.Outcome != middlewaretest.Waiting || got.Attempts != middlewaretest.MaxAttempts || got.Notes.Failures != 250 {
		t.Errorf("%s after %d attempts, %d failures", got.Outcome, got.Attempts, got.Notes.Failures)
	}
}

func TestEachAttemptHasTheMessageAsItArrived(t *testing.T) {
	t.Parallel()
	type key struct{}
	broker := middlewaretest.NewBroker()
	msg := order()
	msg.Metadata.Set("tenant", "7")
	msg.SetContext(context.WithValue(msg.Context(), key{}, "database"))
	seen := map[*message.Message]bool{}
	result := broker.Run(retrying(t, broker, oneAndTen)(middlewaretest.Consumer(func(got *message.Message) error {
		seen[got] = true
		if string(got.Payload) != "order 7" || got.Metadata["tenant"] != "7" || got.UUID != msg.UUID {
			t.Errorf("got %q, %v", got.Payload, got.Metadata)
		}
		if got.Context().Value(key{}) != "database" || middleware.DeliveryOf(got.Context(), got).Queue != "orders" {
			t.Error("context or delivery is lost")
		}
		if attempt := middleware.Attempt(got.Context()); (attempt > 1) != (got.Metadata[header.Failures] != "") {
			t.Errorf("attempt %d has the metadata %v", attempt, got.Metadata)
		}
		got.Payload[0], got.Metadata["tenant"] = 'X', "8"
		got.SetContext(context.Background())
		return errBoom
	})), msg)
	if len(seen) != 3 || result.Attempts != 3 {
		t.Errorf("%d messages, %s", len(seen), result)
	}
}

func TestAMessageWithoutADelivery(t *testing.T) {
	t.Parallel()
	broker := middlewaretest.NewBroker()
	got := broker.Run(retrying(t, broker, oneAndTen)(failing(2)), message.NewMessage("plain", nil))
	if want := "handled after 3 attempts, delays 1s 10s"; got.String() != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestNewMessageInTheMiddleOfItsRetries(t *testing.T) {
	t.Parallel()
	broker := middlewaretest.NewBroker()
	msg := middlewaretest.NewMessage(middleware.Delivery{
		Queue: "orders", State: header.RetryState{Failures: 2, FirstFailure: time.Now().Add(-time.Hour)},
	}, nil)
	if attempt := middleware.Attempt(msg.Context()); attempt != 3 || msg.Metadata[header.Failures] != "2" {
		t.Errorf("attempt %d, metadata %v", attempt, msg.Metadata)
	}
	got := broker.Run(retrying(t, broker, oneAndTen)(failing(-1)), msg)
	if want := "dead-lettered (exhausted) after 1 attempt"; got.String() != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestFailuresOfTheMachinery(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		broker := middlewaretest.NewBroker()
		errUnroutable := errors.New("unroutable")
		broker.FailNext(1, nil)
		broker.FailNext(2, errUnroutable)
		got := broker.Run(retrying(t, broker, oneAndTen)(failing(-1)), order())
		if want := "dead-lettered (exhausted) after 3 attempts, delays 1s 10s"; got.String() != want {
			t.Errorf("got %s, want %s", got, want)
		}
		var answers []error
		for _, call := range broker.Calls() {
			answers = append(answers, call.Err)
		}
		want := []error{middlewaretest.ErrRefused, errUnroutable, errUnroutable, nil, nil, nil}
		if !reflect.DeepEqual(answers, want) {
			t.Errorf("answered %v, want %v", answers, want)
		}
		dead := broker.DeadLetters()
		if len(dead) != 1 || dead[0].Notes.Reason != header.ReasonExhausted || dead[0].Queue != "orders" {
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
			if got := broker.Run(h, order()); got.Attempts != 3 || got.Outcome != middlewaretest.DeadLettered {
				t.Errorf("got %s", got)
			}
			broker.Calls()
		})
	}
	wg.Wait()
	if got := len(broker.DeadLetters()); got != 50 {
		t.Errorf("%d dead letters, want 50", got)
	}
}
