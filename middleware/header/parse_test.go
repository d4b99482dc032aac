package header

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/excerpt"
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
			require.Equal(t, state, Parse("orders", from(state.Headers("orders"))))
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
		require.True(t, got.Deadline.Equal(n.Deadline), reason)
		require.Equal(t, n.DeadlineFrom, got.DeadlineFrom, reason)
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
	require.Equal(t, want, state.Headers("orders"))
	require.Equal(t, state, Parse("orders", from(recorded())))

	dead := deadState()
	dead.Reason = ReasonDeadline
	require.Equal(t, recordedDead(), dead.DeadHeaders("orders"))
	wantDead := RetryState{
		Failures: 2, Error: "boom: ümläut", Class: ClassRetryable, History: dead.History,
		Reason: ReasonDeadline, Handler: "billing", DeadAt: noon,
		Deadline: noon.Add(time.Hour), DeadlineFrom: keys.FromArrival,
		OriginExchange: "shop", OriginRoutingKey: "order.created",
	}
	queue, got := ParseDead(from(recordedDead()))
	require.Equal(t, "orders", queue)
	require.Equal(t, wantDead, got)
	require.Equal(t, 3, ParseReplays(from(map[string]string{"millpond-replays": "3"})))
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
	require.Equal(t, want, got)
}

func TestKeysOnTheWire(t *testing.T) {
	t.Parallel()
	live := slices.Collect(maps.Keys(recorded()))
	live = append(live, "millpond-return", "millpond-priority", "millpond-publish", "millpond-key",
		"millpond-line")
	require.Len(t, live, len(keys.Live), "record the new one")
	live = append(live, "millpond-level-12") // of an earlier version
	for _, key := range live {
		require.True(t, keys.IsLive(key) && keys.IsState(key), key)
		require.False(t, strings.HasPrefix(key, "x-"), key)
	}
	dead := append(slices.Collect(maps.Keys(recordedDead())), "millpond-dead-key",
		"millpond-dead-line")
	for _, key := range dead {
		origin := key == keys.OriginExchange || key == keys.OriginRoutingKey
		require.Equal(t, origin, keys.IsLive(key), key)
		require.True(t, keys.IsState(key), key)
	}
	require.False(t, keys.IsState(Replays) || keys.IsState("tenant"))
	require.Equal(t, []string{
		"millpond-unreadable", "millpond-replay", "millpond-edited-at",
		"millpond-edited-by",
	}, []string{keys.Unreadable, keys.Replay, EditedAt, EditedBy})
}

func TestTimesAreWrittenInUTC(t *testing.T) {
	t.Parallel()
	state := RetryState{FirstFailure: noon.In(time.FixedZone("", 7*3600))}
	got := state.Headers("orders")[keys.FirstFailure]
	require.Equal(t, "2026-03-01T12:00:00.123456789Z", got)
}

func TestLiveHeadersCountOnlyOnTheirOwnQueue(t *testing.T) {
	t.Parallel()
	headers := someState().Headers("orders")
	require.Equal(t, RetryState{}, Parse("invoices", from(headers)))
	delete(headers, Queue)
	require.Equal(t, RetryState{}, Parse("orders", from(headers)))
}

func TestADeadLetterThatWasMovedBackStartsAtAttemptOne(t *testing.T) {
	t.Parallel()
	dead := deadState()
	headers := dead.DeadHeaders("orders")
	got := Parse("orders", from(headers))
	want := RetryState{
		OriginExchange: "shop", OriginRoutingKey: "order.created", History: dead.History,
	}
	require.Equal(t, want, got)
	got = Parse("invoices", from(headers))
	require.Equal(t, RetryState{History: dead.History}, got)
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
	require.Equal(t, state.History, got)
}

