package header

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/millpond-go/millpond/internal/keys"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 123456789, time.UTC)

func from(headers map[string]string) func(string) (string, bool) {
	return func(key string) (string, bool) {
		value, ok := headers[key]
		return value, ok
	}
}

func historyText(entries []AttemptError) string {
	text, _ := appendHistory(nil, entries)
	return string(text)
}

func someState() RetryState {
	return RetryState{
		Failures: 2, Interruptions: 2, Inner: true, Delay: 90 * time.Second, Snoozed: time.Hour,
		FirstSeen: noon, FirstFailure: noon.Add(time.Nanosecond), NotBefore: noon.Add(time.Minute),
		WaitingSince: noon.Add(time.Second), Deadline: noon.Add(time.Hour),
		DeadlineFrom: keys.FromArrival,
		Error:        "boom: ümläut", Class: ClassRetryable,
		OriginExchange: "shop", OriginRoutingKey: "order.created",
		Traceparent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
		History: []AttemptError{
			{Attempt: 1, At: noon, Handler: "billing", Class: ClassRetryable, Error: "first", Delay: "1s"},
			{Attempt: 2, At: noon.Add(time.Second), Class: ClassRetryable, Error: "boom", Delay: "1m30s"},
		},
	}
}

func deadState() RetryState {
	n := someState()
	n.Reason, n.Handler, n.DeadAt = ReasonExhausted, "billing", noon
	return n
}

func TestLiveHeadersSurviveARoundTrip(t *testing.T) {
	t.Parallel()
	for name, state := range map[string]RetryState{
		"all":              someState(),
		"none":             {},
		"default exchange": {Failures: 1, OriginRoutingKey: "orders"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := Parse("orders", from(state.Headers("orders"))); !reflect.DeepEqual(got, state) {
				t.Errorf("got\n%+v, want\n%+v", got, state)
			}
		})
	}
}

