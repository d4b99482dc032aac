package operate

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/millpond-go/millpond/internal/wire"
	"github.com/millpond-go/millpond/middleware/header"
)

// Filter chooses the messages that meet every condition that is set. The zero value chooses all.
//
// Error, Payload and the values of Headers are texts. A text between slashes is a regular
// expression: /^order [0-9]+$/. To choose by a text that has slashes at both ends, write it as an
// expression: /^\/orders\/$/.
//
// A Filter has a text form, which ParseFilter reads and which is its form in JSON, too:
//
//	reason=permanent error="no such customer" since=2026-03-01T00:00:00Z header="tenant=7"
type Filter struct {
	// IDs are the IDs to choose.
	IDs []string
	// Queues are names of queues: those that Letter.Queue may have. A stranded message has the name of
	// the queue that it waited for.
	Queues []string
	// Reason of the letter.
	Reason header.Reason
	// Error is part of the last error, or matches it.
	Error string
	// Handler that gave up.
	Handler string
	// Group is the ID of the letter's Fingerprint, as Group.ID has it, or several such IDs with commas
	// between them.
	Group string
	// Since and Until bound DeadAt, Since included and Until not. A letter without DeadAt, as each
	// message that waits, meets neither.
	Since, Until time.Time
	// Headers the message has, by their names, with these values or with values that match, as
	// HeaderText writes them.
	Headers map[string]string
	// Payload is part of the payload, compared byte by byte, or matches it. In a payload that is not
	// UTF-8 each byte stands for the character of its number: /\xff/ matches the byte 255.
	Payload string
	// Delay of the wait queue. Only messages that wait meet it.
	Delay time.Duration
	// Match is any other condition. The text form leaves it out.
	Match func(Letter) bool
}

// ParseFilter reads the text form of a Filter: conditions with spaces between them, each a name, an
// equals sign and a value, which is in quotes as in Go where it has spaces. See Set for the names
// and the values.
func ParseFilter(text string) (Filter, error) {
	var f Filter
	for now := time.Now(); ; {
		text = strings.TrimLeft(text, " ")
		if text == "" {
			return f, nil
		}
		name, rest, ok := strings.Cut(text, "=")
		if !ok {
			return Filter{}, fmt.Errorf("filter: %q is no condition: write name=value", text)
		}
		value, _, _ := strings.Cut(rest, " ")
		text = rest[len(value):]
		if strings.HasPrefix(rest, `"`) {
			quoted, _ := strconv.QuotedPrefix(rest)
			plain, err := strconv.Unquote(quoted)
			value, text = plain, rest[len(quoted):]
			if err != nil || text != "" && text[0] != ' ' {
				return Filter{}, fmt.Errorf("filter: the quotes of %s=%s do not end", name, rest)
			}
		}
		if err := f.Set(name, value, now); err != nil {
			return Filter{}, fmt.Errorf("filter: %w", err)
		}
	}
}

// Set adds a condition to the filter: id, for, reason, error, handler, group, since, until, header,
// payload or delay. An id, a queue (for), a group and a header may be set several times. The value
// of a header is name=value, of a delay a duration. A time is like 2026-03-01,
// 2026-03-01T12:00:00Z or "2026-03-01 12:00", in UTC where no zone is named, or a duration before
// now: 2h. An empty value is an error, because it would choose all.
func (f *Filter) Set(name, value string, now time.Time) error {
	if value == "" {
		return fmt.Errorf("%s is empty: name a value, or leave it out", name)
	}
	var err error
	once := func(field *string) error {
		if *field != "" {
			err = fmt.Errorf("%s is there twice, %q and %q", name, *field, value)
		}
		*field = value
		return err
	}
	switch name {
	case "id":
		f.IDs = append(slices.Clip(f.IDs), value)
	case "for":
		f.Queues = append(slices.Clip(f.Queues), value)
	case "reason":
		return once((*string)(&f.Reason))
	case "error", "payload":
		_, err = patternOf(name, value)
		return once(map[string]*string{"error": &f.Error, "payload": &f.Payload}[name])
	case "handler":
		return once(&f.Handler)
	case "group":
		f.Group = strings.TrimPrefix(f.Group+","+value, ",")
	case "since":
		return setTime(&f.Since, name, value, now)
	case "until":
		return setTime(&f.Until, name, value, now)
	case "header":
		key, want, ok := strings.Cut(value, "=")
		if _, twice := f.Headers[key]; !ok || key == "" || twice {
			return fmt.Errorf("header %q: write name=value or name=/regular expression/, each name once",
				value)
		}
		f.Headers = maps.Clone(f.Headers)
		if f.Headers == nil {
			f.Headers = map[string]string{}
		}
		f.Headers[key] = want
		_, err := patternOf(name, want)
		return err
	case "delay":
		d, err := time.ParseDuration(value)
		if err != nil || d <= 0 || f.Delay != 0 {
			return fmt.Errorf("delay %q: write one duration, such as 5s", value)
		}
		f.Delay = d
	default:
		return fmt.Errorf("there is no condition %q", name)
	}
	return nil
}

