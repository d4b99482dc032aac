package lettertext

import (
	"regexp"
	"slices"
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
		if at < d.Start {
			spans = append(spans, Span{" ", strings.Join(a[at:d.Start], "\n") + "\n"})
		}
		spans = changed(spans, a[d.Start:d.End], b[d.ReplStart:d.ReplEnd])
		at = d.End
	}
	return folded(spans), nil
}

// changed appends lines that differ. The first and the last ones are compared word by word as long
// as they have much in common, the others are shown whole.
func changed(spans []Span, was, is []string) []Span {
	for len(was) > 0 && len(is) > 0 {
		line := words(was[0], is[0])
		if line == nil {
			break
		}
		spans, was, is = append(spans, line...), was[1:], is[1:]
	}
	var tail [][]Span // the last line first
	for len(was) > 0 && len(is) > 0 {
		line := words(was[len(was)-1], is[len(is)-1])
		if line == nil {
			break
		}
		tail, was, is = append(tail, line), was[:len(was)-1], is[:len(is)-1]
	}
	for _, line := range was {
		spans = append(spans, Span{"-", "[-" + line + "-]"}, Span{" ", "\n"})
	}
	for _, line := range is {
		spans = append(spans, Span{"+", "{+" + line + "+}"}, Span{" ", "\n"})
	}
	for _, line := range slices.Backward(tail) {
		spans = append(spans, line...)
	}
	return spans
}

// longWord is the length from which on a word is compared by its begin and its end, too.
const longWord = 40

// words compares two lines; nil where they have less than half of their words in common.
func words(was, is string) (spans []Span) {
	a, b := word.FindAllString(was, -1), word.FindAllString(is, -1)
	at, same := 0, 0
	add := func(kind, open, text, end string) {
		if text != "" {
			spans = append(spans, Span{kind, open + text + end})
		}
	}
	for _, d := range append(lcs.DiffLines(a, b), lcs.Diff{Start: len(a), End: len(a)}) {
		same += named(a[at:d.Start])
		add(" ", "", strings.Join(a[at:d.Start], ""), "")
		old, tail := strings.Join(a[d.Start:d.End], ""), ""
		new := strings.Join(b[d.ReplStart:d.ReplEnd], "")
		if min(len(old), len(new)) >= longWord {
			before, after := []rune(old), []rune(new)
			head, end := shared(before, after)
			add(" ", "", string(before[:head]), "")
			old, new = string(before[head:len(before)-end]), string(after[head:len(after)-end])
			tail = string(before[len(before)-end:])
			if 2*(head+end) >= len(before) {
				same++
			}
		}
		add("-", "[-", old, "-]")
		add("+", "{+", new, "+}")
		add(" ", "", tail, "")
		at = d.End
	}
	if 2*same < min(named(a), named(b)) || same == 0 {
		return nil
	}
	return append(spans, Span{" ", "\n"})
}

// shared returns how many runes two texts begin and end with in common.
func shared(a, b []rune) (head, end int) {
	for head < min(len(a), len(b)) && a[head] == b[head] {
		head++
	}
	for end < min(len(a), len(b))-head && a[len(a)-1-end] == b[len(b)-1-end] {
		end++
	}
	return head, end
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

// word matches a word, or the text between two words.
var word = regexp.MustCompile(`[\p{L}\p{N}_]+|\s+|.`)

// folded leaves out unchanged text that is far from each change.
func folded(all []Span) (spans []Span) {
	for i := 0; i < len(all); i++ {
		if all[i].Kind != " " {
			spans = append(spans, all[i])
			continue
		}
		first, joined := i == 0, strings.Builder{}
		for ; i < len(all) && all[i].Kind == " "; i++ {
			joined.WriteString(all[i].Text)
		}
		text := joined.String()
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