func TestForgedNotesAreSurvived(t *testing.T) {
	t.Parallel()
	tooLong := "[" + strings.Repeat(" ", keys.MaxHistoryBytes) + "]"
	nines := strings.Repeat("9", 1<<20)
	for name, test := range map[string]struct {
		key, value string
		want       RetryState
	}{
		"counter: garbage":         {keys.Failures, "two", RetryState{}},
		"counter: negative":        {keys.Failures, "-3", RetryState{}},
		"counter: hugely negative": {keys.Failures, "-99999999999999999999", RetryState{}},
		"counter: at the bound":    {keys.Failures, "1000000", RetryState{Failures: 1_000_000}},
		"counter: above the bound": {keys.Failures, "1000001", RetryState{Failures: 1_000_000}},
		"counter: above an int64": {
			keys.Failures, "99999999999999999999", RetryState{Failures: 1_000_000},
		},
		"counter: a megabyte":       {keys.Failures, nines, RetryState{Failures: 1_000_000}},
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
		headers := map[string]string{Queue: "orders", keys.OriginRoutingKey: "", test.key: test.value}
		require.Equal(t, test.want, Parse("orders", from(headers)), name)
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
	require.LessOrEqual(t, len(text), keys.MaxHistoryBytes)
	require.GreaterOrEqual(t, len(text), keys.MaxHistoryBytes*9/10)
	got := decodeHistory(text)
	require.Greater(t, len(got), 30)
	for i, entry := range got {
		require.Equal(t, 1000-len(got)+1+i, entry.Attempt)
		require.LessOrEqual(t, len(entry.Error), keys.MaxEntryErrorBytes)
		require.True(t, utf8.ValidString(entry.Error), "%q", entry.Error)
	}
}

func TestHistoryWithATimeThatJSONRefuses(t *testing.T) {
	t.Parallel()
	entries := []AttemptError{
		{Attempt: 1, At: noon},
		{Attempt: 2, At: time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)},
		{Attempt: 3, At: noon},
	}
	require.Equal(t, entries[2:], decodeHistory(historyText(entries)))
}

func TestAnErrorOfAMegabyteIsCut(t *testing.T) {
	t.Parallel()
	n := RetryState{Failures: 1, Error: strings.Repeat("\xf0\x9f\x8c\x8a", 1<<18)}
	for _, got := range []string{n.Headers("q")[keys.Error], n.DeadHeaders("q")[DeadError]} {
		require.LessOrEqual(t, len(got), keys.MaxErrorBytes)
		require.GreaterOrEqual(t, len(got), keys.MaxErrorBytes-4)
		require.True(t, utf8.ValidString(got))
		require.True(t, strings.HasSuffix(got, "… (cut, 1048576 bytes)"), "the cut is not marked")
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
		require.True(t, n.Failures >= 0 && n.Failures <= keys.MaxFailures && n.Delay >= 0 &&
			n.Snoozed >= 0, "%+v", n)
		require.Zero(t, Parse("other", get).Failures)

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
				require.True(t, utf8.ValidString(value) || name, "%s is not valid UTF-8: %q", key, value)
			}
			require.LessOrEqual(t, total, keys.MaxErrorBytes+keys.MaxHistoryBytes+1024)
		}
		again := Parse("q", from(n.Headers("q")))
		require.Equal(t, min(n.Failures, keys.MaxFailures), again.Failures)
		require.True(t, again.FirstFailure.Equal(n.FirstFailure), "%v", again.FirstFailure)
		require.NotEmpty(t, again.History)
		require.Equal(t, n.Failures, again.History[len(again.History)-1].Attempt, "the newest entry")
	})
}

func FuzzHistory(f *testing.F) {
	f.Add(`[{"attempt":1,"at":"2026-03-01T12:00:00Z","error":"boom"}]`)
	f.Add(`[{"class":"` + strings.Repeat(`\u0000`, 3000) + `"},null,{}]`)
	f.Add("[" + strings.Repeat("null,", 3000) + "null]")
	f.Fuzz(func(t *testing.T, text string) {
		entries := decodeHistory(text)
		require.LessOrEqual(t, len(entries), keys.MaxHistoryBytes/2)
		out := historyText(entries)
		require.LessOrEqual(t, len(out), keys.MaxHistoryBytes)
		require.True(t, utf8.ValidString(out))
		require.Equal(t, out, historyText(decodeHistory(out)), "written again")
	})
}

const (
	firstEntry = `{"attempt":1,"at":"2026-03-01T12:00:00.123456789Z","handler":"billing",` +
		`"class":"retryable","error":"no stock","delay":"5s"}`
	secondEntry = `{"attempt":2,"at":"2026-03-01T12:00:05.123456789Z","handler":"billing",` +
		`"class":"retryable","error":"no <stock>","delay":"1m0s"}`
	secondWritten = `{"attempt":2,"at":"2026-03-01T12:00:05.123456789Z","handler":"billing",` +
		`"class":"retryable","error":"no \u003cstock\u003e","delay":"1m0s"}`
)

// usual is the state of a message that has failed once or twice in the queue orders.
func usual(failures int) RetryState {
	entries := []AttemptError{
		{
			Attempt: 1, At: noon, Handler: "billing", Class: ClassRetryable, Error: "no stock",
			Delay: "5s",
		},
		{
			Attempt: 2, At: noon.Add(5 * time.Second), Handler: "billing", Class: ClassRetryable,
			Error: "no <stock>", Delay: "1m0s",
		},
	}[:failures]
	last := entries[failures-1]
	delay, _ := time.ParseDuration(last.Delay)
	return RetryState{
		Failures: failures, FirstSeen: noon, FirstFailure: noon, WaitingSince: last.At,
		Delay: delay, Error: last.Error, Class: ClassRetryable, OriginRoutingKey: "orders",
		History: entries,
	}
}

