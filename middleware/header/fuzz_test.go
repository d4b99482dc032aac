package header

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/millpond-go/millpond/internal/excerpt"
)

func FuzzParseNotes(f *testing.F) {
	f.Add("3", "2026-03-01T12:00:00Z", "1m30s", "boom", "retryable", `[{"attempt":1}]`, `[]`)
	f.Add("-1", "0000-00-00T00:00:00Z", "-1s", "\xff", "fatal", `[null,1]`, `{`)
	f.Add("99999999999999999999", "9999-12-31T23:59:59-23:59", "9999999h", "", "", `[[]]`, `[{"at":"x"}]`)
	f.Add("1", "", "", strings.Repeat("k", 100_000), "", "", "")
	f.Fuzz(func(t *testing.T, count, at, delay, text, class, history, past string) {
		headers := map[string]string{
			Queue: "q", Failures: count, FirstSeen: at, FirstFailure: at, NotBefore: at, Deadline: at, DeadlineFrom: text,
			Delay: delay, Snoozed: delay, Inner: text, Interruptions: count, Error: text, ErrorClass: class, History: history, DeadHistory: past,
			WaitingSince: at, Traceparent: text,
			OriginExchange: text, OriginRoutingKey: count,
		}
		get := func(key string) (string, bool) {
			value, ok := headers[key]
			return value, ok
		}
		n := Parse("q", get)
		if n.Failures < 0 || n.Failures > MaxFailures || n.Delay < 0 || n.Snoozed < 0 {
			t.Errorf("out of bounds: %d failures, delay %v, set aside %v", n.Failures, n.Delay, n.Snoozed)
		}
		if Parse("other", get).Failures != 0 {
			t.Error("counted on another queue")
		}

		// Whatever came in, what goes out is bounded and reads as itself.
		now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
		n.Failures = min(n.Failures, MaxFailures-1) + 1
		n.Error, n.Class = text, ClassRetryable
		if n.FirstFailure.IsZero() || n.FirstFailure.After(now) {
			n.FirstFailure = now
		}
		n.History = append(n.History, AttemptError{Attempt: n.Failures, At: now, Class: n.Class, Error: text})
		for _, h := range []map[string]string{n.Headers("q"), n.DeadHeaders("q")} {
			total := 0
			for key, value := range h {
				total += len(key) + len(value)
				name := key == OriginExchange || key == OriginRoutingKey // AMQP allows any bytes
				if !utf8.ValidString(value) && !name {
					t.Errorf("%s is not valid UTF-8: %q", key, value)
				}
			}
			if total > MaxErrorBytes+MaxHistoryBytes+1024 {
				t.Errorf("%d bytes of headers", total)
			}
		}
		headers = n.Headers("q")
		again := Parse("q", get)
		if again.Failures != min(n.Failures, MaxFailures) || !again.FirstFailure.Equal(n.FirstFailure) {
			t.Errorf("wrote %d failures since %v, read %d since %v",
				n.Failures, n.FirstFailure, again.Failures, again.FirstFailure)
		}
		if last := len(again.History) - 1; last < 0 || again.History[last].Attempt != n.Failures {
			t.Errorf("the newest entry of the history is missing: %+v", again.History)
		}
	})
}

func FuzzCutText(f *testing.F) {
	f.Add("", 64)
	f.Add(strings.Repeat("€", 100), 70)
	f.Add(strings.Repeat("\xff", 300), 256)
	f.Fuzz(func(t *testing.T, text string, limit int) {
		limit = 64 + (limit&0xfff)%4096
		got := excerpt.Of(text, limit)
		if len(got) > limit {
			t.Errorf("%d bytes, the limit is %d", len(got), limit)
		}
		if !utf8.ValidString(got) {
			t.Errorf("not valid UTF-8: %q", got)
		}
		if len(text) <= limit && utf8.ValidString(text) && got != text {
			t.Errorf("changed %q, which fits, to %q", text, got)
		}
		if twice := excerpt.Of(got, limit); twice != got {
			t.Errorf("cut twice it is %q, once %q", twice, got)
		}
	})
}

func FuzzHistory(f *testing.F) {
	f.Add(`[{"attempt":1,"at":"2026-03-01T12:00:00Z","error":"boom"}]`)
	f.Add(`[{"class":"` + strings.Repeat(`\u0000`, 3000) + `"},null,{}]`)
	f.Add("[" + strings.Repeat("null,", 3000) + "null]")
	f.Fuzz(func(t *testing.T, text string) {
		entries := decodeHistory(text)
		if len(entries) > MaxHistoryBytes/2 {
			t.Errorf("%d entries of %d bytes", len(entries), len(text))
		}
		out := encodeHistory(entries)
		if len(out) > MaxHistoryBytes || !utf8.ValidString(out) {
			t.Errorf("%d bytes, valid: %v", len(out), utf8.ValidString(out))
		}
		if again := encodeHistory(decodeHistory(out)); again != out {
			t.Errorf("written again it differs:\n%s\n%s", out, again)
		}
	})
}
