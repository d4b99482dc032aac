package middleware

import (
	"testing"
	"time"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/stretchr/testify/assert"
)

// embedding changes the Delay of the List in it, and inherits the rest.
type embedding struct{ backoff.List }

func (embedding) Delay(backoff.Failure) (time.Duration, bool) { return time.Second, true }

func TestMostRetries(t *testing.T) {
	t.Parallel()
	endless := backoff.Constant{Interval: time.Second}
	two := backoff.List{1, 2}
	fn := backoff.PolicyFunc(two.Delay)
	never := func(error) bool { return false }
	for name, test := range map[string]struct {
		policy backoff.Policy
		want   int // -1: not known
	}{
		"none":                  {backoff.None{}, 0},
		"list":                  {two, 2},
		"nil list":              {backoff.List(nil), 0},
		"constant":              {backoff.Constant{Interval: 1, Retries: 3}, 3},
		"constant, no end":      {endless, -1},
		"linear":                {backoff.Linear{Initial: 1, Retries: 3}, 3},
		"linear, no end":        {backoff.Linear{Initial: 1}, -1},
		"exponential":           {backoff.Exponential{Initial: 1, Factor: 2, Retries: 3}, 3},
		"exponential, no end":   {backoff.Exponential{Initial: 1, Factor: 2}, -1},
		"fibonacci":             {backoff.Fibonacci{Initial: 1, Retries: 3}, 3},
		"fibonacci, no end":     {backoff.Fibonacci{Initial: 1}, -1},
		"full jitter":           {backoff.FullJitter{Policy: two}, 2},
		"equal jitter, no end":  {backoff.EqualJitter{Policy: endless}, -1},
		"bounded jitter":        {backoff.BoundedJitter{Policy: two, Extra: 1}, 2},
		"decorrelated":          {backoff.DecorrelatedJitter{Initial: 1, Retries: 3}, 3},
		"decorrelated, no end":  {backoff.DecorrelatedJitter{Initial: 1}, -1},
		"limit below":           {backoff.Limit{Policy: two, Retries: 1}, 1},
		"limit above":           {backoff.Limit{Policy: two, Retries: 9}, 2},
		"limit of none":         {backoff.Limit{Policy: two}, 0},
		"limit of no end":       {backoff.Limit{Policy: endless, Retries: 9}, 9},
		"limit of a func":       {backoff.Limit{Policy: fn, Retries: 9}, 9},
		"cap":                   {backoff.Cap{Policy: two, Max: 1}, 2},
		"cap, no end":           {backoff.Cap{Policy: endless, Max: 1}, -1},
		"age":                   {backoff.MaxAge{Policy: two, Age: time.Hour}, 2},
		"age, no end":           {backoff.MaxAge{Policy: endless, Age: time.Hour}, -1},
		"unbounded, but it is":  {backoff.Unbounded{Policy: two}, 2},
		"unbounded":             {backoff.Unbounded{Policy: endless}, -1},
		"by error, short":       {backoff.ByError{Cases: []backoff.Case{{Match: never, Policy: two}}, Default: backoff.None{}}, 99},
		"by error, a long case": {backoff.ByError{Cases: []backoff.Case{{Match: never, Policy: backoff.Limit{Policy: endless, Retries: 200}}}, Default: two}, 200},
		"by error, long":        {backoff.ByError{Default: backoff.Limit{Policy: endless, Retries: 200}}, 200},
		"by error, a case without end": {
			backoff.ByError{Cases: []backoff.Case{{Match: never, Policy: endless}}, Default: two}, -1,
		},
		"by error without end":   {backoff.ByError{Cases: []backoff.Case{{Match: never, Policy: two}}, Default: endless}, -1},
		"by error in a limit":    {backoff.Limit{Policy: backoff.ByError{Default: endless}, Retries: 4}, 4},
		"func":                   {fn, -1},
		"pointer":                {&backoff.Limit{Policy: two, Retries: 1}, -1},
		"a type that embeds one": {embedding{two}, -1},
		"a limit of such":        {backoff.Limit{Policy: embedding{two}, Retries: 5}, 5},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			assert.Equal(t, test.want, retriesOf(test.policy))
		})
	}
}

