package header

import (
	"maps"
	"reflect"
	"strings"
	"testing"
	"time"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 123456789, time.UTC)

func from(headers map[string]string) func(string) (string, bool) {
	return func(key string) (string, bool) {
		value, ok := headers[key]
		return value, ok
	}
}

func someNotes() RetryState {
	return RetryState{
		Failures: 2, FirstSeen: noon, FirstFailure: noon.Add(time.Nanosecond), Delay: 90 * time.Second,
		Snoozed: time.Hour, Inner: true, Interruptions: 2, NotBefore: noon.Add(time.Minute), Error: "boom: ümläut", Class: ClassRetryable,
		OriginExchange: "shop", OriginRoutingKey: "order.created", Deadline: noon.Add(time.Hour), DeadlineFrom: FromArrival,
		WaitingSince: noon.Add(time.Second), Traceparent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
		History: []AttemptError{
			{Attempt: 1, At: noon, Handler: "billing", Class: ClassRetryable, Error: "first", Delay: "1s"},
			{Attempt: 2, At: noon.Add(time.Second), Class: ClassRetryable, Error: "boom", Delay: "1m30s"},
		},
	}
}

func deadNotes() RetryState {
	n := someNotes()
	n.Reason, n.Handler, n.DeadAt = ReasonExhausted, "billing", noon
	return n
}

func TestLiveNotesSurviveARoundTrip(t *testing.T) {
	t.Parallel()
	for name, notes := range map[string]RetryState{
		"all":              someNotes(),
		"none":             {},
		"default exchange": {Failures: 1, OriginRoutingKey: "orders"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := Parse("orders", from(notes.Headers("orders"))); !reflect.DeepEqual(got, notes) {
				t.Errorf("got\n%+v, want\n%+v", got, notes)
			}
		})
	}
}

// Only a letter that was given up for its deadline says when that was.
func TestDeadLetterSaysItsDeadline(t *testing.T) {
	t.Parallel()
	for _, reason := range []Reason{ReasonDeadline, ReasonExhausted} {
		n := deadNotes()
		n.Reason = reason
		_, got := ParseDead(from(n.DeadHeaders("orders")))
		if reason != ReasonDeadline {
			n.Deadline, n.DeadlineFrom = time.Time{}, ""
		}
		if !got.Deadline.Equal(n.Deadline) || got.DeadlineFrom != n.DeadlineFrom {
			t.Errorf("%s: got %v from %q", reason, got.Deadline, got.DeadlineFrom)
		}
	}
}

func TestLiveNotesAreInTheseHeaders(t *testing.T) {
	t.Parallel()
	want := map[string]string{
		"millpond-queue":              "orders",
		"millpond-failures":           "2",
		"millpond-first-seen":         "2026-03-01T12:00:00.123456789Z",
		"millpond-first-failure":      "2026-03-01T12:00:00.12345679Z",
		"millpond-delay":              "1m30s",
		"millpond-set-aside":          "1h0m0s",
		"millpond-inner":              "true",
		"millpond-interruptions":      "2",
		"millpond-not-before":         "2026-03-01T12:01:00.123456789Z",
		"millpond-error":              "boom: ümläut",
		"millpond-class":              "retryable",
		"millpond-origin-exchange":    "shop",
		"millpond-origin-routing-key": "order.created",
		"millpond-deadline":           "2026-03-01T13:00:00.123456789Z",
		"millpond-deadline-from":      "arrival",
		"millpond-waiting-since":      "2026-03-01T12:00:01.123456789Z",
		"millpond-traceparent":        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
		"millpond-history": `[{"attempt":1,"at":"2026-03-01T12:00:00.123456789Z","handler":"billing","class":"retryable",` +
			`"error":"first","delay":"1s"},{"attempt":2,"at":"2026-03-01T12:00:01.123456789Z","class":"retryable",` +
			`"error":"boom","delay":"1m30s"}]`,
	}
	got := someNotes().Headers("orders")
	if !maps.Equal(got, want) {
		t.Errorf("got\n%v, want\n%v", got, want)
	}
	for key := range got {
		if !IsLive(key) {
			t.Errorf("%s is not known as a live key", key)
		}
		if strings.HasPrefix(key, "x-") {
			t.Errorf("%s begins with x-", key)
		}
	}
}

func TestTimesAreWrittenInUTC(t *testing.T) {
	t.Parallel()
	notes := RetryState{FirstFailure: noon.In(time.FixedZone("", 7*3600))}
	if got := notes.Headers("orders")[FirstFailure]; got != "2026-03-01T12:00:00.123456789Z" {
		t.Errorf("got %q", got)
	}
}

func TestLiveNotesCountOnlyOnTheirOwnQueue(t *testing.T) {
	t.Parallel()
	headers := someNotes().Headers("orders")
	if got := Parse("invoices", from(headers)); !reflect.DeepEqual(got, RetryState{}) {
		t.Errorf("on another queue got %+v, want none", got)
	}
	delete(headers, Queue)
	if got := Parse("orders", from(headers)); !reflect.DeepEqual(got, RetryState{}) {
		t.Errorf("without a queue got %+v, want none", got)
	}
}

