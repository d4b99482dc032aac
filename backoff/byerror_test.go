package backoff_test

import (
	"errors"
	"fmt"
	"math"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
)

var errRateLimited = errors.New("rate limited")

// databaseError is an error of a type of its own.
type databaseError struct{ table string }

func (e *databaseError) Error() string { return "table " + e.table + " is locked" }

// byKind retries network errors after 1s, rate limits after 60s and database
// errors after 1s 2s 4s 8s; others not at all.
var byKind = backoff.ByError{
	Cases: []backoff.Case{
		{Match: backoff.As[net.Error](), Policy: backoff.Constant{Interval: time.Second, Retries: 3}},
		{Match: backoff.Is(errRateLimited), Policy: backoff.Constant{Interval: time.Minute, Retries: 5}},
		{Match: backoff.As[*databaseError](), Policy: backoff.Exponential{Initial: time.Second, Factor: 2, Retries: 4}},
	},
	Default: backoff.None{},
}

func TestByError(t *testing.T) {
	t.Parallel()
	network := &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("connection refused")}
	for _, test := range []struct {
		name  string
		count int
		err   error
		wait  time.Duration
		retry bool
	}{
		{"network", 1, network, time.Second, true},
		{"network, the last retry", 3, network, time.Second, true},
		{"network, no more", 4, network, 0, false},
		{"rate limit", 1, errRateLimited, 60 * time.Second, true},
		{"database", 1, &databaseError{"orders"}, time.Second, true},
		{"database, later", 4, &databaseError{"orders"}, 8 * time.Second, true},
		{"database, no more", 5, &databaseError{"orders"}, 0, false},
		{"all failures count: database after three of the network", 4, &databaseError{"orders"}, 8 * time.Second, true},
		{"all failures count: rate limit after four of the database", 5, errRateLimited, time.Minute, true},
		{"all failures count: network after four of the database", 5, network, 0, false},
		{"wrapped", 1, fmt.Errorf("charge: %w", fmt.Errorf("ask bank: %w", errRateLimited)), time.Minute, true},
		{"joined: the first case wins, not the first error", 2, errors.Join(&databaseError{"orders"}, errRateLimited), time.Minute, true},
		{"unknown", 1, errors.New("rate limited"), 0, false},
		{"no error", 1, nil, 0, false},
		{"count below 1", math.MinInt, &databaseError{"orders"}, time.Second, true},
		{"forged count", math.MaxInt, errRateLimited, 0, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			wait, retry := byKind.Delay(backoff.Failure{Count: test.count, Err: test.err})
			assert.Equal(t, test.wait, wait)
			assert.Equal(t, test.retry, retry)
		})
	}
	require.NoError(t, backoff.Validate(byKind))
	require.NoError(t, backoff.CheckEnd(byKind))
	assert.Empty(t, backoff.Remarks(byKind))
	delays, known := backoff.Delays(byKind)
	assert.True(t, known)
	assert.Equal(t, []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second, 60 * time.Second}, delays)
}

func TestByErrorMatching(t *testing.T) {
	t.Parallel()
	always := func(error) bool { return true }
	never := func(error) bool { return false }
	panics := func(error) bool { panic("asked without need") }
	list := func(d time.Duration) backoff.List { return backoff.List{d} }
	for _, test := range []struct {
		name   string
		policy backoff.ByError
		err    error
		want   time.Duration // 0: no retry
	}{
		{"first match wins", backoff.ByError{Cases: []backoff.Case{{never, list(1 * time.Second)}, {always, list(2 * time.Second)}, {panics, list(3 * time.Second)}}, Default: list(4 * time.Second)}, errBroken, 2 * time.Second},
		{"no match", backoff.ByError{Cases: []backoff.Case{{never, list(1 * time.Second)}}, Default: list(4 * time.Second)}, errBroken, 4 * time.Second},
		{"no cases", backoff.ByError{Default: list(4 * time.Second)}, errBroken, 4 * time.Second},
		{"no error is shown to no match", backoff.ByError{Cases: []backoff.Case{{panics, list(1 * time.Second)}}, Default: list(4 * time.Second)}, nil, 4 * time.Second},
		{"case that never retries", backoff.ByError{Cases: []backoff.Case{{always, backoff.None{}}}, Default: list(4 * time.Second)}, errBroken, 0},
		{"nested", backoff.ByError{Cases: []backoff.Case{{always, backoff.ByError{Cases: []backoff.Case{{always, list(1 * time.Second)}}}}}}, errBroken, time.Second},
		{"bounds a foreign one", backoff.ByError{Default: foreign{wait: -1, retry: true}}, errBroken, time.Millisecond},
		{"invalid: nil match never matches", backoff.ByError{Cases: []backoff.Case{{nil, list(1 * time.Second)}}, Default: list(4 * time.Second)}, errBroken, 4 * time.Second},
		{"invalid: nil policy", backoff.ByError{Cases: []backoff.Case{{always, nil}}, Default: list(4 * time.Second)}, errBroken, 0},
		{"invalid: nil default", backoff.ByError{Cases: []backoff.Case{{never, list(1 * time.Second)}}}, errBroken, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			wait, retry := test.policy.Delay(backoff.Failure{Count: 1, Err: test.err})
			assert.Equal(t, test.want, wait)
			assert.Equal(t, test.want != 0, retry)
		})
	}
}