// Given a message that waits, when its headers are written, then a value that follows from
// others has no header, and it is read again. The headers of versions before v0.1.0, which wrote
// all values, are read as the same state.
func TestHeadersThatFollowFromOthersAreLeftOut(t *testing.T) {
	t.Parallel()
	round := usual(2)
	round.History = append([]AttemptError{
		{Attempt: 1, At: noon.Add(-time.Hour), Error: "no stock", Reason: ReasonPermanent},
	}, round.History...)
	snoozed := usual(1)
	snoozed.Snoozed, snoozed.WaitingSince = time.Second, noon.Add(6*time.Second)
	snoozedFirst := RetryState{
		FirstSeen: noon, WaitingSince: noon, Snoozed: time.Minute, OriginRoutingKey: "orders",
	}
	moved := usual(1)
	moved.OriginExchange, moved.OriginRoutingKey = "shop", "orders.eu"

	for name, test := range map[string]struct {
		state         RetryState
		written       map[string]string
		before, extra map[string]string // headers of versions before; beside those written
	}{
		"first failure": {usual(1), map[string]string{
			"millpond-queue": "orders", "millpond-failures": "1", "millpond-delay": "5s",
			"millpond-history": "[" + firstEntry + "]",
		}, nil, nil},
		"second failure": {usual(2), map[string]string{
			"millpond-queue": "orders", "millpond-failures": "2", "millpond-delay": "1m0s",
			"millpond-history": "[" + firstEntry + "," + secondWritten + "]",
		}, map[string]string{
			"millpond-queue": "orders", "millpond-failures": "2", "millpond-delay": "1m0s",
			"millpond-history":            "[" + firstEntry + "," + secondEntry + "]",
			"millpond-origin-exchange":    "",
			"millpond-origin-routing-key": "orders",
			"millpond-first-seen":         "2026-03-01T12:00:00.123456789Z",
			"millpond-first-failure":      "2026-03-01T12:00:00.123456789Z",
			"millpond-waiting-since":      "2026-03-01T12:00:05.123456789Z",
			"millpond-error":              "no <stock>",
			"millpond-class":              "retryable",
		}, nil},
		"second failure of a dead letter that was moved back": {round, map[string]string{
			"millpond-queue": "orders", "millpond-failures": "2", "millpond-delay": "1m0s",
			"millpond-history": `[{"attempt":1,"at":"2026-03-01T11:00:00.123456789Z",` +
				`"error":"no stock","reason":"permanent"},` + firstEntry + "," + secondWritten + "]",
		}, nil, map[string]string{"millpond-dead-history": "[" + secondEntry + "]"}},
		"snoozed after a failure": {snoozed, map[string]string{
			"millpond-queue": "orders", "millpond-failures": "1", "millpond-delay": "5s",
			"millpond-history":       "[" + firstEntry + "]",
			"millpond-set-aside":     "1s",
			"millpond-waiting-since": "2026-03-01T12:00:06.123456789Z",
		}, map[string]string{
			// A version before v0.1.0 has snoozed the message of this one: it writes no value
			// that it did not read.
			"millpond-queue": "orders", "millpond-failures": "1", "millpond-delay": "5s",
			"millpond-history":            "[" + firstEntry + "]",
			"millpond-set-aside":          "1s",
			"millpond-first-seen":         "2026-03-01T12:00:00.123456789Z",
			"millpond-waiting-since":      "2026-03-01T12:00:06.123456789Z",
			"millpond-origin-exchange":    "",
			"millpond-origin-routing-key": "orders",
		}, nil},
		"snoozed at the first attempt": {snoozedFirst, map[string]string{
			"millpond-queue": "orders", "millpond-set-aside": "1m0s",
			"millpond-first-seen":    "2026-03-01T12:00:00.123456789Z",
			"millpond-waiting-since": "2026-03-01T12:00:00.123456789Z",
		}, nil, nil},
		"published to an exchange": {moved, map[string]string{
			"millpond-queue": "orders", "millpond-failures": "1", "millpond-delay": "5s",
			"millpond-history":            "[" + firstEntry + "]",
			"millpond-origin-exchange":    "shop",
			"millpond-origin-routing-key": "orders.eu",
		}, nil, nil},
	} {
		got := test.state.Headers("orders")
		require.Equal(t, test.written, got, name)
		maps.Copy(got, test.extra)
		require.Equal(t, test.state, Parse("orders", from(got)), name)
		if test.before != nil {
			require.Equal(t, test.state, Parse("orders", from(test.before)), name)
		}
	}
}