// Only a message that was dead-lettered for its deadline says the deadline.
func TestDeadLetterSaysItsDeadline(t *testing.T) {
	t.Parallel()
	for _, reason := range []Reason{ReasonDeadline, ReasonExhausted} {
		n := deadState()
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

// recorded are the live headers of someState, as versions before v0.1.0 wrote them: every
// value has its header. Renames in Go must never change them.
func recorded() map[string]string {
	return map[string]string{
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
		"millpond-history":            recordedHistory,
	}
}

const recordedHistory = `[{"attempt":1,"at":"2026-03-01T12:00:00.123456789Z","handler":"billing",` +
	`"class":"retryable","error":"first","delay":"1s"},` +
	`{"attempt":2,"at":"2026-03-01T12:00:01.123456789Z","class":"retryable",` +
	`"error":"boom","delay":"1m30s"}]`

// recordedDead are the headers of a dead letter on the wire, given up for its
// deadline.
func recordedDead() map[string]string {
	return map[string]string{
		"millpond-dead-queue":         "orders",
		"millpond-dead-reason":        "deadline",
		"millpond-dead-at":            "2026-03-01T12:00:00.123456789Z",
		"millpond-dead-handler":       "billing",
		"millpond-dead-failures":      "2",
		"millpond-dead-error":         "boom: ümläut",
		"millpond-dead-class":         "retryable",
		"millpond-dead-history":       recordedHistory,
		"millpond-dead-deadline":      "2026-03-01T13:00:00.123456789Z",
		"millpond-dead-deadline-from": "arrival",
		"millpond-origin-exchange":    "shop",
		"millpond-origin-routing-key": "order.created",
	}
}

func TestRecordedHeadersAreWrittenAndRead(t *testing.T) {
	t.Parallel()
	state, want := someState(), recorded()
	delete(want, "millpond-class") // it follows from the history
	if got := state.Headers("orders"); !maps.Equal(got, want) {
		t.Errorf("wrote\n%v, want\n%v", got, want)
	}
	if got := Parse("orders", from(recorded())); !reflect.DeepEqual(got, state) {
		t.Errorf("read\n%+v, want\n%+v", got, state)
	}

	dead := deadState()
	dead.Reason = ReasonDeadline
	if got := dead.DeadHeaders("orders"); !maps.Equal(got, recordedDead()) {
		t.Errorf("wrote\n%v, want\n%v", got, recordedDead())
	}
	wantDead := RetryState{
		Failures: 2, Error: "boom: ümläut", Class: ClassRetryable, History: dead.History,
		Reason: ReasonDeadline, Handler: "billing", DeadAt: noon,
		Deadline: noon.Add(time.Hour), DeadlineFrom: keys.FromArrival,
		OriginExchange: "shop", OriginRoutingKey: "order.created",
	}
	queue, got := ParseDead(from(recordedDead()))
	if queue != "orders" || !reflect.DeepEqual(got, wantDead) {
		t.Errorf("read of %q\n%+v, want\n%+v", queue, got, wantDead)
	}
	if got := ParseReplays(from(map[string]string{"millpond-replays": "3"})); got != 3 {
		t.Errorf("read %d replays, want 3", got)
	}
}

// The first version wrote no start of the expiration and no history.
func TestHeadersOfAnOlderVersionAreRead(t *testing.T) {
	t.Parallel()
	got := Parse("orders", from(map[string]string{
		"millpond-queue": "orders", "millpond-failures": "2", "millpond-deadline": "2026-03-01T12:00:00Z",
	}))
	want := RetryState{
		Failures: 2, Deadline: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC), OriginRoutingKey: "orders",
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestKeysOnTheWire(t *testing.T) {
	t.Parallel()
	live := slices.Collect(maps.Keys(recorded()))
	live = append(live, keys.Via, keys.Priority, keys.Publish, keys.Key, keys.Line)
	if !keys.IsLive("millpond-level-12") || !keys.IsState("millpond-level-12") {
		t.Error("a header of an earlier version's level is not known as a live header")
	}
	for key, want := range map[string]string{
		keys.Via: "millpond-return", keys.Priority: "millpond-priority", keys.Publish: "millpond-publish",
		keys.Key: "millpond-key", keys.Line: "millpond-line",
		keys.DeadKey: "millpond-dead-key", keys.DeadLine: "millpond-dead-line",
		keys.Unreadable: "millpond-unreadable", Replays: "millpond-replays",
		keys.FromTimestamp: "timestamp", keys.FromArrival: "arrival", keys.FromPublish: "publish",
	} {
		if key != want {
			t.Errorf("%q is on the wire now, it was %q", key, want)
		}
	}
	for _, key := range live {
		if !keys.IsLive(key) || !keys.IsState(key) {
			t.Errorf("%s is not known as a live header", key)
		}
		if strings.HasPrefix(key, "x-") {
			t.Errorf("%s begins with x-", key)
		}
	}
	if len(live) != len(keys.Live) {
		t.Errorf("%d live headers, want %d: record the new one", len(keys.Live), len(live))
	}
	dead := append(slices.Collect(maps.Keys(recordedDead())), keys.DeadKey, keys.DeadLine)
	for _, key := range dead {
		origin := key == keys.OriginExchange || key == keys.OriginRoutingKey
		if keys.IsLive(key) != origin || !keys.IsState(key) {
			t.Errorf("%s is not known as a header of a dead letter", key)
		}
	}
	if keys.IsState(Replays) || keys.IsState("tenant") {
		t.Error("a header is taken for retry state")
	}
}

func TestTimesAreWrittenInUTC(t *testing.T) {
	t.Parallel()
	state := RetryState{FirstFailure: noon.In(time.FixedZone("", 7*3600))}
	if got := state.Headers("orders")[keys.FirstFailure]; got != "2026-03-01T12:00:00.123456789Z" {
		t.Errorf("got %q", got)
	}
}

func TestLiveHeadersCountOnlyOnTheirOwnQueue(t *testing.T) {
	t.Parallel()
	headers := someState().Headers("orders")
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
	dead := deadState()
	headers := dead.DeadHeaders("orders")
	got := Parse("orders", from(headers))
	want := RetryState{
		OriginExchange: "shop", OriginRoutingKey: "order.created", History: dead.History,
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%+v, want\n%+v", got, want)
	}
	got = Parse("invoices", from(headers))
	if want := (RetryState{History: dead.History}); !reflect.DeepEqual(got, want) {
		t.Errorf("on another queue got\n%+v, want\n%+v", got, want)
	}
}

// The headers of the dead letter are still there when the message that was moved
// back is retried, and the live history repeats them.
func TestHistoryOfAnEarlierRoundWasCountedTwice(t *testing.T) {
	t.Parallel()
	headers := deadState().DeadHeaders("orders")
	state := Parse("orders", from(headers))
	state.Failures = 1
	state.History = append(state.History, AttemptError{Attempt: 1, At: noon, Error: "again"})
	maps.Copy(headers, state.Headers("orders"))

	got := Parse("orders", from(headers)).History
	if !reflect.DeepEqual(got, state.History) {
		t.Errorf("got %d entries, want %d:\n%+v", len(got), len(state.History), got)
	}
}

func TestForgedNotesAreSurvived(t *testing.T) {
	t.Parallel()
	tooLong := "[" + strings.Repeat(" ", keys.MaxHistoryBytes) + "]"
	nines := strings.Repeat("9", 1<<20)
	for name, test := range map[string]struct {
		key, value string
		want       RetryState
	}{
		"counter: zero":            {keys.Failures, "0", RetryState{}},
		"counter: empty":           {keys.Failures, "", RetryState{}},
		"counter: garbage":         {keys.Failures, "two", RetryState{}},
		"counter: blanks":          {keys.Failures, " 2", RetryState{}},
		"counter: fraction":        {keys.Failures, "2.5", RetryState{}},
		"counter: hexadecimal":     {keys.Failures, "0x10", RetryState{}},
		"counter: negative":        {keys.Failures, "-3", RetryState{}},
		"counter: hugely negative": {keys.Failures, "-99999999999999999999", RetryState{}},
		"counter: at the bound":    {keys.Failures, "1000000", RetryState{Failures: 1_000_000}},
		"counter: above the bound": {keys.Failures, "1000001", RetryState{Failures: 1_000_000}},
		"counter: above an int64": {
			keys.Failures, "99999999999999999999", RetryState{Failures: 1_000_000},
		},
		"counter: a megabyte":       {keys.Failures, nines, RetryState{Failures: 1_000_000}},
		"delay: garbage":            {keys.Delay, "soon", RetryState{}},
		"delay: negative":           {keys.Delay, "-1s", RetryState{}},
		"delay: overflow":           {keys.Delay, "99999999999h", RetryState{}},
		"first failure: garbage":    {keys.FirstFailure, "yesterday", RetryState{}},
		"first failure: year 10000": {keys.FirstFailure, "10000-01-01T00:00:00Z", RetryState{}},
		"snoozed: garbage":          {keys.Snoozed, "soon", RetryState{}},
		"snoozed: negative":         {keys.Snoozed, "-1s", RetryState{}},
		"inner: garbage":            {keys.Inner, "yes", RetryState{}},
		"deadline: garbage":         {keys.Deadline, "1772366400", RetryState{}},
		"deadline from: unknown":    {keys.DeadlineFrom, strings.Repeat("moon", 1000), RetryState{}},
		"exchange: too long":        {keys.OriginExchange, strings.Repeat("e", 256), RetryState{}},
		"routing key: too long":     {keys.OriginRoutingKey, strings.Repeat("k", 256), RetryState{}},
		"class: unknown":            {keys.ErrorClass, strings.Repeat("fatal", 1000), RetryState{}},
		"waiting since: garbage":    {keys.WaitingSince, "now", RetryState{}},
		"traceparent: garbage":      {keys.Traceparent, "00-\xff-00f067aa0ba902b7-01", RetryState{}},
		"traceparent: too long":     {keys.Traceparent, strings.Repeat("0", 129), RetryState{}},
		"history: garbage":          {keys.History, "{", RetryState{}},
		"history: another shape":    {keys.History, `{"attempt":1}`, RetryState{}},
		"history: too long":         {keys.History, tooLong, RetryState{}},
		"dead history: too long":    {keys.DeadHistory, tooLong, RetryState{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			headers := map[string]string{Queue: "orders", keys.OriginRoutingKey: "", test.key: test.value}
			if got := Parse("orders", from(headers)); !reflect.DeepEqual(got, test.want) {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
		})
	}
}

func TestHistoryOfAThousandAttemptsKeepsTheNewest(t *testing.T) {
	t.Parallel()
	entries := make([]AttemptError, 1000)
	for i := range entries {
		entries[i] = AttemptError{
			Attempt: i + 1, At: noon.Add(time.Duration(i) * time.Second), Handler: "billing",
			Class: ClassRetryable, Error: strings.Repeat("é", 1000), Delay: "1s",
		}
	}
	text := historyText(entries)
	if len(text) > keys.MaxHistoryBytes || len(text) < keys.MaxHistoryBytes*9/10 {
		t.Errorf("%d bytes, want nearly, but at most, %d", len(text), keys.MaxHistoryBytes)
	}
	got := decodeHistory(text)
	if len(got) < 30 || got[len(got)-1].Attempt != 1000 {
		t.Fatalf("%d entries, the last is attempt %d", len(got), got[len(got)-1].Attempt)
	}
	for i, entry := range got {
		if want := 1000 - len(got) + 1 + i; entry.Attempt != want {
			t.Errorf("entry %d is attempt %d, want %d", i, entry.Attempt, want)
		}
		if len(entry.Error) > keys.MaxEntryErrorBytes || !utf8.ValidString(entry.Error) {
			t.Errorf("entry %d has an error of %d bytes: %q", i, len(entry.Error), entry.Error)
		}
	}
}

func TestHistoryWithATimeThatJSONRefuses(t *testing.T) {
	t.Parallel()
	entries := []AttemptError{
		{Attempt: 1, At: noon},
		{Attempt: 2, At: time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)},
		{Attempt: 3, At: noon},
	}
	if got := decodeHistory(historyText(entries)); !reflect.DeepEqual(got, entries[2:]) {
		t.Errorf("got %+v, want the newest alone", got)
	}
}

func TestAnErrorOfAMegabyteIsCut(t *testing.T) {
	t.Parallel()
	n := RetryState{Failures: 1, Error: strings.Repeat("\xf0\x9f\x8c\x8a", 1<<18)}
	for _, got := range []string{n.Headers("q")[keys.Error], n.DeadHeaders("q")[DeadError]} {
		if len(got) > keys.MaxErrorBytes || len(got) < keys.MaxErrorBytes-4 || !utf8.ValidString(got) {
			t.Errorf("%d bytes, valid: %v", len(got), utf8.ValidString(got))
		}
		if !strings.HasSuffix(got, "… (cut, 1048576 bytes)") {
			t.Errorf("the cut is not marked: %q", got[len(got)-40:])
		}
	}
}

func FuzzParseNotes(f *testing.F) {
	f.Add("3", "2026-03-01T12:00:00Z", "1m30s", "boom", "retryable", `[{"attempt":1}]`, `[]`)
	f.Add("-1", "0000-00-00T00:00:00Z", "-1s", "\xff", "fatal", `[null,1]`, `{`)
	f.Add("99999999999999999999", "9999-12-31T23:59:59-23:59", "9999999h", "", "", `[[]]`,
		`[{"at":"x"}]`)
	f.Add("1", "", "", strings.Repeat("k", 100_000), "", "", "")
	f.Fuzz(func(t *testing.T, count, at, delay, text, class, history, past string) {
		headers := map[string]string{
			Queue: "q", keys.Failures: count, keys.FirstSeen: at, keys.FirstFailure: at,
			keys.NotBefore: at, keys.Deadline: at, keys.DeadlineFrom: text, keys.Delay: delay,
			keys.Snoozed: delay, keys.Inner: text, keys.Interruptions: count, keys.Error: text,
			keys.ErrorClass: class, keys.History: history, keys.DeadHistory: past, keys.WaitingSince: at,
			keys.Traceparent: text, keys.OriginExchange: text, keys.OriginRoutingKey: count,
		}
		get := from(headers)
		n := Parse("q", get)
		if n.Failures < 0 || n.Failures > keys.MaxFailures || n.Delay < 0 || n.Snoozed < 0 {
			t.Errorf("out of bounds: %d failures, delay %v, snoozed %v", n.Failures, n.Delay, n.Snoozed)
		}
		if Parse("other", get).Failures != 0 {
			t.Error("counted on another queue")
		}

		// Given any input, the output is bounded and reads as itself.
		now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
		n.Failures = min(n.Failures, keys.MaxFailures-1) + 1
		n.Error, n.Class = text, ClassRetryable
		if n.FirstFailure.IsZero() || n.FirstFailure.After(now) {
			n.FirstFailure = now
		}
		n.History = append(n.History,
			AttemptError{Attempt: n.Failures, At: now, Class: n.Class, Error: text})
		for _, h := range []map[string]string{n.Headers("q"), n.DeadHeaders("q")} {
			total := 0
			for key, value := range h {
				total += len(key) + len(value)
				name := key == keys.OriginExchange || key == keys.OriginRoutingKey // AMQP allows any bytes
				if !utf8.ValidString(value) && !name {
					t.Errorf("%s is not valid UTF-8: %q", key, value)
				}
			}
			if total > keys.MaxErrorBytes+keys.MaxHistoryBytes+1024 {
				t.Errorf("%d bytes of headers", total)
			}
		}
		again := Parse("q", from(n.Headers("q")))
		if again.Failures != min(n.Failures, keys.MaxFailures) ||
			!again.FirstFailure.Equal(n.FirstFailure) {
			t.Errorf("wrote %d failures since %v, read %d since %v",
				n.Failures, n.FirstFailure, again.Failures, again.FirstFailure)
		}
		if last := len(again.History) - 1; last < 0 || again.History[last].Attempt != n.Failures {
			t.Errorf("the newest entry of the history is missing: %+v", again.History)
		}
	})
}

func FuzzHistory(f *testing.F) {
	f.Add(`[{"attempt":1,"at":"2026-03-01T12:00:00Z","error":"boom"}]`)
	f.Add(`[{"class":"` + strings.Repeat(`\u0000`, 3000) + `"},null,{}]`)
	f.Add("[" + strings.Repeat("null,", 3000) + "null]")
	f.Fuzz(func(t *testing.T, text string) {
		entries := decodeHistory(text)
		if len(entries) > keys.MaxHistoryBytes/2 {
			t.Errorf("%d entries of %d bytes", len(entries), len(text))
		}
		out := historyText(entries)
		if len(out) > keys.MaxHistoryBytes || !utf8.ValidString(out) {
			t.Errorf("%d bytes, valid: %v", len(out), utf8.ValidString(out))
		}
		if again := historyText(decodeHistory(out)); again != out {
			t.Errorf("written again it differs:\n%s\n%s", out, again)
		}
	})
}
