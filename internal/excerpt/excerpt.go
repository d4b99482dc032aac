// Package excerpt cuts texts to the size that a header or a log line has room for, and makes them
// harmless for a terminal.
package excerpt

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Of returns text as valid UTF-8 of at most limit bytes. A mark at the end of a text that was
// cut names its length.
func Of(text string, limit int) string {
	length := len(text)
	text = validStart(text, limit)
	if len(text) <= limit {
		return text
	}
	mark := " … (cut, " + strconv.Itoa(length) + " bytes)"
	end := limit - len(mark)
	for !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + mark
}

// OneLine returns text with every character that is not printable escaped, as in a Go string:
// names and texts of the broker must not move the cursor of a terminal nor change its order.
func OneLine(text string) string {
	var b strings.Builder
	for len(text) > 0 {
		r, size := utf8.DecodeRuneInString(text)
		if valid := r != utf8.RuneError || size > 1; valid && unicode.IsPrint(r) {
			b.WriteString(text[:size])
		} else {
			quoted := strconv.Quote(text[:size])
			b.WriteString(quoted[1 : len(quoted)-1])
		}
		text = text[size:]
	}
	return b.String()
}

// Unshown reports whether r is a character of a text that an editor or a terminal may not show.
func Unshown(r rune) bool { return !unicode.IsPrint(r) && r != '\n' && r != '\t' }

// JSON returns valid JSON with its Unshown characters, which are inside strings, as \u and their
// number. It reads the same.
func JSON(text string) string {
	if !strings.ContainsFunc(text, Unshown) {
		return text
	}
	var out strings.Builder
	for _, r := range text {
		if !Unshown(r) {
			out.WriteRune(r)
			continue
		}
		for _, unit := range utf16.AppendRune(nil, r) {
			fmt.Fprintf(&out, `\u%04x`, unit)
		}
	}
	return out.String()
}

// validStart returns text as valid UTF-8, which is never longer, or a beginning that is longer
// than limit: it need not read a megabyte for a cut of a few hundred bytes.
func validStart(text string, limit int) string {
	for seen := 2 * limit; ; seen *= 2 {
		if seen >= len(text) {
			return strings.ToValidUTF8(text, "?")
		}
		// The last rune may be cut in two.
		if valid := strings.ToValidUTF8(text[:seen], "?"); len(valid) > limit+utf8.UTFMax {
			return valid
		}
	}
}
