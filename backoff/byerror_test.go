package backoff_test

import (
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
)

var errRateLimited = errors.New("rate limited")

// databaseError is a pointer when it is returned, valueError a value.
type databaseError struct{ table string }

func (e *databaseError) Error() string { return "table " + e.table + " is locked" }

type valueError struct{ code int }

func (e valueError) Error() string { return fmt.Sprintf("code %d", e.code) }

// byKind retries network errors after 1s, rate limits after 60s and database
// errors after 1s 2s 4s 8s; others not at all.
var byKind = backoff.ByError{
	Cases: []backoff.Case{
		{Match: backoff.As[net.Error](), Policy: constantly(s, 3)},
		{Match: backoff.Is(errRateLimited), Policy: constantly(60*s, 5)},
		{Match: backoff.As[*databaseError](), Policy: exponential(s, 2, 0, 4)},
	},
	Default: backoff.None{},
}

func TestByError(t *testing.T) {
	t.Parallel()
	network := &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("connection refused")}
	database := &databaseError{"orders"}
	wrapped := fmt.Errorf("charge: %w", fmt.Errorf("ask bank: %w", errRateLimited))
	for _, test := range []struct {
		name  string
		count int
		err   error
		wait  time.Duration // 0: no retry
	}{
		{"network", 1, network, s},
		{"network, the last retry", 3, network, s},
		{"network, no more", 4, network, 0},
		{"rate limit", 1, errRateLimited, 60 * s},
		{"database", 1, database, s},
		{"database, later", 4, database, 8 * s},
		{"database, no more", 5, database, 0},
		{"all failures count: database after three of the network", 4, database, 8 * s},
		{"all failures count: rate limit after four of the database", 5, errRateLimited, time.Minute},
		{"all failures count: network after four of the database", 5, network, 0},
		{"wrapped", 1, wrapped, time.Minute},
		{
			"joined: the first case wins, not the first error",
			2, errors.Join(database, errRateLimited), time.Minute,
		},
		{"unknown", 1, errors.New("rate limited"), 0},
		{"no error", 1, nil, 0},
		{"count below 1", math.MinInt, database, s},
		{"forged count", math.MaxInt, errRateLimited, 0},
	} {
		wait, retry := byKind.Delay(backoff.Failure{Count: test.count, Err: test.err})
		assert.Equal(t, test.wait, wait, test.name)
		assert.Equal(t, test.wait != 0, retry, test.name)
	}
	require.NoError(t, backoff.Validate(byKind))
	require.NoError(t, backoff.CheckEnd(byKind))
	assert.Empty(t, backoff.Remarks(byKind))
	requireDelays(t, byKind, "1s 2s 4s 8s 60s")
}

func TestByErrorMatching(t *testing.T) {
	t.Parallel()
	always := func(error) bool { return true }
	never := func(error) bool { return false }
	panics := func(error) bool { panic("asked without need") }
	list := func(d time.Duration) backoff.List { return backoff.List{d} }
	of := func(other backoff.Policy, cases ...backoff.Case) backoff.ByError {
		return backoff.ByError{Cases: cases, Default: other}
	}
	for _, test := range []struct {
		name   string
		policy backoff.ByError
		err    error
		want   time.Duration // 0: no retry
	}{
		{
			"first match wins",
			of(list(4*s), []backoff.Case{{never, list(s)}, {always, list(2 * s)}, {panics, list(3 * s)}}...),
			errBroken, 2 * s,
		},
		{"no error is shown to no match", of(list(4*s), backoff.Case{panics, list(s)}), nil, 4 * s},
		{"invalid: nil match never matches", of(list(4*s), backoff.Case{nil, list(s)}), errBroken, 4 * s},
		{"invalid: nil policy", of(list(4*s), backoff.Case{always, nil}), errBroken, 0},
		{"invalid: nil default", of(nil, backoff.Case{never, list(s)}), errBroken, 0},
	} {
		wait, retry := test.policy.Delay(backoff.Failure{Count: 1, Err: test.err})
		assert.Equal(t, test.want, wait, test.name)
		assert.Equal(t, test.want != 0, retry, test.name)
	}
}

// The caller of Delay must contain the panic, as middleware.DelayedRetry does.
func TestByErrorDoesNotHideAPanic(t *testing.T) {
	t.Parallel()
	asked := false
	match := func(error) bool { asked = true; panic("of mine") }
	p := backoff.ByError{
		Cases:   []backoff.Case{{Match: match, Policy: backoff.List{s}}},
		Default: backoff.None{},
	}
	require.NoError(t, backoff.Validate(p))
	require.NoError(t, backoff.CheckEnd(p))
	backoff.Delays(p)
	backoff.Remarks(p)
	backoff.MaxRetries(p)
	assert.False(t, asked, "only Delay asks")
	assert.PanicsWithValue(t, "of mine", func() { p.Delay(backoff.Failure{Count: 1, Err: errBroken}) })
}

