package topology

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"unicode/utf8"
)

const (
	// maxWord is the longest a queue's name may be in a routing key: what 255 bytes
	// leave beside the bits of ten years in milliseconds.
	maxWord = 160
	// readable is how much of a longer name is kept before its hash.
	readable = 80
)

// destinationWord writes the name of a queue as one word of a topic exchange's
// routing key, so that no two names have the same one and none matches the
// binding of another. What means something there is percent-encoded: the dot
// between words, the wildcards * and #, and the percent sign itself; so are bytes
// that are not UTF-8, for the management API and definitions are.
//
// A name that is too long ends in %~ and its SHA-256, which no other word holds,
// for a ~ never follows a percent sign.
func destinationWord(queue string) string {
	var word strings.Builder
	cut := 0 // the last place up to readable where the word may be cut
	for rest := queue; rest != ""; {
		r, size := utf8.DecodeRuneInString(rest)
		if r == utf8.RuneError && size == 1 || strings.ContainsRune(".*#%", r) {
			fmt.Fprintf(&word, "%%%02X", rest[0])
		} else {
			word.WriteString(rest[:size])
		}
		rest = rest[size:]
		if word.Len() <= readable {
			cut = word.Len()
		}
	}
	if word.Len() <= maxWord {
		return word.String()
	}
	return fmt.Sprintf("%s%%~%x", word.String()[:cut], sha256.Sum256([]byte(queue)))
}
