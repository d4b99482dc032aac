package operate

import (
	"crypto/sha256"
	"encoding/hex"
	"net/netip"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/millpond-go/millpond/internal/excerpt"
	"github.com/millpond-go/millpond/internal/keys"
)

// Fingerprint returns the cause of a dead letter: its error, in which placeholders replace the
// parts that differ from message to message, and a short ID of that text, which is the same in
// every run. Letters with one fingerprint have one cause, in all likelihood.
//
//	#          a number of up to seven digits, a duration
//	<id>       a longer number, a UUID, a ULID, hexadecimal digits, a token
//	<address>  an IP address or host:port
//	<email>    an e-mail address
//	"<text>"   text in quotes, except for a URL
//	?<query>   the query and the fragment of a URL
//
// A letter without an error has its reason as the cause. Errors are cut at header.MaxErrorBytes.
func Fingerprint(l Letter) (id, cause string) {
	cause = fingerprint(excerpt.Of(l.Error, keys.MaxErrorBytes))
	if cause == "" {
		cause = "(no error)"
		if reason := excerpt.Of(string(l.Reason), maxName); reason != "" {
			cause = "(no error: " + reason + ")"
		}
	}
	sum := sha256.Sum256([]byte(cause))
	return hex.EncodeToString(sum[:6]), cause
}

// fingerprint replaces the variable parts of an error.
func fingerprint(text string) string {
	s := &shaper{rest: text}
	s.out.Grow(len(text))
	for s.rest != "" {
		s.next()
	}
	return strings.TrimSpace(s.out.String())
}

// shaper writes a text from its beginning, with placeholders. No step looks at more than a few
// bytes again, so that a hostile text takes no longer than others.
type shaper struct {
	rest   string
	last   byte   // of the text before the rest; 0 at its beginning
	opened string // the quotes that do not end
	out    strings.Builder
}

// put writes shown in place of the next n bytes.
func (s *shaper) put(n int, shown string) {
	s.out.WriteString(shown)
	s.last, s.rest = s.rest[n-1], s.rest[n:]
}

// next writes one piece of the rest, at least a byte.
func (s *shaper) next() {
	c := s.rest[0]
	switch {
	case isSpace(c):
		s.put(prefix(s.rest, isSpace), " ")
		return
	case strings.IndexByte("\"`'", c) >= 0 && (c != '\'' || !isWord(s.last)) &&
		strings.IndexByte(s.opened, c) < 0:
		if n := quoted(s.rest); n > 0 {
			s.quote(n)
			return
		}
		s.opened += string(c)
	case !inWord(s.last) && inWord(c):
		if n := prefix(s.rest, inURL); isWord(c) && strings.Contains(s.rest[:n], "://") {
			s.url(len(strings.TrimRight(s.rest[:n], ".,:;!?)]}")))
			return
		}
		if n, shown := whole(s.rest[:prefix(s.rest, inWord)]); n > 0 {
			s.put(n, shown)
			return
		}
	}
	s.piece()
}

// quoted returns the length of the text in quotes with which rest begins, 0 if the quote does not
// end.
func quoted(rest string) int {
	for i := 1; i < len(rest); i++ {
		switch {
		case rest[i] == '\\' && rest[0] == '"':
			i++
		case rest[i] == rest[0] && (i+1 == len(rest) || !isWord(rest[i+1])):
			return i + 1
		}
	}
	return 0
}

// quote writes the next n bytes, which are in quotes. A URL stays readable.
func (s *shaper) quote(n int) {
	inner := s.rest[1 : n-1]
	shown := "<text>"
	if strings.Contains(inner, "://") && prefix(inner, inURL) == len(inner) && isWord(inner[0]) {
		shown = fingerprint(inner)
	}
	s.put(n, s.rest[:1]+shown+s.rest[n-1:n])
}

// url writes the next n bytes, a URL, without the user, and with placeholders for the address and
// the query.
func (s *shaper) url(n int) {
	scheme, rest, _ := strings.Cut(s.rest[:n], "://")
	end := strings.IndexAny(rest, "/?#")
	if end < 0 {
		end = len(rest)
	}
	host, path := rest[:end], rest[end:]
	host = host[strings.LastIndexByte(host, '@')+1:]
	if m, shown := whole(host); m == len(host) && m > 0 {
		host = shown
	} else {
		host = fingerprint(host)
	}
	query := ""
	if i := strings.IndexAny(path, "?#"); i >= 0 {
		path, query = path[:i], "?<query>"
	}
	s.put(n, fingerprint(scheme)+"://"+host+fingerprint(path)+query)
}

// whole returns the length of the beginning of a word that is an address as a whole, without the
// punctuation behind it, and its placeholder.
func whole(word string) (n int, shown string) {
	word = strings.TrimRight(word, ".:!?-")
	if word == "" {
		return 0, ""
	}
	if local, domain, ok := strings.Cut(word, "@"); ok && local != "" && word[0] != '[' &&
		strings.Contains(domain, ".") && !strings.ContainsAny(domain, "@:/[]") {
		return len(word), "<email>"
	}
	if !strings.ContainsAny(word, ".:") {
		return 0, ""
	}
	if _, err := netip.ParseAddrPort(word); err == nil {
		return len(word), "<address>"
	}
	bare, _, _ := strings.Cut(word, "/") // a prefix
	if strings.HasPrefix(bare, "[") {
		bare = strings.TrimSuffix(bare[1:], "]")
	}
	if _, err := netip.ParseAddr(bare); err == nil {
		return len(word), "<address>"
	}
	host, port, ok := strings.Cut(word, ":")
	dot := strings.LastIndexByte(host, '.')
	if ok && dot > 0 && len(port) > 1 && prefix(port, isDigit) == len(port) &&
		prefix(host, inHost) == len(host) && !sources[host[dot+1:]] {
		return len(word), "<address>"
	}
	return 0, ""
}

