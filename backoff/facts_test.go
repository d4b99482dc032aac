package backoff_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/millpond-go/millpond/backoff"
)

// embedding changes the Delay of the List in it and inherits everything else.
type embedding struct{ backoff.List }

func (embedding) Delay(backoff.Failure) (time.Duration, bool) { return time.Second, true }

// wrapping changes the Delay of the Limit in it and inherits everything else.
type wrapping struct{ backoff.Limit }

func (wrapping) Delay(backoff.Failure) (time.Duration, bool) { return time.Second, true }

func TestMaxRetries(t *testing.T) {
	t.Parallel()
	const unknown, always = -1, math.MaxInt
	endless := backoff.Constant{Interval: time.Second}
	two := backoff.List{1, 2}
	fn := backoff.PolicyFunc(two.Delay)
	long := backoff.Limit{Policy: endless, Retries: 200}
	byError := func(of, other backoff.Policy) backoff.ByError {
		return backoff.ByError{Cases: []backoff.Case{{Match: backoff.Is(errBroken), Policy: of}}, Default: other}
	}
	for name, test := range map[string]struct {
		policy  backoff.Policy
		retries int
		matches int // the highest count for which a Match is called
	}{
		"nil":                   {nil, unknown, 0},
		"none":                  {backoff.None{}, 0, 0},
		"list":                  {two, 2, 0},
		"nil list":              {backoff.List(nil), 0, 0},
		"constant":              {backoff.Constant{Interval: 1, Retries: 3}, 3, 0},
		"constant, no end":      {endless, unknown, 0},
		"constant, negative":    {backoff.Constant{Interval: 1, Retries: -3}, unknown, 0},
		"linear":                {backoff.Linear{Initial: 1, Retries: 3}, 3, 0},
		"linear, no end":        {backoff.Linear{Initial: 1}, unknown, 0},
		"exponential":           {backoff.Exponential{Initial: 1, Factor: 2, Retries: 3}, 3, 0},
		"exponential, no end":   {backoff.Exponential{Initial: 1, Factor: 2}, unknown, 0},
		"fibonacci":             {backoff.Fibonacci{Initial: 1, Retries: 3}, 3, 0},
		"fibonacci, no end":     {backoff.Fibonacci{Initial: 1}, unknown, 0},
		"full jitter":           {backoff.FullJitter{Policy: two}, 2, 0},
		"equal jitter, no end":  {backoff.EqualJitter{Policy: endless}, unknown, 0},
		"bounded jitter":        {backoff.BoundedJitter{Policy: two, Extra: 1}, 2, 0},
		"decorrelated":          {backoff.DecorrelatedJitter{Initial: 1, Retries: 3}, 3, 0},
		"decorrelated, no end":  {backoff.DecorrelatedJitter{Initial: 1}, unknown, 0},
		"limit below":           {backoff.Limit{Policy: two, Retries: 1}, 1, 0},
		"limit above":           {backoff.Limit{Policy: two, Retries: 9}, 2, 0},
		"limit of none":         {backoff.Limit{Policy: two}, 0, 0},
		"limit, negative":       {backoff.Limit{Policy: two, Retries: -1}, 0, 0},
		"limit of no end":       {backoff.Limit{Policy: endless, Retries: 9}, 9, 0},
		"limit of a func":       {backoff.Limit{Policy: fn, Retries: 9}, 9, 0},
		"cap":                   {backoff.Cap{Policy: two, Max: 1}, 2, 0},
		"cap, no end":           {backoff.Cap{Policy: endless, Max: 1}, unknown, 0},
		"age":                   {backoff.MaxAge{Policy: two, Age: time.Hour}, 2, 0},
		"age, no end":           {backoff.MaxAge{Policy: endless, Age: time.Hour}, unknown, 0},
		"unbounded, but it is":  {backoff.Unbounded{Policy: two}, 2, 0},
		"unbounded":             {backoff.Unbounded{Policy: endless}, unknown, 0},
		"by error, short":       {byError(two, backoff.None{}), 2, always},
		"by error, a long case": {byError(long, two), 200, always},
		"by error, long":        {byError(two, long), 200, always},

		"by error, a case without end": {byError(endless, two), unknown, always},
		"by error without end":         {byError(two, endless), unknown, always},
		"by error in a limit":          {backoff.Limit{Policy: byError(two, endless), Retries: 4}, 4, 4},
		"by error in a high limit":     {backoff.Limit{Policy: byError(two, two), Retries: 4}, 2, 4},
		"by error in two limits":       {backoff.Limit{Policy: backoff.Limit{Policy: byError(two, two), Retries: 1}, Retries: 4}, 1, 1},
		"by error in a negative limit": {backoff.Limit{Policy: byError(two, two), Retries: -1}, 0, 0},
		"by error in a jitter":         {backoff.FullJitter{Policy: byError(two, two)}, 2, always},
		"limit in a case":              {byError(backoff.Limit{Policy: byError(two, two), Retries: 1}, two), 2, always},

		"func":                         {fn, unknown, 0},
		"pointer":                      {&backoff.Limit{Policy: two, Retries: 1}, unknown, 0},
		"a foreign one":                {foreign{}, unknown, 0},
		"a type that embeds one":       {embedding{two}, unknown, 0},
		"a type that embeds a limit":   {wrapping{long}, unknown, 0},
		"a nameless type":              {struct{ backoff.List }{two}, unknown, 0},
		"a limit of such":              {backoff.Limit{Policy: embedding{two}, Retries: 5}, 5, 0},
		"a jitter of such":             {backoff.FullJitter{Policy: embedding{two}}, unknown, 0},
		"a case of such":               {byError(embedding{two}, two), unknown, always},
		"a limit of a jitter of such":  {backoff.Limit{Policy: backoff.FullJitter{Policy: embedding{two}}, Retries: 5}, 5, 0},
		"a limit of a nil policy":      {backoff.Limit{Retries: 5}, 5, 0},
		"a limit of a pointer to none": {backoff.Limit{Policy: &backoff.None{}, Retries: 5}, 5, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			retries, known := backoff.MaxRetries(test.policy)
			assert.Equal(t, test.retries != unknown, known)
			assert.Equal(t, max(test.retries, 0), retries)
			assert.Equal(t, test.matches, backoff.MaxMatchCount(test.policy))
		})
	}
}

