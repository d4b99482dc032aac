package excerpt_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/millpond-go/millpond/internal/excerpt"
)

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