func TestADeadLetterThatWasMovedBackStartsAtAttemptOne(t *testing.T) {
	t.Parallel()
	dead := deadNotes()
	headers := dead.DeadHeaders("orders")
	got := Parse("orders", from(headers))
	want := RetryState{OriginExchange: "shop", OriginRoutingKey: "order.created", History: dead.History}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%+v, want\n%+v", got, want)
	}
	got = Parse("invoices", from(headers))
	if want := (RetryState{History: dead.History}); !reflect.DeepEqual(got, want) {
		t.Errorf("on another queue got\n%+v, want\n%+v", got, want)
	}
	for key := range headers {
		if IsLive(key) && key != OriginExchange && key != OriginRoutingKey {
			t.Errorf("a dead letter carries the live key %s", key)
		}
		if !IsState(key) {
			t.Errorf("%s is not known as a key of ours", key)
		}
	}
}

// The headers of the dead letter are still there when the message that was moved
// back is retried, and the live history repeats them.
func TestHistoryOfAnEarlierRoundWasCountedTwice(t *testing.T) {
	t.Parallel()
	headers := deadNotes().DeadHeaders("orders")
	notes := Parse("orders", from(headers))
	notes.Failures = 1
	notes.History = append(notes.History, AttemptError{Attempt: 1, At: noon, Error: "again"})
	maps.Copy(headers, notes.Headers("orders"))

	got := Parse("orders", from(headers)).History
	if !reflect.DeepEqual(got, notes.History) {
		t.Errorf("got %d entries, want %d:\n%+v", len(got), len(notes.History), got)
	}
}

func TestForgedNotesAreSurvived(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		key, value string
		want       RetryState
	}{
		"counter: zero":             {Failures, "0", RetryState{}},
		"counter: empty":            {Failures, "", RetryState{}},
		"counter: garbage":          {Failures, "two", RetryState{}},
		"counter: blanks":           {Failures, " 2", RetryState{}},
		"counter: fraction":         {Failures, "2.5", RetryState{}},
		"counter: hexadecimal":      {Failures, "0x10", RetryState{}},
		"counter: negative":         {Failures, "-3", RetryState{}},
		"counter: hugely negative":  {Failures, "-99999999999999999999", RetryState{}},
		"counter: at the bound":     {Failures, "1000000", RetryState{Failures: 1_000_000}},
		"counter: above the bound":  {Failures, "1000001", RetryState{Failures: 1_000_000}},
		"counter: above an int64":   {Failures, "99999999999999999999", RetryState{Failures: 1_000_000}},
		"counter: a megabyte":       {Failures, strings.Repeat("9", 1<<20), RetryState{Failures: 1_000_000}},
		"delay: garbage":            {Delay, "soon", RetryState{}},
		"delay: negative":           {Delay, "-1s", RetryState{}},
		"delay: overflow":           {Delay, "99999999999h", RetryState{}},
		"first failure: garbage":    {FirstFailure, "yesterday", RetryState{}},
		"first failure: year 10000": {FirstFailure, "10000-01-01T00:00:00Z", RetryState{}},
		"set aside: garbage":        {Snoozed, "soon", RetryState{}},
		"set aside: negative":       {Snoozed, "-1s", RetryState{}},
		"inner: garbage":            {Inner, "yes", RetryState{}},
		"deadline: garbage":         {Deadline, "1772366400", RetryState{}},
		"deadline from: unknown":    {DeadlineFrom, strings.Repeat("moon", 1000), RetryState{}},
		"exchange: too long":        {OriginExchange, strings.Repeat("e", 256), RetryState{}},
		"routing key: too long":     {OriginRoutingKey, strings.Repeat("k", 256), RetryState{}},
		"class: unknown":            {ErrorClass, strings.Repeat("fatal", 1000), RetryState{}},
		"waiting since: garbage":    {WaitingSince, "now", RetryState{}},
		"traceparent: garbage":      {Traceparent, "00-\xff-00f067aa0ba902b7-01", RetryState{}},
		"traceparent: too long":     {Traceparent, strings.Repeat("0", 129), RetryState{}},
		"history: garbage":          {History, "{", RetryState{}},
		"history: another shape":    {History, `{"attempt":1}`, RetryState{}},
		"history: too long":         {History, "[" + strings.Repeat(" ", MaxHistoryBytes) + "]", RetryState{}},
		"dead history: too long":    {DeadHistory, "[" + strings.Repeat(" ", MaxHistoryBytes) + "]", RetryState{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			headers := map[string]string{Queue: "orders", test.key: test.value}
			if got := Parse("orders", from(headers)); !reflect.DeepEqual(got, test.want) {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
		})
	}
}
