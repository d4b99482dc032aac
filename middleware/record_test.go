package middleware

import (
	"reflect"
	"testing"
	"time"
)

func TestRecordOfARetry(t *testing.T) {
	t.Parallel()
	earlier := noon.Add(-time.Hour)
	past := []HistoryEntry{{Attempt: 1, At: earlier, Error: "first", Delay: "1h0m0s"}}
	f := failure{
		err: errTest, at: place{handler: "billing"}, mark: mark{class: ClassRetryable}, now: noon,
		notes: Notes{
			Failures: 1, FirstSeen: earlier, FirstFailure: earlier, Delay: time.Hour, NotBefore: noon,
			Error: "first", Class: ClassPermanent, History: past,
			OriginExchange: "shop", OriginRoutingKey: "order.created", Deadline: noon.Add(time.Hour),
		},
	}
	got := f.record(decision{delay: time.Minute, count: 2, first: earlier}, "second")
	want := Notes{
		Failures: 2, FirstSeen: earlier, FirstFailure: earlier, Delay: time.Minute, WaitingSince: noon,
		Error: "second", Class: ClassRetryable, Handler: "billing",
		OriginExchange: "shop", OriginRoutingKey: "order.created", Deadline: noon.Add(time.Hour),
		History: []HistoryEntry{
			{Attempt: 1, At: earlier, Error: "first", Delay: "1h0m0s"},
			{Attempt: 2, At: noon, Handler: "billing", Class: ClassRetryable, Error: "second", Delay: "1m0s"},
		},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%+v, want\n%+v", got, want)
	}
}

func TestRecordOfADeadLetter(t *testing.T) {
	t.Parallel()
	f := failure{
		err: errTest, at: place{handler: "billing"}, mark: mark{class: ClassPermanent}, now: noon,
		notes: Notes{WaitingSince: noon.Add(-time.Minute)},
	}
	got := f.record(decision{reason: ReasonPermanent, count: 1, first: noon}, "boom")
	want := Notes{
		Failures: 1, FirstSeen: noon, FirstFailure: noon, Error: "boom", Class: ClassPermanent,
		Handler: "billing", Reason: ReasonPermanent, DeadAt: noon,
		History: []HistoryEntry{{
			Attempt: 1, At: noon, Handler: "billing", Class: ClassPermanent, Error: "boom", Reason: ReasonPermanent,
		}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%+v, want\n%+v", got, want)
	}
}

func TestRecordReplacesAFirstSeenThatLiesAhead(t *testing.T) {
	t.Parallel()
	f := failure{err: errTest, now: noon, notes: Notes{FirstSeen: noon.Add(time.Second)}}
	if got := f.record(decision{count: 1, first: noon}, ""); !got.FirstSeen.Equal(noon) {
		t.Errorf("first seen %v, want %v", got.FirstSeen, noon)
	}
}

func TestRecordDoesNotWriteIntoTheHistoryItWasGiven(t *testing.T) {
	t.Parallel()
	roomy := make([]HistoryEntry, 1, 8)
	f := failure{err: errTest, now: noon, notes: Notes{History: roomy}}
	f.record(decision{count: 2, first: noon}, "")
	if spare := roomy[:2][1]; spare != (HistoryEntry{}) {
		t.Errorf("wrote %+v behind the caller's slice", spare)
	}
}
