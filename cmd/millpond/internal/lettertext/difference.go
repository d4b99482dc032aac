package lettertext

import (
	"regexp"
	"strings"
	"unicode"

	"github.com/aymanbagabas/go-udiff/lcs"

	"github.com/millpond-go/millpond/cmd/millpond/internal/overview"
)

// Span is a part of a difference. Kind is "+" or "-" for words that are only in the text after or
// before, "…" for unchanged text that is left out, and a space for other text. Text has brackets
// around words that differ, so that it needs no colour.
type Span struct{ Kind, Text string }

// contextRunes stand before and after a change.
const contextRunes = 120

// Difference shows word by word how a content changes. It is empty if nothing does, and leaves out
// nothing of a change.
func Difference(before, after Content) (spans []Span, err error) {
	was, err := before.Text()
	if err != nil {
		return nil, err
	}
	is, err := after.Text()
	if err != nil || was == is {
		return nil, err
	}
	a, b, at := strings.Split(was, "\n"), strings.Split(is, "\n"), 0
	for _, d := range append(lcs.DiffLines(a, b), lcs.Diff{Start: len(a), End: len(a)}) {
		for _, line := range a[at:d.Start] {
			spans = append(spans, Span{" ", line + "\n"})
		}
		spans = append(spans, changed(a[d.Start:d.End], b[d.ReplStart:d.ReplEnd])...)
		at = d.End
	}
	return folded(spans), nil
}

// changed compares lines that differ. The first and the last ones are compared word by word as long
// as they have much in common, the others are shown whole.
func changed(was, is []string) (spans []Span) {
	if n, m := len(was), len(is); n > 0 && m > 0 {
		if line := words(was[0], is[0]); line != nil {
			return append(line, changed(was[1:], is[1:])...)
		}
		if line := words(was[n-1], is[m-1]); line != nil {
			return append(changed(was[:n-1], is[:m-1]), line...)
		}
	}
	for _, line := range was {
		spans = append(spans, Span{"-", "[-" + line + "-]"}, Span{" ", "\n"})
	}
	for _, line := range is {
		spans = append(spans, Span{"+", "{+" + line + "+}"}, Span{" ", "\n"})
	}
	return spans
}

// words compares two lines; nil where they have less than half of their words in common.
func words(was, is string) (spans []Span) {
	a, b := word.FindAllString(was, -1), word.FindAllString(is, -1)
	at, same := 0, 0
	for _, d := range append(lcs.DiffLines(a, b), lcs.Diff{Start: len(a), End: len(a)}) {
		same += named(a[at:d.Start])
		for _, s := range []Span{
			{" ", strings.Join(a[at:d.Start], "")},
			{"-", "[-" + strings.Join(a[d.Start:d.End], "") + "-]"},
			{"+", "{+" + strings.Join(b[d.ReplStart:d.ReplEnd], "") + "+}"},
		} {
			if s.Text != "" && s.Text != "[--]" && s.Text != "{++}" {
				spans = append(spans, s)
			}
		}
		at = d.End
	}
	if 2*same < min(named(a), named(b)) || same == 0 {
		return nil
	}
	return append(spans, Span{" ", "\n"})
}

// named counts words of letters and digits.
func named(words []string) (n int) {
	for _, w := range words {
		if strings.ContainsFunc(w, unicode.IsLetter) || strings.ContainsFunc(w, unicode.IsDigit) {
			n++
		}
	}
	return n
}

// word matches a word, or what is between two.
var word = regexp.MustCompile(`[\p{L}\p{N}_]+|\s+|.`)

// folded leaves out unchanged text that is far from each change.
func folded(all []Span) (spans []Span) {
	for i := 0; i < len(all); i++ {
		if all[i].Kind != " " {
			spans = append(spans, all[i])
			continue
		}
		first, text := i == 0, ""
		for ; i < len(all) && all[i].Kind == " "; i++ {
			text += all[i].Text
		}
		runes := []rune(text)
		head, tail := contextRunes, len(runes)-contextRunes
		if first {
			head = 0
		}
		if i == len(all) {
			tail = len(runes)
		}
		if left := tail - head; left > contextRunes {
			spans = append(spans, Span{" ", string(runes[:head])},
				Span{"…", " … " + overview.Plural(left, "unchanged character") + " … "})
			text = string(runes[tail:])
		}
		spans = append(spans, Span{" ", text})
		i--
	}
	return spans
}
