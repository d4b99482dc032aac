package page

import (
	"fmt"
	"html/template"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/millpond-go/millpond/cmd/millpond/internal/overview"
	"github.com/millpond-go/millpond/topology/operate"
)

// visible writes the characters that change how a text looks, or that have no look, as text: a
// reader sees ␛ and ⟨U+202E⟩ in place of an escape and of an override of the direction. Bytes that
// are not UTF-8 are shown as ⟨xff⟩. Line ends and tabs stay if lines is set.
func visible(text string, lines bool) string {
	var out strings.Builder
	for i, r := range text {
		switch {
		case r == utf8.RuneError && !strings.HasPrefix(text[i:], "\uFFFD"):
			fmt.Fprintf(&out, "⟨x%02x⟩", text[i])
		case lines && (r == '\n' || r == '\t'):
			out.WriteRune(r)
		case r < ' ':
			out.WriteRune('␀' + r)
		case r == 0x7f:
			out.WriteRune('␡')
		case isBlank(r):
			fmt.Fprintf(&out, "⟨U+%04X⟩", r)
		case r == narrowSpace:
			out.WriteRune(r)
		case unicode.IsPrint(r) && !unicode.Is(unicode.M, r) || isMark(r, out.Len()):
			out.WriteRune(r)
		default:
			fmt.Fprintf(&out, "⟨U+%04X⟩", r)
		}
	}
	return out.String()
}

// narrowSpace stands between thousands. A reader sees it as a space.
const narrowSpace = '\u202f'

// isBlank reports whether a character that counts as a letter or a sign has no look.
func isBlank(r rune) bool {
	const brailleBlank = 0x2800
	return unicode.Is(unicode.Other_Default_Ignorable_Code_Point, r) || r == brailleBlank
}

// isMark reports whether a mark may join the character before it. Variation selectors and marks at
// the beginning of a text are shown as their numbers.
func isMark(r rune, before int) bool {
	return before > 0 && unicode.Is(unicode.M, r) && !unicode.Is(unicode.Variation_Selector, r)
}

// oneLine is visible text of at most n characters. It looks at no more bytes than that needs.
func oneLine(n int, text string) string {
	cut := len(text) > n*utf8.UTFMax
	if cut {
		text = text[:n*utf8.UTFMax]
		for i := 0; i < utf8.UTFMax && !utf8.ValidString(text[len(text)-1:]); i++ {
			text = text[:len(text)-1]
		}
	}
	shown := visible(text, false)
	if utf8.RuneCountInString(shown) > n {
		shown, cut = string([]rune(shown)[:n-1]), true
	}
	if cut {
		shown += "…"
	}
	return shown
}

// when is the distance from now to a time, which the script keeps right. Its title is the time in
// UTC; the script writes it in the reader's zone.
func when(t time.Time) template.HTML {
	if t.IsZero() {
		return "–"
	}
	text := "in " + one(time.Until(t))
	if since := time.Since(t); since >= 0 {
		text = one(since) + " ago"
	}
	return template.HTML(fmt.Sprintf(`<time datetime="%s" title="%s">%s</time>`,
		t.UTC().Format(time.RFC3339), overview.At(t), text))
}

// said is a sentence, in which times are shown as when shows them.
func said(n int, text string) template.HTML {
	text = template.HTMLEscapeString(oneLine(n, text))
	return template.HTML(times.ReplaceAllStringFunc(text, func(part string) string {
		t, err := time.Parse(time.DateTime+"Z", strings.TrimPrefix(part, "at "))
		if err != nil || t.IsZero() {
			return part
		}
		return string(when(t))
	}))
}

// times are those that overview.At writes.
var times = regexp.MustCompile(`(at )?\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ`)

// one is a duration with one unit: 4 h.
func one(d time.Duration) string {
	switch d = max(d, 0); {
	case d < time.Minute:
		return fmt.Sprintf("%d s", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%d min", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h", d/time.Hour)
	}
	return fmt.Sprintf("%d d", d/(24*time.Hour))
}

// delay is the delay of a wait queue: from five units on, the nearest one says enough.
func delay(d time.Duration) string {
	for _, unit := range []time.Duration{24 * time.Hour, time.Hour, time.Minute} {
		if d >= 5*unit {
			return one(max(d.Round(unit), unit))
		}
	}
	return about(d)
}

func about(d time.Duration) string { return overview.About(d) }

// number is a count with narrow spaces between thousands. An unknown one is a question mark.
func number(c operate.Count) string {
	if !c.Known() {
		return "?"
	}
	return digits(c.N)
}

func digits(n int) string { return overview.Digits(n) }

// plural is a number of things.
func plural(n int, one string) string {
	if n != 1 {
		one += "s"
	}
	return digits(n) + " " + one
}

// functions are the functions of the templates.
func functions(base string) template.FuncMap {
	return template.FuncMap{
		"base":    func() string { return base },
		"line":    oneLine,
		"visible": func(text string) string { return visible(text, true) },
		"when":    when,
		"said":    said,
		"about":   about,
		"delay":   delay,
		"number":  number,
		"digits":  digits,
		"plural":  plural,
		"rate":    rateText,
		"growth":  overview.Growth,
		"back":    back,
		"shares":  shares,
		"args":    func(all ...any) []any { return all },
		"add":     func(a, b int) int { return a + b },
	}
}

// rateText is a rate in messages a second.
func rateText(r *float64) string {
	switch {
	case r == nil:
		return "–"
	case *r > 0 && *r < 0.05:
		return "<0.1"
	case *r < 100:
		return strconv.FormatFloat(*r, 'f', 1, 64)
	}
	return digits(int(*r + 0.5))
}