// Given a state that does not follow from its history, when its headers are written, then it is
// read as it was.
func TestValuesThatDoNotFollowFromTheHistoryAreWritten(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("no stock ", 100)
	for name, change := range map[string]func(*RetryState){
		"no history":        func(n *RetryState) { n.History = nil },
		"without the first": func(n *RetryState) { n.History = n.History[1:] },
		"without the last":  func(n *RetryState) { n.History = n.History[:1] },
		"an earlier start":  func(n *RetryState) { n.FirstFailure = noon.Add(-time.Hour) },
		"no start":          func(n *RetryState) { n.FirstFailure = time.Time{} },
		"never seen":        func(n *RetryState) { n.FirstSeen = time.Time{} },
		"seen before":       func(n *RetryState) { n.FirstSeen = noon.Add(-time.Minute) },
		"not waiting":       func(n *RetryState) { n.WaitingSince = time.Time{} },
		"a long error":      func(n *RetryState) { n.Error = long },
		"no error":          func(n *RetryState) { n.Error, n.Class = "", "" },
		"another class":     func(n *RetryState) { n.Class = ClassPermanent },
		"no origin":         func(n *RetryState) { n.OriginRoutingKey = "" },
		"another key":       func(n *RetryState) { n.OriginRoutingKey = "orders.eu" },
		"an exchange":       func(n *RetryState) { n.OriginExchange = "shop" },
		"no key":            func(n *RetryState) { n.OriginExchange, n.OriginRoutingKey = "shop", "" },
		"a round too many":  func(n *RetryState) { n.Failures = 3 },
	} {
		state := usual(2)
		change(&state)
		require.Equal(t, state, Parse("orders", from(state.Headers("orders"))), name)
	}
}

// Given more failures than the history holds, when the headers are written, then the time of the
// first failure is among them.
func TestACutHistoryDoesNotHideTheFirstFailure(t *testing.T) {
	t.Parallel()
	const failures = 1000
	state := usual(1)
	state.Failures, state.History = failures, nil
	for i := range failures {
		at := noon.Add(time.Duration(i) * time.Second)
		state.History = append(state.History, AttemptError{Attempt: i + 1, At: at, Error: "no stock"})
		state.WaitingSince = at
	}
	got := Parse("orders", from(state.Headers("orders")))
	require.True(t, len(got.History) >= 100 && len(got.History) < failures, len(got.History))
	got.History = state.History
	require.Equal(t, state, got)
}

// The history is written and read without encoding/json, which is slow. The bytes are the same.
func FuzzHistoryIsTheSameAsWithEncodingJSON(f *testing.F) {
	f.Add(1, int64(1772366400), "billing", "no stock", "5s", "["+firstEntry+"]")
	f.Add(-7, int64(-1), "<&>\u2028\"\\\b\f\n", "\xff\x7f\x00", "é", "["+secondEntry+",null]")
	f.Add(0, int64(0), "", "", "", `[{"attempt":01,"at":"2026-03-01T12:00:00Z"}]`)
	f.Add(0, int64(0), "", "", "", `[{"attempt":1,"at":"2026-03-01T1:00:00Z"}]`)
	f.Add(0, int64(0), "", "", "", `[{"attempt":1,"at":"2026-03-01T12:00:00,5Z"},]`)
	f.Add(0, int64(0), "", "", "", `[{"attempt":1,"at":"2026-03-01T12:00:00Z"}]]`)
	f.Fuzz(func(t *testing.T, attempt int, at int64, handler, text, delay, history string) {
		entries := []AttemptError{
			{
				Attempt: attempt, At: time.Unix(at%1e12, at%1e9).UTC(), Handler: handler,
				Class: Class(delay), Error: text, Delay: delay, Reason: Reason(handler),
			},
			{Attempt: 1},
		}
		got, written := appendHistory(nil, entries)
		entries[0].Handler = excerpt.Of(handler, keys.MaxEntryErrorBytes)
		entries[0].Error = excerpt.Of(text, keys.MaxEntryErrorBytes)
		all, err := json.Marshal(entries)
		whole := err == nil && len(all) < keys.MaxHistoryBytes
		require.Equal(t, whole, len(written) == 2, "%s (%v)", got, err)
		if whole {
			require.Equal(t, string(all), string(got))
		}
		var want []AttemptError
		err = json.Unmarshal([]byte(history), &want)
		if got, ok := scanHistory(history); ok {
			require.NoError(t, err)
			require.Equal(t, want, got)
		}
	})
}
