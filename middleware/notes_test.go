package middleware_test

import (
	"maps"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/millpond-go/millpond/middleware"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 123456789, time.UTC)

func from(headers map[string]string) func(string) (string, bool) {
	return func(key string) (string, bool) {
		value, ok := headers[key]
		return value, ok
	}
}

func someNotes() middleware.Notes {
	return middleware.Notes{
		Failures: 2, FirstSeen: noon, FirstFailure: noon.Add(time.Nanosecond), Delay: 90 * time.Second,
		SetAside: time.Hour, Inner: true, Interruptions: 2, NotBefore: noon.Add(time.Minute), Error: "boom: ümläut", Class: middleware.ClassRetryable,
		OriginExchange: "shop", OriginRoutingKey: "order.created", Deadline: noon.Add(time.Hour), DeadlineFrom: middleware.DeadlineFromArrival,
		WaitingSince: noon.Add(time.Second), Traceparent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
		History: []middleware.HistoryEntry{
			{Attempt: 1, At: noon, Handler: "billing", Class: middleware.ClassRetryable, Error: "first", Delay: "1s"},
			{Attempt: 2, At: noon.Add(time.Second), Class: middleware.ClassRetryable, Error: "boom", Delay: "1m30s"},
		},
	}
}

func deadNotes() middleware.Notes {
	n := someNotes()
	n.Reason, n.Handler, n.DeadAt = middleware.ReasonExhausted, "billing", noon
	return n
}

func TestLiveNotesSurviveARoundTrip(t *testing.T) {
	t.Parallel()
	for name, notes := range map[string]middleware.Notes{
		"all":              someNotes(),
		"none":             {},
		"default exchange": {Failures: 1, OriginRoutingKey: "orders"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := middleware.ParseNotes("orders", from(notes.Headers("orders"))); !reflect.DeepEqual(got, notes) {
				t.Errorf("got\n%+v, want\n%+v", got, notes)
			}
		})
	}
}

// Only a letter that was given up for its deadline says when that was.
func TestDeadLetterSaysItsDeadline(t *testing.T) {
	t.Parallel()
	for _, reason := range []middleware.Reason{middleware.ReasonDeadline, middleware.ReasonExhausted} {
		n := deadNotes()
		n.Reason = reason
		_, got := middleware.ParseDeadNotes(from(n.DeadHeaders("orders")))
		if reason != middleware.ReasonDeadline {
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
		if !middleware.IsLiveKey(key) {
			t.Errorf("%s is not known as a live key", key)
		}
		if strings.HasPrefix(key, "x-") {
			t.Errorf("%s begins with x-", key)
		}
	}
}

func TestTimesAreWrittenInUTC(t *testing.T) {
	t.Parallel()
	notes := middleware.Notes{FirstFailure: noon.In(time.FixedZone("", 7*3600))}
	if got := notes.Headers("orders")[middleware.FirstFailureKey]; got != "2026-03-01T12:00:00.123456789Z" {
		t.Errorf("got %q", got)
	}
}

func TestLiveNotesCountOnlyOnTheirOwnQueue(t *testing.T) {
	t.Parallel()
	headers := someNotes().Headers("orders")
	if got := middleware.ParseNotes("invoices", from(headers)); !reflect.DeepEqual(got, middleware.Notes{}) {
		t.Errorf("on another queue got %+v, want none", got)
	}
	delete(headers, middleware.QueueKey)
	if got := middleware.ParseNotes("orders", from(headers)); !reflect.DeepEqual(got, middleware.Notes{}) {
		t.Errorf("without a queue got %+v, want none", got)
	}
}

func TestADeadLetterThatWasMovedBackStartsAtAttemptOne(t *testing.T) {
	t.Parallel()
	dead := deadNotes()
	headers := dead.DeadHeaders("orders")
	got := middleware.ParseNotes("orders", from(headers))
	want := middleware.Notes{OriginExchange: "shop", OriginRoutingKey: "order.created", History: dead.History}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%+v, want\n%+v", got, want)
	}
	got = middleware.ParseNotes("invoices", from(headers))
	if want := (middleware.Notes{History: dead.History}); !reflect.DeepEqual(got, want) {
		t.Errorf("on another queue got\n%+v, want\n%+v", got, want)
	}
	for key := range headers {
		if middleware.IsLiveKey(key) && key != middleware.OriginExchangeKey && key != middleware.OriginRoutingKeyKey {
			t.Errorf("a dead letter carries the live key %s", key)
		}
		if !middleware.IsNoteKey(key) {
			t.Errorf("%s is not known as a key of ours", key)
		}
	}
}

