package header

import (
	"encoding/json"
	"maps"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/millpond-go/millpond/internal/excerpt"
	"github.com/millpond-go/millpond/internal/keys"
)

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
		}, map[string]string{
			"millpond-queue": "orders", "millpond-failures": "1", "millpond-delay": "5s",
			"millpond-history":            "[" + firstEntry + "]",
			"millpond-origin-exchange":    "",
			"millpond-origin-routing-key": "orders",
			"millpond-first-seen":         "2026-03-01T12:00:00.123456789Z",
			"millpond-first-failure":      "2026-03-01T12:00:00.123456789Z",
			"millpond-waiting-since":      "2026-03-01T12:00:00.123456789Z",
			"millpond-error":              "no stock",
			"millpond-class":              "retryable",
		}, nil},
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
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := test.state.Headers("orders")
			if !maps.Equal(got, test.written) {
				t.Errorf("wrote\n%v, want\n%v", got, test.written)
			}
			maps.Copy(got, test.extra)
			for _, headers := range []map[string]string{got, test.before} {
				if headers == nil {
					continue
				}
				if state := Parse("orders", from(headers)); !reflect.DeepEqual(state, test.state) {
					t.Errorf("read\n%+v, want\n%+v", state, test.state)
				}
			}
		})
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
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			state := usual(2)
			change(&state)
			headers := state.Headers("orders")
			if got := Parse("orders", from(headers)); !reflect.DeepEqual(got, state) {
				t.Errorf("wrote %v, read\n%+v, want\n%+v", headers, got, state)
			}
		})
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
	if len(got.History) >= failures || len(got.History) < 100 {
		t.Fatalf("%d entries are left", len(got.History))
	}
	got.History = state.History
	if !reflect.DeepEqual(got, state) {
		t.Errorf("got\n%+v, want\n%+v", got, state)
	}
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
		if whole != (len(written) == 2) || whole && string(got) != string(all) {
			t.Errorf("wrote %d of 2 entries:\n%s, want\n%s (%v)", len(written), got, all, err)
		}
		var want []AttemptError
		err = json.Unmarshal([]byte(history), &want)
		if got, ok := scanHistory(history); ok && (err != nil || !reflect.DeepEqual(got, want)) {
			t.Errorf("read\n%+v, want\n%+v (%v)", got, want, err)
		}
	})
}