// MaxRetries is asked for every message that comes back, so it must not allocate.
func TestMaxRetriesDoesNotAllocate(t *testing.T) {
	var p backoff.Policy = backoff.Limit{Policy: backoff.FullJitter{Policy: byKind}, Retries: 9}
	assert.Zero(t, testing.AllocsPerRun(100, func() { backoff.MaxRetries(p) }))
}

func ExampleMaxRetries() {
	endless := backoff.Exponential{Initial: time.Second, Factor: 2}
	fmt.Println(backoff.MaxRetries(backoff.List{time.Second, time.Minute}))
	fmt.Println(backoff.MaxRetries(endless))
	fmt.Println(backoff.MaxRetries(backoff.Limit{Policy: endless, Retries: 8}))
	// Output:
	// 2 true
	// 0 false
	// 8 true
}

func ExampleMaxMatchCount() {
	policy := backoff.ByError{
		Cases:   []backoff.Case{{Match: backoff.Is(errRateLimited), Policy: backoff.List{time.Minute}}},
		Default: backoff.None{},
	}
	fmt.Println(backoff.MaxMatchCount(backoff.List{time.Minute}))
	fmt.Println(backoff.MaxMatchCount(policy) == math.MaxInt)
	fmt.Println(backoff.MaxMatchCount(backoff.Limit{Policy: policy, Retries: 8}))
	// Output:
	// 0
	// true
	// 8
}
