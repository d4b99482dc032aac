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

func TestEverythingThatIsWrongIsInOneError(t *testing.T) {
	t.Parallel()
	_, err := middleware.NewDelayedRetry(
		nil, backoff.List{-time.Second},
		middleware.WithClassifier(nil, middleware.ClassifierFunc(nil)),
		middleware.WithDefaultClass("fatal"),
		middleware.WithMaxAttempts(0),
		middleware.WithMaxAge(0),
		middleware.WithLogger(nil),
		nil,
	)
	require.Error(t, err)
	for _, want := range []string{
		"new delayed retry: republisher is nil",
		"backoff.List",
		"WithClassifier: classifier 0 is nil", "WithClassifier: classifier 1 is nil",
		`WithDefaultClass: unknown class "fatal"`,
		"WithMaxAttempts: 0 is less than 1",
		"WithMaxAge: 0s is not positive",
		"WithLogger: logger is nil",
		"option 5 is nil",
	} {
		assert.ErrorContains(t, err, want)
	}
}

func TestNilIsRefused(t *testing.T) {
	t.Parallel()
	broker := middlewaretest.NewBroker()
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
		if retry, err := middleware.NewDelayedRetry(test.republisher, test.policy); err == nil || retry != nil {
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
		"no end, func":         {backoff.PolicyFunc(endless.Delay), nil, true},
		"no end, but attempts": {endless, options{middleware.WithMaxAttempts(3)}, false},
		"no end, but age":      {endless, options{middleware.WithMaxAge(time.Hour)}, false},
		"no end, but limit":    {backoff.Limit{Policy: endless, Retries: 3}, nil, false},
		"no end, on purpose":   {backoff.Unbounded{Policy: endless}, nil, false},
		"end":                  {backoff.List{}, nil, false},
		"end of a nil list":    {backoff.List(nil), nil, false},
	} {
		_, err := middleware.NewDelayedRetry(middlewaretest.NewBroker(), test.policy, test.options...)
		if errors.Is(err, backoff.ErrNoEnd) != test.refused || (err != nil) != test.refused {
			t.Errorf("%s: got %v", name, err)
		}
		if test.refused && !strings.Contains(err.Error(), "policy is not known to stop retrying") {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestRemarksOnThePolicyAreLoggedOnce(t *testing.T) {
	t.Parallel()
	logger := watermill.NewCaptureLogger()
	policy := backoff.Unbounded{Policy: backoff.Constant{Interval: time.Second}}
	retry, err := middleware.NewDelayedRetry(middlewaretest.NewBroker(), policy, middleware.WithLogger(logger))
	require.NoError(t, err)
	retry.Middleware(succeeds)
	var remarks []string
	for _, line := range logger.Captured()[watermill.InfoLogLevel] {
		remarks = append(remarks, line.Fields["remark"].(string))
	}
	if want := backoff.Remarks(policy); len(want) == 0 || !reflect.DeepEqual(remarks, want) {
		t.Errorf("logged %q, want %q", remarks, want)
	}
}