// The headers of the dead letter are still there when the message that was moved
// back is retried, and the live history repeats them.
func TestHistoryOfAnEarlierRoundWasCountedTwice(t *testing.T) {
	t.Parallel()
	headers := deadNotes().DeadHeaders("orders")
	notes := middleware.ParseNotes("orders", from(headers))
	notes.Failures = 1
	notes.History = append(notes.History, middleware.HistoryEntry{Attempt: 1, At: noon, Error: "again"})
	maps.Copy(headers, notes.Headers("orders"))

	got := middleware.ParseNotes("orders", from(headers)).History
	if !reflect.DeepEqual(got, notes.History) {
		t.Errorf("got %d entries, want %d:\n%+v", len(got), len(notes.History), got)
	}
}

func TestForgedNotesAreSurvived(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		key, value string
		want       middleware.Notes
	}{
		"counter: zero":             {middleware.FailuresKey, "0", middleware.Notes{}},
		"counter: empty":            {middleware.FailuresKey, "", middleware.Notes{}},
		"counter: garbage":          {middleware.FailuresKey, "two", middleware.Notes{}},
		"counter: blanks":           {middleware.FailuresKey, " 2", middleware.Notes{}},
		"counter: fraction":         {middleware.FailuresKey, "2.5", middleware.Notes{}},
		"counter: hexadecimal":      {middleware.FailuresKey, "0x10", middleware.Notes{}},
		"counter: negative":         {middleware.FailuresKey, "-3", middleware.Notes{}},
		"counter: hugely negative":  {middleware.FailuresKey, "-99999999999999999999", middleware.Notes{}},
		"counter: at the bound":     {middleware.FailuresKey, "1000000", middleware.Notes{Failures: 1_000_000}},
		"counter: above the bound":  {middleware.FailuresKey, "1000001", middleware.Notes{Failures: 1_000_000}},
		"counter: above an int64":   {middleware.FailuresKey, "99999999999999999999", middleware.Notes{Failures: 1_000_000}},
		"counter: a megabyte":       {middleware.FailuresKey, strings.Repeat("9", 1<<20), middleware.Notes{Failures: 1_000_000}},
		"delay: garbage":            {middleware.DelayKey, "soon", middleware.Notes{}},
		"delay: negative":           {middleware.DelayKey, "-1s", middleware.Notes{}},
		"delay: overflow":           {middleware.DelayKey, "99999999999h", middleware.Notes{}},
		"first failure: garbage":    {middleware.FirstFailureKey, "yesterday", middleware.Notes{}},
		"first failure: year 10000": {middleware.FirstFailureKey, "10000-01-01T00:00:00Z", middleware.Notes{}},
		"set aside: garbage":        {middleware.SetAsideKey, "soon", middleware.Notes{}},
		"set aside: negative":       {middleware.SetAsideKey, "-1s", middleware.Notes{}},
		"inner: garbage":            {middleware.InnerKey, "yes", middleware.Notes{}},
		"deadline: garbage":         {middleware.DeadlineKey, "1772366400", middleware.Notes{}},
		"deadline from: unknown":    {middleware.DeadlineFromKey, strings.Repeat("moon", 1000), middleware.Notes{}},
		"exchange: too long":        {middleware.OriginExchangeKey, strings.Repeat("e", 256), middleware.Notes{}},
		"routing key: too long":     {middleware.OriginRoutingKeyKey, strings.Repeat("k", 256), middleware.Notes{}},
		"class: unknown":            {middleware.ClassKey, strings.Repeat("fatal", 1000), middleware.Notes{}},
		"waiting since: garbage":    {middleware.WaitingSinceKey, "now", middleware.Notes{}},
		"traceparent: garbage":      {middleware.TraceparentKey, "00-\xff-00f067aa0ba902b7-01", middleware.Notes{}},
		"traceparent: too long":     {middleware.TraceparentKey, strings.Repeat("0", 129), middleware.Notes{}},
		"history: garbage":          {middleware.HistoryKey, "{", middleware.Notes{}},
		"history: another shape":    {middleware.HistoryKey, `{"attempt":1}`, middleware.Notes{}},
		"history: too long":         {middleware.HistoryKey, "[" + strings.Repeat(" ", middleware.MaxHistoryBytes) + "]", middleware.Notes{}},
		"dead history: too long":    {middleware.DeadHistoryKey, "[" + strings.Repeat(" ", middleware.MaxHistoryBytes) + "]", middleware.Notes{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			headers := map[string]string{middleware.QueueKey: "orders", test.key: test.value}
			if got := middleware.ParseNotes("orders", from(headers)); !reflect.DeepEqual(got, test.want) {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
		})
	}
}
