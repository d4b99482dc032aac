package header

import (
	"encoding/json"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/millpond-go/millpond/internal/excerpt"
	"github.com/millpond-go/millpond/internal/keys"
)

// appendHistory appends the newest entries that fit MaxHistoryBytes to b, as JSON, and returns
// the entries that it has written. It writes the same bytes as encoding/json.
func appendHistory(b []byte, entries []AttemptError) ([]byte, []AttemptError) {
	out, whole := appendEntries(b, entries)
	if !whole {
		entries = newest(entries)
		out, _ = appendEntries(b, entries)
	}
	return out, entries
}

// appendEntries reports whether all entries fit.
func appendEntries(b []byte, entries []AttemptError) (_ []byte, whole bool) {
	begin, separator := len(b), byte('[')
	for i := range entries {
		var ok bool
		if b, ok = appendEntry(append(b, separator), &entries[i]); !ok {
			return b, false
		}
		separator = ','
	}
	if len(entries) > 0 {
		b = append(b, ']')
	}
	return b, len(b)-begin < keys.MaxHistoryBytes
}

// newest returns the newest entries that fit.
func newest(entries []AttemptError) []AttemptError {
	var one []byte
	first, size := len(entries), len("[]")
	for ; first > 0; first-- {
		var ok bool
		one, ok = appendEntry(one[:0], &entries[first-1])
		if size += len(one) + len(","); !ok || size > keys.MaxHistoryBytes {
			break
		}
	}
	return entries[first:]
}

// appendEntry appends e as encoding/json does. ok is false for a year that JSON cannot hold.
func appendEntry(b []byte, e *AttemptError) (_ []byte, ok bool) {
	at := e.At.UTC()
	if year := at.Year(); year < 0 || year > 9999 {
		return b, false
	}
	b = append(b, `{"attempt":`...)
	b = strconv.AppendInt(b, int64(e.Attempt), 10)
	b = append(b, `,"at":"`...)
	b = append(at.AppendFormat(b, time.RFC3339Nano), '"')
	b = appendField(b, `,"handler":`, excerpt.Of(e.Handler, keys.MaxEntryErrorBytes))
	b = appendField(b, `,"class":`, string(e.Class))
	b = appendField(b, `,"error":`, excerpt.Of(e.Error, keys.MaxEntryErrorBytes))
	b = appendField(b, `,"delay":`, e.Delay)
	b = appendField(b, `,"reason":`, string(e.Reason))
	return append(b, '}'), true
}

func appendField(b []byte, name, value string) []byte {
	if value == "" {
		return b
	}
	b = append(b, name...)
	for i := range len(value) {
		if c := value[i]; c < ' ' || c >= utf8.RuneSelf || strings.IndexByte(`"\<>&`, c) >= 0 {
			text, _ := json.Marshal(value) // a string is never refused
			return append(b, text...)
		}
	}
	b = append(b, '"')
	b = append(b, value...)
	return append(b, '"')
}

// decodeHistory reads the text of appendHistory, and any other text as no history.
func decodeHistory(text string) []AttemptError {
	if text == "" || len(text) > keys.MaxHistoryBytes {
		return nil
	}
	if entries, ok := scanHistory(text); ok {
		return entries
	}
	var entries []AttemptError
	if json.Unmarshal([]byte(text), &entries) != nil {
		return nil
	}
	return entries
}

// scanHistory reads a history as appendHistory writes it, much faster than encoding/json. ok is
// false if the text has another form or an escaped character.
func scanHistory(text string) (entries []AttemptError, ok bool) {
	s := scanner{rest: text, ok: utf8.ValidString(text)}
	entries = make([]AttemptError, 0, strings.Count(text, `{"attempt":`))
	for s.literal("["); s.ok; s.literal(",") {
		var e AttemptError
		s.literal(`{"attempt":`)
		e.Attempt = s.number()
		s.literal(`,"at":`)
		e.At = s.time()
		e.Handler = s.field(`,"handler":`)
		e.Class = Class(s.field(`,"class":`))
		e.Error = s.field(`,"error":`)
		e.Delay = s.field(`,"delay":`)
		e.Reason = Reason(s.field(`,"reason":`))
		s.literal("}")
		entries = append(entries, e)
		if s.rest == "]" {
			break
		}
	}
	return entries, s.ok
}

// scanner reads a text from its beginning. ok is false once the text was not as expected.
type scanner struct {
	rest string
	ok   bool
}

func (s *scanner) literal(want string) {
	rest, found := strings.CutPrefix(s.rest, want)
	s.rest, s.ok = rest, s.ok && found
}

func (s *scanner) number() int {
	n, digits := 0, 0
	for digits < min(len(s.rest), 9) && '0' <= s.rest[digits] && s.rest[digits] <= '9' {
		n = 10*n + int(s.rest[digits]-'0')
		digits++
	}
	s.ok = s.ok && digits > 0 && (digits == 1 || s.rest[0] != '0')
	s.rest = s.rest[digits:]
	return n
}

// field reads a value that is absent if it is empty.
func (s *scanner) field(name string) string {
	if !strings.HasPrefix(s.rest, name) {
		return ""
	}
	s.rest = s.rest[len(name):]
	return s.text()
}

func (s *scanner) text() string {
	s.literal(`"`)
	for i := range len(s.rest) {
		switch c := s.rest[i]; {
		case c == '"':
			value := s.rest[:i]
			s.rest = s.rest[i+1:]
			return value
		case c < ' ' || c == '\\':
			s.ok = false
			return ""
		}
	}
	s.ok = false
	return ""
}

// time reads a time in UTC. time.Parse also takes forms that JSON refuses.
func (s *scanner) time() time.Time {
	text := s.text()
	t, err := time.Parse(time.RFC3339Nano, text)
	s.ok = s.ok && err == nil && strings.HasSuffix(text, "Z") && text[13] == ':' &&
		!strings.Contains(text, ",")
	return t
}