// sources are the endings of files, because main.go:42 is a line and no address.
var sources = map[string]bool{
	"go": true, "java": true, "py": true, "js": true, "ts": true, "rb": true, "rs": true, "c": true,
	"cc": true, "cpp": true, "h": true, "php": true, "sql": true, "json": true, "yaml": true,
	"yml": true, "xml": true, "proto": true, "kt": true, "cs": true,
}

// piece writes the next letters and digits, or one other byte.
func (s *shaper) piece() {
	if n := uuid(s.rest); n > 0 {
		s.put(n, "<id>")
		return
	}
	if !inToken(s.last) {
		token := prefix(s.rest, inToken)
		if looksRandom(s.rest[:token]) {
			padding := prefix(s.rest[token:], func(c byte) bool { return c == '=' })
			s.put(token+padding, "<id>")
			return
		}
	}
	n := prefix(s.rest, isAlnum)
	run := s.rest[:n]
	switch {
	case n == 0 && s.rest[0] == '-' && len(s.rest) > 1 && isDigit(s.rest[1]) &&
		(s.last == 0 || isSpace(s.last)): // a sign
		s.put(1, "")
	case n == 0:
		s.put(1, s.rest[:1])
	case isHex(run) || looksRandom(run):
		s.put(n, "<id>")
	case isDigit(run[0]):
		s.put(number(s.rest), "#")
		s.letters()
	default:
		s.letters()
	}
}

// letters writes the letters and digits that are left of a run.
func (s *shaper) letters() {
	for s.rest != "" && isAlnum(s.rest[0]) {
		if n := prefix(s.rest, isDigit); n > 0 {
			s.put(n, "#")
			continue
		}
		n := prefix(s.rest, func(c byte) bool { return isAlnum(c) && !isDigit(c) })
		s.put(n, s.rest[:n])
	}
}

// number returns the length of the number with which rest begins, with its fraction, its groups
// and, if it is a duration, its units.
func number(rest string) int {
	const most = 64
	rest = rest[:min(len(rest), most)]
	inNumber := func(c byte) bool { return isDigit(c) || c == '.' || c == ',' }
	n := len(strings.TrimRight(rest[:prefix(rest, inNumber)], ".,"))
	all := prefix(rest, func(c byte) bool { return isAlnum(c) || c == '.' })
	all = len(strings.TrimRight(rest[:all], "."))
	if _, err := time.ParseDuration(rest[:all]); err == nil {
		return all
	}
	return n
}

// uuid returns the length of the UUID with which rest begins.
func uuid(rest string) int {
	const n = 36
	if len(rest) < n || len(rest) > n && isAlnum(rest[n]) {
		return 0
	}
	for i := range n {
		if dash := i == 8 || i == 13 || i == 18 || i == 23; dash != (rest[i] == '-') ||
			!dash && !isHexDigit(rest[i]) {
			return 0
		}
	}
	return n
}

// isHex reports whether a run is hexadecimal digits: 0x and some, or eight and more. Of the ids of
// eight, some have no letter by chance, so that long numbers are ids, too.
func isHex(run string) bool {
	if len(run) > 2 && run[0] == '0' && run[1]|0x20 == 'x' {
		return prefix(run[2:], isHexDigit) == len(run)-2
	}
	return len(run) >= 8 && strings.ContainsAny(run, "0123456789") &&
		prefix(run, isHexDigit) == len(run)
}

// looksRandom reports whether a run of at least 16 bytes is a token: it has digits and letters, and
// the kind of its characters changes more often than in words. An upper-case letter at the
// beginning of a word is no change.
func looksRandom(run string) bool {
	digits, changes, letters := 0, 0, 0
	for i := range len(run) {
		k := kind(run[i])
		if k == 'd' {
			digits++
		} else if k != 0 {
			letters++
		}
		if i > 0 && k != 0 {
			if before := kind(run[i-1]); before != 0 && before != k && (before != 'u' || k != 'l') {
				changes++
			}
		}
	}
	return digits > 0 && letters >= digits/3 && letters > 0 && digits+letters >= 16 &&
		10*changes > 3*(digits+letters)
}

func kind(c byte) byte {
	switch {
	case isDigit(c):
		return 'd'
	case 'a' <= c && c <= 'z':
		return 'l'
	case 'A' <= c && c <= 'Z':
		return 'u'
	}
	return 0
}

// prefix returns the length of the beginning of text whose bytes are all in the set.
func prefix(text string, in func(c byte) bool) int {
	for i := range len(text) {
		if !in(text[i]) {
			return i
		}
	}
	return len(text)
}

func isSpace(c byte) bool    { return c <= ' ' }
func isDigit(c byte) bool    { return '0' <= c && c <= '9' }
func isHexDigit(c byte) bool { return isDigit(c) || 'a' <= c|0x20 && c|0x20 <= 'f' }
func isAlnum(c byte) bool    { return kind(c) != 0 || c >= utf8.RuneSelf }
func isWord(c byte) bool     { return isAlnum(c) || c == '_' }
func inHost(c byte) bool     { return kind(c) != 0 || c == '.' || c == '-' || c == '_' }
func inToken(c byte) bool    { return kind(c) != 0 || strings.IndexByte("+/_-", c) >= 0 }
func inURL(c byte) bool      { return c > ' ' && strings.IndexByte("\"`'<>|\\^", c) < 0 }
func inWord(c byte) bool     { return inURL(c) && strings.IndexByte("{}(),;=", c) < 0 }
