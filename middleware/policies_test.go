package middleware_test

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/middlewaretest"
)

func TestPoliciesAreChecked(t *testing.T) {
	t.Parallel()
	_, err := middleware.NewDelayedRetry(
		middlewaretest.NewBroker(), backoff.None{},
		middleware.WithPolicyFor(middleware.Selector{}, every(1)),
		middleware.WithPolicyFor(middleware.Selector{Queue: "orders"}, nil),
		middleware.WithPolicyFor(middleware.Selector{Queue: "orders", Handler: "billing"}, every(1)),
		middleware.WithPolicyFor(middleware.Selector{Topic: "a"}, backoff.List{-1}),
		middleware.WithPolicyFor(middleware.Selector{Topic: "b"}, backoff.Constant{Interval: time.Second}),
		middleware.WithPolicyFor(middleware.Selector{Error: middleware.RetryableIf(nil)}, every(1)),
		middleware.WithPolicyFor(middleware.Selector{Handler: "mail", Error: middleware.NetworkErrors()}, every(1)),
		middleware.WithPolicyFor(middleware.Selector{Handler: "mail"}, every(1)),
	)
	require.Error(t, err)
	for _, want := range []string{
		"WithPolicyFor 1: selector is empty",
		"WithPolicyFor 2: policy is nil",
		"WithPolicyFor 3: never reached, because WithPolicyFor 2 matches the same failures",
		"WithPolicyFor 4: backoff.List",
		"WithPolicyFor 5: backoff.Constant",
		"WithPolicyFor 6: classifier of the selector is nil",
	} {
		assert.ErrorContains(t, err, want)
	}
	if lines := strings.Split(err.Error(), "\n"); len(lines) != 6 || !errors.Is(err, backoff.ErrNoEnd) {
		t.Errorf("got %d problems:\n%v", len(lines), err)
	}
	for name, option := range map[string]middleware.Option{
		"attempts": middleware.WithMaxAttempts(3), "age": middleware.WithMaxAge(time.Hour),
	} {
		_, err := middleware.NewDelayedRetry(middlewaretest.NewBroker(), backoff.None{}, option,
			middleware.WithPolicyFor(middleware.Selector{Topic: "b"}, backoff.Constant{Interval: time.Second}))
		if err != nil {
			t.Errorf("with a bound, %s: %v", name, err)
		}
	}
}

func TestPolicies(t *testing.T) {
	t.Parallel()
	logger := watermill.NewCaptureLogger()
	unbounded := backoff.Unbounded{Policy: backoff.Constant{Interval: time.Second}}
	retry, err := middleware.NewDelayedRetry(middlewaretest.NewBroker(), every(1),
		middleware.WithPolicyFor(middleware.Selector{Queue: "a"}, every(2)),
		middleware.WithPolicyFor(middleware.Selector{Queue: "b"}, unbounded), middleware.WithLogger(logger))
	require.NoError(t, err)
	want := []backoff.Policy{every(1), every(2), unbounded}
	retry.Policies()[0] = nil
	if got := retry.Policies(); !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if remarks := logger.Captured()[watermill.InfoLogLevel]; len(remarks) != 1 {
		t.Errorf("logged %+v", remarks)
	}
}