func TestPastItsLimit(t *testing.T) {
	t.Parallel()
	two := limits{policy: backoff.List{1, 2}}
	endless := limits{policy: backoff.Constant{Interval: 1}, maxAge: time.Minute}
	attempts := limits{policy: backoff.Constant{Interval: 1}, maxAttempts: 3}
	errs := RetryableErrors(errTest)
	rules := limits{policy: backoff.List{1, 2}, rules: []rule{
		{Selector: Selector{Queue: "slow"}, policy: backoff.List{1, 2, 3, 4, 5}},
		{Selector: Selector{Queue: "orders", Error: errs}, policy: backoff.List{1, 2, 3, 4}},
		{Selector: Selector{Handler: "mail"}, policy: backoff.List{1}},
		{Selector: Selector{Handler: "mail", Queue: "mails"}, policy: backoff.List{1, 2, 3, 4, 5, 6}}, // never reached
		{Selector: Selector{Topic: "endless", Error: errs}, policy: backoff.Constant{Interval: 1}},
	}}
	for _, l := range []*limits{&two, &endless, &attempts, &rules} {
		l.countRetries()
	}
	for name, test := range map[string]struct {
		limits limits
		state  header.RetryState
		at     place
		inner  bool
		want   header.Reason
	}{
		"first delivery":                   {two, state{}, place{}, false, ""},
		"as many as there are retries":     {two, state{Failures: 2}, place{}, false, ""},
		"one more":                         {two, state{Failures: 3}, place{}, false, header.ReasonExhausted},
		"far more":                         {two, state{Failures: 1 << 62}, place{}, false, header.ReasonExhausted},
		"less than none":                   {two, state{Failures: -1}, place{}, false, ""},
		"end not known":                    {endless, state{Failures: 1 << 62}, place{}, false, ""},
		"attempts left":                    {attempts, state{Failures: 2}, place{}, false, ""},
		"no attempt left":                  {attempts, state{Failures: 3}, place{}, false, header.ReasonExhausted},
		"old, but promised":                {endless, state{Failures: 1, FirstFailure: noon.Add(-time.Hour)}, place{}, false, ""},
		"deadline now":                     {two, state{Failures: 1, Deadline: noon}, place{}, false, ""},
		"deadline past":                    {two, state{Failures: 1, Deadline: noon.Add(-1)}, place{}, false, header.ReasonDeadline},
		"deadline past while it was aside": {two, state{FirstSeen: noon, Deadline: noon.Add(-1)}, place{}, false, header.ReasonDeadline},
		"both past":                        {two, state{Failures: 3, Deadline: noon.Add(-1)}, place{}, false, header.ReasonExhausted},

		"granted by an inner one":            {two, state{Failures: 9, Inner: true}, place{}, false, ""},
		"granted by this inner one":          {two, state{Failures: 3, Inner: true}, place{}, true, header.ReasonExhausted},
		"granted by an outer one":            {two, state{Failures: 9}, place{}, true, ""},
		"granted by an inner one, attempts":  {attempts, state{Failures: 9, Inner: true}, place{}, false, ""},
		"granted by an inner one, too late":  {two, state{Failures: 1, Inner: true, Deadline: noon.Add(-1)}, place{}, false, header.ReasonDeadline},
		"no rule for this place":             {rules, state{Failures: 3}, place{}, false, header.ReasonExhausted},
		"the rule for the queue":             {rules, state{Failures: 5}, place{queue: "slow"}, false, ""},
		"past the rule for the queue":        {rules, state{Failures: 6}, place{queue: "slow"}, false, header.ReasonExhausted},
		"perhaps the rule for an error":      {rules, state{Failures: 4}, place{queue: "orders"}, false, ""},
		"past the rule for an error":         {rules, state{Failures: 5}, place{queue: "orders"}, false, header.ReasonExhausted},
		"the rule that is shorter":           {rules, state{Failures: 1}, place{handler: "mail", queue: "mails"}, false, ""},
		"past the rule that is shorter":      {rules, state{Failures: 2}, place{handler: "mail", queue: "mails"}, false, header.ReasonExhausted},
		"the longest of those that match":    {rules, state{Failures: 4}, place{handler: "mail", queue: "orders"}, false, ""},
		"past the longest of those":          {rules, state{Failures: 5}, place{handler: "mail", queue: "orders"}, false, header.ReasonExhausted},
		"an end not known among those":       {rules, state{Failures: 1 << 62}, place{topic: "endless"}, false, ""},
		"an end not known comes after those": {rules, state{Failures: 6}, place{queue: "slow", topic: "endless"}, false, header.ReasonExhausted},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			assert.Equal(t, test.want, test.limits.past(&test.state, test.at, test.inner, func() time.Time { return noon }))
		})
	}
}
