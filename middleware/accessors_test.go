package middleware_test

import (
	"context"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/middleware/middlewaretest"
)

func TestAccessorsWithoutADelivery(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	if got := middleware.Attempt(ctx); got != 1 {
		t.Errorf("Attempt is %d", got)
	}
	if middleware.LastAttempt(ctx) {
		t.Error("LastAttempt is true")
	}
	if state := middleware.StateOf(ctx); !reflect.DeepEqual(state, header.RetryState{}) {
		t.Errorf("StateOf is %+v", state)
	}
}

func TestAccessorsOnEachAttempt(t *testing.T) {
	t.Parallel()
	broker := middlewaretest.NewBroker()
	var attempts, past []int
	var last, failed []bool
	var first []time.Time
	result := broker.Run(newRetry(t, broker).Middleware(middlewaretest.Consumer(func(msg *message.Message) error {
		ctx := msg.Context()
		attempts = append(attempts, middleware.Attempt(ctx))
		last = append(last, middleware.LastAttempt(ctx))
		state := middleware.StateOf(ctx)
		first, failed = append(first, state.FirstFailure), append(failed, !state.FirstFailure.IsZero())
		past = append(past, len(state.History))
		if state.OriginExchange != "shop" || state.OriginRoutingKey != "order.created" {
			t.Errorf("the origin is %q, %q", state.OriginExchange, state.OriginRoutingKey)
		}
		return errBoom
	})), newMessage(middleware.Delivery{State: header.RetryState{OriginExchange: "shop", OriginRoutingKey: "order.created"}}))

	if result.Outcome != middlewaretest.DeadLettered {
		t.Fatal(result)
	}
	if !slices.Equal(attempts, []int{1, 2, 3}) || !slices.Equal(past, []int{0, 1, 2}) {
		t.Errorf("attempts %v with %v past ones", attempts, past)
	}
	if !slices.Equal(last, []bool{false, false, true}) || !slices.Equal(failed, []bool{false, true, true}) {
		t.Errorf("last %v, failed before %v", last, failed)
	}
	if age := first[1].Sub(first[2]); age != 10*time.Second {
		t.Errorf("the first failure is %v older at attempt 3 than at attempt 2, want 10s", age)
	}
}

func TestLastAttemptGoesByAllLimits(t *testing.T) {
	t.Parallel()
	hourAgo := time.Now().Add(-time.Hour)
	// Where the end of the policy is not known, the message reaches the handler.
	unknownEnd := []middleware.Option{
		middleware.WithPolicyFor(middleware.Selector{Queue: "orders"}, backoff.PolicyFunc(backoff.List{time.Second}.Delay)),
		middleware.WithMaxAge(24 * time.Hour),
	}
	for name, test := range map[string]struct {
		notes   header.RetryState
		options []middleware.Option
		want    bool
	}{
		"first of three":        {header.RetryState{}, nil, false},
		"third of three":        {header.RetryState{Failures: 2}, nil, true},
		"attempts":              {header.RetryState{}, []middleware.Option{middleware.WithMaxAttempts(1)}, true},
		"age":                   {header.RetryState{Failures: 1, FirstFailure: hourAgo}, []middleware.Option{middleware.WithMaxAge(time.Hour)}, true},
		"deadline":              {header.RetryState{Deadline: hourAgo}, nil, true},
		"whatever the default":  {header.RetryState{}, []middleware.Option{middleware.WithDefaultClass(permanent)}, false},
		"forged, far above":     {header.RetryState{Failures: 1 << 62}, unknownEnd, true},
		"forged, negative":      {header.RetryState{Failures: -1}, nil, false},
		"forged, first in 2999": {header.RetryState{FirstFailure: time.Date(2999, 1, 1, 0, 0, 0, 0, time.UTC)}, []middleware.Option{middleware.WithMaxAge(time.Hour)}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got bool
			h := newRetry(t, middlewaretest.NewBroker(), test.options...).Middleware(
				middlewaretest.Consumer(func(msg *message.Message) error {
					got = middleware.LastAttempt(msg.Context())
					return nil
				}),
			)
			if _, err := h(newMessage(middleware.Delivery{State: test.notes})); err != nil || got != test.want {
				t.Errorf("got %v, %v; want %v", got, err, test.want)
			}
		})
	}
}

// A policy that chooses by error may take it for granted that there is one.
func TestLastAttemptShowsThePolicyAnError(t *testing.T) {
	t.Parallel()
	broker := middlewaretest.NewBroker()
	retry, err := middleware.NewDelayedRetry(broker, backoff.PolicyFunc(func(f backoff.Failure) (time.Duration, bool) {
		return time.Second, f.Err.Error() != "unknown error"
	}), middleware.WithMaxAttempts(5))
	if err != nil {
		t.Fatal(err)
	}
	broker.Run(retry.Middleware(middlewaretest.Consumer(func(msg *message.Message) error {
		if !middleware.LastAttempt(msg.Context()) {
			t.Error("want true")
		}
		return nil
	})), newMessage(middleware.Delivery{}))
}

func TestAFirstFailureThatLiesAheadIsNow(t *testing.T) {
	t.Parallel()
	msg := newMessage(middleware.Delivery{State: header.RetryState{Failures: 1, FirstFailure: time.Now().Add(time.Hour)}})
	if at := middleware.StateOf(msg.Context()).FirstFailure; at.IsZero() || at.After(time.Now()) {
		t.Errorf("got %v", at)
	}
}

func TestPastAttemptsIsACopy(t *testing.T) {
	t.Parallel()
	notes := header.RetryState{History: []header.AttemptError{{Attempt: 1}}}
	ctx := newMessage(middleware.Delivery{State: notes}).Context()
	middleware.StateOf(ctx).History[0].Attempt = 9
	if got := middleware.StateOf(ctx).History[0].Attempt; got != 1 {
		t.Errorf("got %d", got)
	}
}
