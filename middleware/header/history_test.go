package header

import (
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/millpond-go/millpond/internal/excerpt"
)

func TestHistoryOfAThousandAttemptsKeepsTheNewest(t *testing.T) {
	t.Parallel()
	entries := make([]AttemptError, 1000)
	for i := range entries {
		entries[i] = AttemptError{
			Attempt: i + 1, At: noon.Add(time.Duration(i) * time.Second), Handler: "billing",
			Class: ClassRetryable, Error: strings.Repeat("é", 1000), Delay: "1s",
		}
	}
	text := encodeHistory(entries)
	if len(text) > MaxHistoryBytes || len(text) < MaxHistoryBytes*9/10 {
		t.Errorf("%d bytes, want nearly, but at most, %d", len(text), MaxHistoryBytes)
	}
	got := decodeHistory(text)
	if len(got) < 30 || got[len(got)-1].Attempt != 1000 {
		t.Fatalf("%d entries, the last is attempt %d", len(got), got[len(got)-1].Attempt)
	}
	for i, entry := range got {
		if want := 1000 - len(got) + 1 + i; entry.Attempt != want {
			t.Errorf("entry %d is attempt %d, want %d", i, entry.Attempt, want)
		}
		if len(entry.Error) > MaxEntryErrorBytes || !utf8.ValidString(entry.Error) {
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
	if got := decodeHistory(encodeHistory(entries)); !reflect.DeepEqual(got, entries[2:]) {
		t.Errorf("got %+v, want the newest alone", got)
	}
}

func TestCutText(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		text  string
		limit int
		want  string
	}{
		"empty":         {"", 64, ""},
		"at the limit":  {strings.Repeat("a", 64), 64, strings.Repeat("a", 64)},
		"one too many":  {strings.Repeat("a", 65), 64, strings.Repeat("a", 44) + " … (cut, 65 bytes)"},
		"inside a rune": {strings.Repeat("€", 30), 64, strings.Repeat("€", 14) + " … (cut, 90 bytes)"},
		"invalid UTF-8": {"a\xff\xfeb", 64, "a?b"},
		"invalid UTF-8, too long": {
			strings.Repeat("a\xff", 50), 64, strings.Repeat("a?", 21) + "a … (cut, 100 bytes)",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := excerpt.Of(test.text, test.limit)
			if got != test.want {
				t.Errorf("got  %q\nwant %q", got, test.want)
			}
		})
	}
}

func TestAnErrorOfAMegabyteIsCut(t *testing.T) {
	t.Parallel()
	n := RetryState{Failures: 1, Error: strings.Repeat("\xf0\x9f\x8c\x8a", 1<<18)}
	for _, got := range []string{n.Headers("q")[Error], n.DeadHeaders("q")[DeadError]} {
		if len(got) > MaxErrorBytes || len(got) < MaxErrorBytes-4 || !utf8.ValidString(got) {
			t.Errorf("%d bytes, valid: %v", len(got), utf8.ValidString(got))
		}
		if !strings.HasSuffix(got, "… (cut, 1048576 bytes)") {
			t.Errorf("the cut is not marked: %q", got[len(got)-40:])
		}
	}
}
