// Package excerpt cuts texts to the size that a header or a log line has room for.
package excerpt

import (
	"strconv"
	"strings"
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
