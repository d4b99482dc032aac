package lettertext

import (
	"regexp"
	"strings"

	"github.com/aymanbagabas/go-udiff/lcs"

	"github.com/millpond-go/millpond/cmd/millpond/internal/overview"
)

// Line is a line of a difference.
type Line struct {
	// Sign is "+" or "-" for a line that is only in the text after or before, "~" for one of which
	// words differ, "…" for unchanged lines that are left out, and a space for one of them.
	Sign  string
	Spans []Span
}

// Span is a part of a line. Kind is "+" or "-" for a part that is only in the text after or before,
// "…" for a part that is left out, and a space for an unchanged one. In a line whose sign is "~"
// the parts that differ are in brackets, so that they need no colour.
type Span struct{ Kind, Text string }

// contextLines and contextRunes stand before and after a change. The rest between two changes is
// left out; nothing of a change is.
const (
	contextLines = 3
	contextRunes = 100
)

// Difference shows word by word how a content changes. It is empty if nothing does.
func Difference(before, after Content) (lines []Line, err error) {
	was, err := before.Text()
	if err != nil {
		return nil, err
	}
	is, err := after.Text()
	if err != nil || was == is {
		return nil, err
	}
	a, b := strings.Split(was, "\n"), strings.Split(is, "\n")
	at, head := 0, 0
	for _, d := range lcs.DiffLines(a, b) {
		lines = append(lines, unchanged(a[at:d.Start], head, contextLines)...)
		lines = append(lines, changed(a[d.Start:d.End], b[d.ReplStart:d.ReplEnd])...)
		at, head = d.End, contextLines
	}
	return append(lines, unchanged(a[at:], head, 0)...), nil
}

// unchanged returns the first and the last of some lines.
func unchanged(all []string, head, tail int) (lines []Line) {
	left := len(all) - head - tail
	for i, text := range all {
		switch {
		case left <= 1 || i < head || i >= len(all)-tail:
			lines = append(lines, Line{" ", []Span{{" ", text}}})
		case i == head:
			lines = append(lines, Line{"…", []Span{{"…", overview.Plural(left, "unchanged line")}}})
		}
	}
	return lines
}

// changed compares lines word by word, each with its counterpart where there are as many after as
// before. Lines that have little in common are shown whole.
func changed(was, is []string) (lines []Line) {
	if n := len(was); n > 1 && n == len(is) {
		for i := range n {
			lines = append(lines, changed(was[i:i+1], is[i:i+1])...)
		}
		return lines
	}
	a, b := words(was), words(is)
	var line []Span
	add := func(kind string, text []string) {
		for n, part := range strings.Split(strings.Join(text, ""), "\n") {
			if n > 0 {
				lines, line = append(lines, lineOf(line)), nil
			}
			if part != "" {
				line = append(line, Span{kind, part})
			}
		}
	}
	at, same := 0, 0
	for _, d := range append(lcs.DiffLines(a, b), lcs.Diff{Start: len(a), End: len(a)}) {
		add(" ", a[at:d.Start])
		add("-", a[d.Start:d.End])
		add("+", b[d.ReplStart:d.ReplEnd])
		same, at = same+named(a[at:d.Start]), d.End
	}
	if len(was) > 0 && len(is) > 0 && 2*same >= min(named(a), named(b)) {
		return append(lines, lineOf(line))
	}
	lines = nil
	for _, text := range was {
		lines = append(lines, Line{"-", []Span{{"-", text}}})
	}
	for _, text := range is {
		lines = append(lines, Line{"+", []Span{{"+", text}}})
	}
	return lines
}

// words are the words of lines, and what is between them.
func words(lines []string) []string { return word.FindAllString(strings.Join(lines, "\n"), -1) }

var word = regexp.MustCompile(`\n|[\p{L}\p{N}_]+|[^\S\n]+|.`)

// named counts words with letters or digits.
func named(words []string) (n int) {
	for _, w := range words {
		if letters.MatchString(w) {
			n++
		}
	}
	return n
}

var letters = regexp.MustCompile(`^[\p{L}\p{N}_]`)

// lineOf makes a line. It marks the parts that differ, and shortens the others.
func lineOf(spans []Span) Line {
	if len(spans) == 0 {
		return Line{Sign: " "}
	}
	line := Line{Sign: spans[0].Kind}
	for _, s := range spans {
		if s.Kind != line.Sign {
			line.Sign = "~"
		}
	}
	if line.Sign != "~" {
		return Line{line.Sign, spans}
	}
	for i, s := range spans {
		runes := []rune(s.Text)
		head, tail := contextRunes, len(runes)-contextRunes
		if i == 0 {
			head = 0
		}
		if i == len(spans)-1 {
			tail = len(runes)
		}
		switch {
		case s.Kind == "-":
			s.Text = "[-" + s.Text + "-]"
		case s.Kind == "+":
			s.Text = "{+" + s.Text + "+}"
		case tail-head > contextRunes:
			left := " … " + overview.Plural(tail-head, "unchanged character") + " … "
			line.Spans = append(line.Spans, Span{" ", string(runes[:head])}, Span{"…", left})
			s.Text = string(runes[tail:])
		}
		line.Spans = append(line.Spans, s)
	}
	return line
}