// Who calls the policy has to contain it, as middleware.DelayedRetry does.
func TestByErrorDoesNotHideAPanic(t *testing.T) {
	t.Parallel()
	asked := false
	p := backoff.ByError{
		Cases:   []backoff.Case{{Match: func(error) bool { asked = true; panic("of mine") }, Policy: backoff.List{time.Second}}},
		Default: backoff.None{},
	}
	require.NoError(t, backoff.Validate(p))
	require.NoError(t, backoff.CheckEnd(p))
	backoff.Delays(p)
	backoff.Remarks(p)
	assert.False(t, asked, "only Delay asks")
	assert.PanicsWithValue(t, "of mine", func() { p.Delay(backoff.Failure{Count: 1, Err: errBroken}) })
}

func FuzzByError(f *testing.F) {
	f.Add(int64(1e9), int64(60e9), "network", "network", 1)
	f.Add(int64(-1), int64(math.MaxInt64), "", "database", math.MaxInt)
	f.Add(int64(1), int64(0), "database", "else", math.MinInt)
	f.Fuzz(func(t *testing.T, a, b int64, known, text string, count int) {
		p := backoff.ByError{
			Cases: []backoff.Case{
				{Match: func(err error) bool { return err.Error() == known }, Policy: backoff.Constant{Interval: time.Duration(a), Retries: 3}},
				{Match: backoff.As[*databaseError](), Policy: backoff.Fibonacci{Initial: time.Duration(b), Max: time.Hour}},
			},
			Default: backoff.List{time.Duration(b), time.Duration(a)},
		}
		for want, err := range []error{errors.New(known), &databaseError{text}, errors.New(known + "!"), nil} {
			failure := backoff.Failure{Count: count, Err: err}
			requireBoundsAfter(t, p, failure)
			requireListedAfter(t, p, failure)
			chosen := p.Default
			if want < len(p.Cases) && (want == 0 || err.Error() != known) {
				chosen = p.Cases[want].Policy
			} else if want == 1 {
				chosen = p.Cases[0].Policy
			}
			wait, retry := p.Delay(failure)
			wantWait, wantRetry := backoff.Next(chosen, failure)
			require.Equal(t, wantRetry, retry)
			require.Equal(t, wantWait, wait)
		}
	})
}

func ExampleByError() {
	policy := backoff.ByError{
		Cases: []backoff.Case{
			{Match: backoff.As[net.Error](), Policy: backoff.Constant{Interval: time.Second, Retries: 5}},
			{Match: backoff.Is(errRateLimited), Policy: backoff.Constant{Interval: time.Minute, Retries: 10}},
			{Match: backoff.As[*databaseError](), Policy: backoff.Exponential{Initial: time.Second, Factor: 2, Retries: 8}},
		},
		Default: backoff.None{}, // to the dead-letter queue
	}
	for i, err := range []error{
		&net.DNSError{Err: "no such host", Name: "bank.example"},
		fmt.Errorf("charge: %w", errRateLimited),
		&databaseError{table: "orders"},
		errors.New("no such order"),
	} {
		fmt.Println(policy.Delay(backoff.Failure{Count: i + 1, Err: err}))
	}
	// Output:
	// 1s true
	// 1m0s true
	// 4s true
	// 0s false
}
