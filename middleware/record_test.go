package middleware

import (
	"testing"
	"time"

	"github.com/millpond-go/millpond/middleware/header"
	"github.com/stretchr/testify/assert"
)

func TestRecordOfARetry(t *testing.T) {
	t.Parallel()
	earlier := noon.Add(-time.Hour)
	past := []header.AttemptError{{Attempt: 1, At: earlier, Error: "first", Delay: "1h0m0s"}}
	f := failure{
		err: errTest, at: place{handler: "billing"}, mark: mark{class: header.ClassRetryable}, now: noon,
		state: state{
			Failures: 1, FirstSeen: earlier, FirstFailure: earlier, Delay: time.Hour, NotBefore: noon,
			Error: "first", Class: header.ClassPermanent, History: past,
			OriginExchange: "shop", OriginRoutingKey: "order.created", Deadline: noon.Add(time.Hour),
		},
	}
	got := recorded(f, outcome{delay: time.Minute, count: 2, first: earlier}, "second")
	want := state{
		Failures: 2, FirstSeen: earlier, FirstFailure: earlier, Delay: time.Minute, WaitingSince: noon,
		Error: "second", Class: header.ClassRetryable, Handler: "billing",
		OriginExchange: "shop", OriginRoutingKey: "order.created", Deadline: noon.Add(time.Hour),
		History: []header.AttemptError{
			{Attempt: 1, At: earlier, Error: "first", Delay: "1h0m0s"},
			{Attempt: 2, At: noon, Handler: "billing", Class: header.ClassRetryable, Error: "second", Delay: "1m0s"},
		},
	}
	assert.Equal(t, want, got)
}

func TestRecordOfADeadLetter(t *testing.T) {
	t.Parallel()
	f := failure{
		err: errTest, at: place{handler: "billing"}, mark: mark{class: header.ClassPermanent}, now: noon,
		state: state{WaitingSince: noon.Add(-time.Minute)},
	}
	got := recorded(f, outcome{reason: header.ReasonPermanent, count: 1, first: noon}, "boom")
	want := state{
		Failures: 1, FirstSeen: noon, FirstFailure: noon, Error: "boom", Class: header.ClassPermanent,
		Handler: "billing", Reason: header.ReasonPermanent, DeadAt: noon,
		History: []header.AttemptError{{
			Attempt: 1, At: noon, Handler: "billing", Class: header.ClassPermanent, Error: "boom", Reason: header.ReasonPermanent,
		}},
	}
	assert.Equal(t, want, got)
}

func TestRecordReplacesAFirstSeenThatLiesAhead(t *testing.T) {
	t.Parallel()
	f := failure{err: errTest, now: noon, state: state{FirstSeen: noon.Add(time.Second)}}
	if got := recorded(f, outcome{count: 1, first: noon}, ""); !got.FirstSeen.Equal(noon) {
		t.Errorf("first seen %v, want %v", got.FirstSeen, noon)
	}
}

func TestRecordDoesNotWriteIntoTheHistoryItWasGiven(t *testing.T) {
	t.Parallel()
	roomy := make([]header.AttemptError, 1, 8)
	f := failure{err: errTest, now: noon, state: state{History: roomy}}
	recorded(f, outcome{count: 2, first: noon}, "")
	if spare := roomy[:2][1]; spare != (header.AttemptError{}) {
		t.Errorf("wrote %+v behind the caller's slice", spare)
	}
}

// recorded returns the state that travels on after the outcome of a failure.
func recorded(f failure, o outcome, text string) header.RetryState {
	o.record(f, text)
	return o.state
}