func setTime(field *time.Time, name, value string, now time.Time) error {
	ago, err := time.ParseDuration(value)
	at := now.Add(-ago).UTC()
	for _, layout := range []string{
		time.RFC3339, "2006-01-02T15:04:05", "2006-01-02T15:04", "2006-01-02 15:04", time.DateOnly,
	} {
		if err != nil {
			at, err = time.Parse(layout, value)
		}
	}
	if err != nil || at.IsZero() || !field.IsZero() {
		return fmt.Errorf("%s %q is no time, or the second one: write 2026-03-01, 2026-03-01T12:00:00Z "+
			"or 2h for two hours ago", name, value)
	}
	*field = at.UTC()
	return nil
}

// String returns the text form, in a fixed order; "" for a filter that chooses all.
func (f Filter) String() string {
	var words []string
	add := func(name string, values ...string) {
		for _, value := range values {
			if quoted := strconv.Quote(value); quoted != `"`+value+`"` || strings.Contains(value, " ") {
				value = quoted
			}
			if value != "" {
				words = append(words, name+"="+value)
			}
		}
	}
	at := func(name string, t time.Time) {
		if !t.IsZero() {
			add(name, t.UTC().Format(time.RFC3339Nano))
		}
	}
	add("id", f.IDs...)
	add("for", f.Queues...)
	add("reason", string(f.Reason))
	add("error", f.Error)
	add("handler", f.Handler)
	add("group", f.Group)
	at("since", f.Since)
	at("until", f.Until)
	for _, key := range slices.Sorted(maps.Keys(f.Headers)) {
		add("header", key+"="+f.Headers[key])
	}
	add("payload", f.Payload)
	if f.Delay != 0 {
		add("delay", f.Delay.String())
	}
	return strings.Join(words, " ")
}

// Redacted is String for logs, which must not have a payload or the value of a header:
// payload=(12 bytes), header=tenant=(2 bytes).
func (f Filter) Redacted() string {
	redact := func(text string) string { return fmt.Sprintf("(%d bytes)", len(text)) }
	if f.Payload != "" {
		f.Payload = redact(f.Payload)
	}
	f.Headers = maps.Clone(f.Headers)
	for name, value := range f.Headers {
		f.Headers[name] = redact(value)
	}
	return f.String()
}

// IsZero reports whether the filter chooses every message.
func (f Filter) IsZero() bool { return f.Match == nil && f.String() == "" }

// MarshalText implements encoding.TextMarshaler.
func (f Filter) MarshalText() ([]byte, error) { return []byte(f.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (f *Filter) UnmarshalText(text []byte) (err error) {
	*f, err = ParseFilter(string(text))
	return err
}

// Matcher returns a function that reports whether the filter chooses a letter. The error is
// ErrInvalidOptions and names every regular expression that cannot be read.
func (f Filter) Matcher() (func(Letter) bool, error) {
	failure, err := patternOf("error", f.Error)
	payload, payloadErr := patternOf("payload", f.Payload)
	problems := []error{err, payloadErr}
	values := map[string]*regexp.Regexp{}
	for key, want := range f.Headers {
		values[key], err = patternOf("header", want)
		problems = append(problems, err)
	}
	if err := errors.Join(problems...); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalidOptions, err)
	}
	return func(l Letter) bool {
		switch {
		case !f.names(l),
			failure == nil && !strings.Contains(l.Error, f.Error),
			failure != nil && !failure.MatchString(l.Error),
			payload == nil && !bytes.Contains(l.Delivery.Body, []byte(f.Payload)),
			payload != nil && !matches(payload, l.Delivery.Body):
			return false
		}
		for key, want := range f.Headers {
			value, there := l.Delivery.Headers[key]
			text, pattern := wire.Text(value), values[key]
			if !there || pattern == nil && text != want || pattern != nil && !pattern.MatchString(text) {
				return false
			}
		}
		return f.Match == nil || f.Match(l)
	}, nil
}

// names reports whether a letter meets the conditions that no pattern can have.
func (f Filter) names(l Letter) bool {
	switch {
	case len(f.IDs) > 0 && !slices.Contains(f.IDs, l.ID),
		len(f.Queues) > 0 && !slices.Contains(f.Queues, l.Queue),
		f.Reason != "" && f.Reason != l.Reason,
		f.Handler != "" && f.Handler != l.Handler,
		!f.Since.IsZero() && (l.DeadAt.IsZero() || l.DeadAt.Before(f.Since)),
		!f.Until.IsZero() && (l.DeadAt.IsZero() || !l.DeadAt.Before(f.Until)),
		f.Delay != 0 && f.Delay != l.waits:
		return false
	case f.Group == "":
		return true
	}
	id, _ := Fingerprint(l)
	return slices.Contains(strings.Split(f.Group, ","), id)
}

// patternOf returns the regular expression of a text between slashes; nil for another text.
func patternOf(name, text string) (*regexp.Regexp, error) {
	if len(text) < 3 || text[0] != '/' || text[len(text)-1] != '/' {
		return nil, nil
	}
	pattern, err := regexp.Compile(text[1 : len(text)-1])
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return pattern, nil
}

// matches matches text as text, and any other payload byte by byte.
func matches(pattern *regexp.Regexp, payload []byte) bool {
	if utf8.Valid(payload) {
		return pattern.Match(payload)
	}
	return pattern.MatchReader(&byteRunes{payload})
}

// byteRunes reads each byte as the character of its number.
type byteRunes struct{ rest []byte }

func (b *byteRunes) ReadRune() (r rune, size int, err error) {
	if len(b.rest) == 0 {
		return 0, 0, io.EOF
	}
	r, b.rest = rune(b.rest[0]), b.rest[1:]
	return r, 1, nil
}
