package middleware

import (
	"math"
	"reflect"
	"testing"
	"time"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/stretchr/testify/assert"
)

func TestDecideAboutLater(t *testing.T) {
	t.Parallel()
	day := limits{policy: backoff.List{2 * time.Second, 5 * time.Second}, maxSnooze: 24 * time.Hour}
	with := func(change func(*limits)) limits {
		l := day
		change(&l)
		return l
	}
	hourAge := with(func(l *limits) { l.maxAge = time.Hour })

	for name, test := range map[string]struct {
		limits limits
		mark   mark
		state  header.RetryState
		want   outcome // its count is that of a failure
	}{
		"at attempt 1": {
			limits: day, mark: snoozeFor(time.Minute), want: outcome{snoozed: true, delay: time.Minute, count: 1},
		},
		"whatever the policy": {
			limits: with(func(l *limits) { l.policy = backoff.None{} }), mark: snoozeFor(time.Minute),
			want: outcome{snoozed: true, delay: time.Minute, count: 1},
		},
		"at the last attempt": {
			limits: with(func(l *limits) { l.maxAttempts = 3 }), mark: snoozeFor(time.Minute), state: state{Failures: 2},
			want: outcome{snoozed: true, delay: time.Minute, count: 3},
		},
		"no delay is the shortest": {
			limits: day, mark: snoozeFor(0), want: outcome{snoozed: true, delay: time.Millisecond, count: 1},
		},
		"for longer than a queue can wait": {
			limits: with(func(l *limits) { l.maxSnooze = math.MaxInt64 }), mark: snoozeFor(math.MaxInt64),
			want: outcome{snoozed: true, delay: backoff.MaxDelay, count: 1},
		},

		"back at the very limit": {
			limits: day, mark: snoozeFor(time.Hour), state: state{FirstSeen: noon.Add(-23 * time.Hour)},
			want: outcome{snoozed: true, delay: time.Hour, count: 1},
		},
		"back just after it: a failure, not before": {
			limits: day, mark: snoozeFor(time.Hour), state: state{FirstSeen: noon.Add(-23*time.Hour - 1)},
			want: outcome{overdue: true, delay: time.Hour, count: 1},
		},
		"longer than the limit at once: a failure": {
			limits: day, mark: snoozeFor(25 * time.Hour), want: outcome{overdue: true, delay: 25 * time.Hour, count: 1},
		},
		"past the limit, delay of the policy": {
			limits: day, mark: snoozeFor(time.Second), state: state{Failures: 1, FirstSeen: noon.Add(-25 * time.Hour)},
			want: outcome{overdue: true, delay: 5 * time.Second, count: 2},
		},
		"past the limit, no attempt left": {
			limits: day, mark: snoozeFor(time.Second), state: state{Failures: 2, FirstSeen: noon.Add(-25 * time.Hour)},
			want: outcome{overdue: true, reason: header.ReasonExhausted, count: 3},
		},
		"first seen in the year 1": {
			limits: day, mark: snoozeFor(time.Second), state: state{FirstSeen: time.Time{}.Add(1)},
			want: outcome{overdue: true, delay: 2 * time.Second, count: 1},
		},
		"first seen forged to lie ahead counts as now": {
			limits: day, mark: snoozeFor(time.Hour), state: state{FirstSeen: noon.Add(1000 * time.Hour)},
			want: outcome{snoozed: true, delay: time.Hour, count: 1},
		},

		"deadline: back at the very deadline": {
			limits: day, mark: snoozeFor(time.Hour), state: state{Deadline: noon.Add(time.Hour)},
			want: outcome{snoozed: true, delay: time.Hour, count: 1},
		},
		"deadline: back just after it": {
			limits: day, mark: snoozeFor(time.Hour), state: state{Deadline: noon.Add(time.Hour - 1)},
			want: outcome{reason: header.ReasonDeadline, count: 1},
		},
		"deadline comes before the limit": {
			limits: day, mark: snoozeFor(25 * time.Hour), state: state{Deadline: noon.Add(time.Hour)},
			want: outcome{reason: header.ReasonDeadline, count: 1},
		},
		"age: no failure, no age": {
			limits: hourAge, mark: snoozeFor(2 * time.Hour), want: outcome{snoozed: true, delay: 2 * time.Hour, count: 1},
		},
		"age: back at the very limit": {
			limits: hourAge, mark: snoozeFor(time.Minute), state: state{Failures: 1, FirstFailure: noon.Add(-59 * time.Minute)},
			want: outcome{snoozed: true, delay: time.Minute, count: 2},
		},
		"age: back just after it": {
			limits: hourAge, mark: snoozeFor(time.Minute), state: state{Failures: 1, FirstFailure: noon.Add(-59*time.Minute - 1)},
			want: outcome{reason: header.ReasonMaxAge, count: 2},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := test.limits.decide(failure{err: errTest, mark: test.mark, state: test.state, now: noon})
			test.want.first = got.first
			assert.Equal(t, test.want, got)
		})
	}
}

func TestRecordOfSettingAside(t *testing.T) {
	t.Parallel()
	earlier := noon.Add(-time.Hour)
	brought := state{
		Failures: 2, FirstSeen: earlier, FirstFailure: earlier, Delay: 7 * time.Second, Snoozed: time.Hour,
		NotBefore: noon, Interruptions: 2, Inner: true,
		Error: "first", Class: header.ClassRetryable, History: []header.AttemptError{{Attempt: 1, At: earlier, Error: "first"}},
		OriginExchange: "shop", OriginRoutingKey: "order.created", Deadline: noon.Add(time.Hour),
	}
	f := failure{err: errTest, mark: snoozeFor(time.Minute), now: noon, state: brought, at: place{handler: "billing"}}
	want := brought
	want.Snoozed, want.NotBefore, want.Interruptions, want.WaitingSince = time.Minute, time.Time{}, 0, noon
	if got := recorded(f, outcome{snoozed: true, delay: time.Minute, count: 3}, "closed"); !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%+v, want\n%+v", got, want)
	}

	f.state = state{}
	want = state{FirstSeen: noon, Snoozed: time.Minute, WaitingSince: noon}
	if got := recorded(f, outcome{snoozed: true, delay: time.Minute, count: 1}, "closed"); !reflect.DeepEqual(got, want) {
		t.Errorf("at attempt 1 got\n%+v, want\n%+v", got, want)
	}
}

// What the policy sees as the delay given last is that of the last failure.
func TestSettingAsideIsHiddenFromThePolicy(t *testing.T) {
	t.Parallel()
	var last []time.Duration
	l := limits{maxSnooze: time.Hour, policy: backoff.PolicyFunc(func(f backoff.Failure) (time.Duration, bool) {
		last = append(last, f.Last)
		return 3 * time.Second, true
	})}
	fails := mark{class: header.ClassRetryable}
	state := state{}
	for _, m := range []mark{fails, snoozeFor(time.Minute), snoozeFor(time.Minute), fails} {
		f := failure{err: errTest, mark: m, state: state, now: noon}
		state = recorded(f, l.decide(f), "")
	}
	assert.Equal(t, []time.Duration{0, 3 * time.Second}, last)
	if state.Failures != 2 || state.Snoozed != 0 || len(state.History) != 2 {
		t.Errorf("got %+v", state)
	}
}
