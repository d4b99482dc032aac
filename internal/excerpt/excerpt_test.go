package excerpt_test

import (
	"strings"
	"testing"

	"github.com/millpond-go/millpond/internal/excerpt"
)

// The cut is the same as if the whole text had been read.
func TestCutTextLooksAtTheBeginningOnly(t *testing.T) {
	long := strings.Repeat("\xff\xfe€", 100_000)
	for _, text := range []string{
		"", "short", strings.Repeat("a", 511), strings.Repeat(
			"a", 512,
		), strings.Repeat("a", 513), strings.Repeat("é", 400), long, long + "\xff",
		strings.Repeat("\xff", 100_000), strings.Repeat("\xff", 1023) + "é" + strings.Repeat(
			"\xff", 1000,
		) + long, "a" + strings.Repeat("€", 100_000),
	} {
		for _, limit := range []int{64, 256, 512, 513, 514, 515, 2048} {
			whole := strings.ToValidUTF8(text, "?")
			got := excerpt.Of(text, limit)
			switch {
			case len(whole) <= limit && got != whole:
				t.Errorf("%d bytes, limit %d: %q, want all of it", len(text), limit, got)
			case len(whole) > limit:
				beginning, _, cut := strings.Cut(got, " … (cut, ")
				if !cut || !strings.HasPrefix(whole, beginning) || len(got) > limit || len(got) < limit-8 {
					t.Errorf("%d bytes, limit %d: %q", len(text), limit, got)
				}
			}
		}
	}
}

func TestNothingOfALineReachesTheTerminal(t *testing.T) {
	for text, want := range map[string]string{
		"":                          "",
		`orders "é" \n`:             `orders "é" \n`,
		"a\x1b[2Jb\nc\u202ed\ufffd": `a\x1b[2Jb\nc\u202ed` + "\ufffd",
		"\xff\u0085\u2028":          `\xff\u0085\u2028`,
	} {
		if got := excerpt.OneLine(text); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

func TestNothingOfJSONReachesTheTerminal(t *testing.T) {
	for text, want := range map[string]string{
		`{"a\n":"é"}`:                        `{"a\n":"é"}`,
		"{\n\t\"\u202e\": \"\u007f\u0085\"}": "{\n\t\"\\u202e\": \"\\u007f\\u0085\"}",
		"\"\U000e0041\"":                     `"\udb40\udc41"`,
	} {
		if got := excerpt.JSON(text); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}