func TestByErrorValidate(t *testing.T) {
	t.Parallel()
	const (
		noMatch = "Match is nil: use backoff.Is with an error, backoff.As or a func of your own\n"
		noRetry = ": use backoff.None to never retry\n"
		atLeast = " is not positive: a delay is at least 1ms\n"
	)
	always := func(error) bool { return true }
	require.NoError(t, backoff.Validate(backoff.ByError{Default: backoff.None{}}))
	require.EqualError(t, backoff.Validate(backoff.ByError{}),
		"backoff.ByError: Default: policy is nil: use backoff.None to never retry")
	err := backoff.Validate(backoff.ByError{
		Cases: []backoff.Case{
			{},
			{Match: always, Policy: backoff.List{-s, s, 0}},
			{Match: backoff.Is(nil), Policy: (*backoff.List)(nil)},
			{Match: always, Policy: backoff.ByError{Cases: []backoff.Case{{Policy: constantly(0, -1)}}}},
			{Match: always, Policy: talkative{}},
		},
		Default: limit(nil, -1),
	})
	require.EqualError(t, err, "backoff.ByError: case [0]: "+noMatch+
		"backoff.ByError: case [0]: policy is nil"+noRetry+
		"backoff.ByError: case [1]: backoff.List: entry [0] -1s"+atLeast+
		"backoff.ByError: case [1]: backoff.List: entry [2] 0s"+atLeast+
		"backoff.ByError: case [2]: "+noMatch+
		"backoff.ByError: case [2]: policy is a nil *backoff.List"+noRetry+
		"backoff.ByError: case [3]: backoff.ByError: case [0]: "+noMatch+
		"backoff.ByError: case [3]: backoff.ByError: case [0]: backoff.Constant: Interval 0s"+atLeast+
		"backoff.ByError: case [3]: backoff.ByError: case [0]: backoff.Constant: "+
		"Retries -1 is negative: use backoff.None to never retry, 0 for no end\n"+
		"backoff.ByError: case [3]: backoff.ByError: Default: policy is nil"+noRetry+
		"backoff.ByError: case [4]: talkative\n"+
		"backoff.ByError: Default: backoff.Limit: Retries -1 is negative: use 0 to never retry\n"+
		"backoff.ByError: Default: backoff.Limit: Policy is nil: give it the policy to wrap")
	require.ErrorIs(t, err, errTalkative)
}

func TestByErrorCheckEnd(t *testing.T) {
	t.Parallel()
	endless := constantly(s, 0)
	err := backoff.CheckEnd(
		choice(endless, backoff.List{s}, unbounded(endless), talkative{}, nil, foreign{}))
	require.EqualError(t, err, "backoff.ByError: case [0]: backoff.Constant: "+
		"policy is not known to stop retrying: set Retries, "+waysOut+
		"\nbackoff.ByError: case [3]: policy is not known to stop retrying: talkative"+
		"\nbackoff.ByError: Default: backoff_test.foreign: policy is not known to stop retrying: "+
		waysOut)
	require.ErrorIs(t, err, backoff.ErrNoEnd)
	require.ErrorIs(t, err, errTalkative)

	require.NoError(t, backoff.CheckEnd(backoff.ByError{}), "never retries")
	require.NoError(t, backoff.CheckEnd(limit(choice(endless), 3)))
	require.ErrorIs(t, backoff.CheckEnd(choice(endless)), backoff.ErrNoEnd)
}

func TestByErrorDelays(t *testing.T) {
	t.Parallel()
	six := linear(s, s, 0, 600)
	more := linear(ms, s, 0, 600)
	testDelays(t, requireListed, []expected{
		{"a case cannot list", choice(foreign{retry: true}, backoff.List{s}), "?"},
		{"default cannot list", choice(backoff.List{s}, foreign{retry: true}), "?"},
		{"an endless series, capped around it", capped(choice(doubling, backoff.None{}), s), "?"},
		{"nil", backoff.ByError{}, "?"},
		{"too many together", choice(six, more, backoff.None{}), "?"},
	}...)
}

func TestByErrorLeavesTheSlicesAlone(t *testing.T) {
	t.Parallel()
	list := backoff.List{3 * s, s}
	cases := make([]backoff.Case, 1, 2)
	cases[0] = backoff.Case{Match: backoff.Is(errBroken), Policy: list}
	p := backoff.ByError{Cases: cases, Default: backoff.List{2 * s}}
	delays, _ := backoff.Delays(p)
	delays[0] = time.Hour
	assert.Equal(t, backoff.List{3 * s, s}, list)
	assert.Zero(t, cases[:2][1])
	assert.Equal(t, list, cases[0].Policy)
}

// The rest of Is and As is that of package errors.
func TestIsAndAs(t *testing.T) {
	t.Parallel()
	eof, database, orders := backoff.Is(io.EOF), backoff.As[*databaseError](), &databaseError{"orders"}
	for name, test := range map[string]struct {
		match func(error) bool
		err   error
		want  bool
	}{
		"value, joined":                 {eof, errors.Join(errBroken, io.EOF), true},
		"another value":                 {eof, errors.New("EOF"), false},
		"no error":                      {eof, nil, false},
		"pointer, wrapped":              {database, fmt.Errorf("save: %w", orders), true},
		"pointer, asked for a value":    {backoff.As[valueError](), &valueError{7}, false},
		"interface":                     {backoff.As[net.Error](), &net.DNSError{}, true},
		"interface, not implemented":    {backoff.As[net.Error](), io.EOF, false},
		"no error for any error's type": {backoff.As[error](), nil, false},
	} {
		assert.Equal(t, test.want, test.match(test.err), name)
	}
	assert.Nil(t, backoff.Is(nil), "would match nothing, or no error")
}
