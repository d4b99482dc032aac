package main

import (
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// maxCell is the most of a text that a table shows.
const maxCell = 100

// harmless makes text from a message harmless for a terminal: one line, without control characters.
func harmless(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "?"))
}

// oneLine is harmless text that is cut.
func oneLine(text string) string {
	clean := harmless(text)
	if utf8.RuneCountInString(clean) <= maxCell {
		return clean
	}
	return string([]rune(clean)[:maxCell-1]) + "…"
}

// orDash is text, or a dash where there is none.
func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

// when is a time as tables have it, in UTC.
func when(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format("2006-01-02 15:04:05Z")
}

// plural is a number of messages.
func plural(n int, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %ss", n, one)
}
