// Package lettertext writes the part of a message that a person may change as text, for an editor,
// a form and a difference, and reads it again.
package lettertext

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/excerpt"
	"github.com/millpond-go/millpond/topology/operate"
)

// Content is the part of a message that a person may change: the payload, and the headers that
// belong neither to the library nor to the broker.
type Content struct {
	Headers amqp.Table
	Body    []byte
}

// Of takes the content out of headers and body. The other headers are returned apart.
func Of(headers amqp.Table, body []byte) (c Content, others amqp.Table) {
	c, others = Content{amqp.Table{}, body}, amqp.Table{}
	for key, value := range headers {
		if fixed(key) {
			others[key] = value
		} else {
			c.Headers[key] = value
		}
	}
	return c, others
}

// Put replaces the content of a message.
func (c Content) Put(msg *amqp.Publishing) {
	_, headers := Of(msg.Headers, nil)
	maps.Copy(headers, c.Headers)
	msg.Headers, msg.Body = headers, c.Body
}

// Identity is a digest of a message without the fields that differ from look to look: two messages
// with the same identity are equal.
func Identity(d amqp.Delivery) string {
	d.Headers = maps.Clone(d.Headers)
	delete(d.Headers, "x-delivery-count")
	delete(d.Headers, "x-acquired-count")
	d.Redelivered = false
	line, err := operate.Encode(d)
	sum := sha256.Sum256(append(line, fmt.Sprint(err)...))
	return hex.EncodeToString(sum[:])
}

// The forms of a payload, by the line above it.
const (
	asJSON   = "payload as json:"
	asText   = "payload as text:"
	AsBase64 = "payload as base64:"
)

// Text writes the content: a line for each header, its name, type and value, and then the payload.
func (c Content) Text() (string, error) {
	lines, err := HeaderLines(c.Headers)
	if err != nil {
		return "", err
	}
	form, payload := payloadText(c.Body)
	return strings.Join(append(lines, "", form, payload), "\n") + "\n", nil
}

// typed is a header as operate.Encode writes it.
type typed struct {
	Type  string          `json:"type"`
	Value json.RawMessage `json:"value,omitempty"`
}

// HeaderLines writes headers as Text does.
func HeaderLines(headers amqp.Table) ([]string, error) {
	record, err := operate.Encode(amqp.Delivery{Headers: headers})
	var read struct{ Headers map[string]typed }
	if err == nil {
		err = json.Unmarshal(record, &read)
	}
	if err != nil {
		return nil, err
	}
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(read.Headers)) {
		h := read.Headers[name]
		if !bareName.MatchString(name) {
			quoted, _ := json.Marshal(name) // a string is never refused
			name = excerpt.JSON(string(quoted))
		}
		lines = append(lines, strings.TrimRight(name+" "+h.Type+" "+h.shown(), " "))
	}
	return lines, nil
}

// bareName is a header's name that needs no quotes.
var bareName = regexp.MustCompile(`^[A-Za-z0-9_.:/@+-]+$`)

// shown is the value as a person reads it: times as text, floats and base64 without quotes.
func (h typed) shown() string {
	var value any
	decoder := json.NewDecoder(bytes.NewReader(h.Value))
	decoder.UseNumber()
	if decoder.Decode(&value) != nil {
		return ""
	}
	switch v := value.(type) {
	case json.Number:
		if seconds, err := v.Int64(); err == nil && h.Type == "timestamp" {
			if t := time.Unix(seconds, 0).UTC(); t.Year() >= 0 && t.Year() < 10_000 {
				return t.Format(time.RFC3339)
			}
		}
	case string:
		if strings.HasPrefix(h.Type, "float") {
			return v
		}
	case map[string]any:
		if coded, ok := v["base64"].(string); ok && h.Type == "bytes" {
			return coded
		}
	}
	var out strings.Builder
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(value) // it was decoded
	return excerpt.JSON(strings.TrimSpace(out.String()))
}

// payloadText returns how a payload is shown, and its text. JSON is indented. Any payload that has
// characters an editor or a terminal may not show becomes base64, except that JSON escapes them.
func payloadText(body []byte) (form, text string) {
	var pretty bytes.Buffer
	trimmed := bytes.TrimSpace(body)
	switch {
	case utf8.Valid(body) && json.Indent(&pretty, trimmed, "", "  ") == nil &&
		pretty.Len() <= 4*len(body)+64<<10: // deeply nested JSON grows a thousand times
		return asJSON, excerpt.JSON(pretty.String())
	case utf8.Valid(body) && !strings.ContainsFunc(string(body), excerpt.Unshown):
		return asText, string(body)
	}
	const width = 76
	var lines []string
	coded := base64.StdEncoding.EncodeToString(body)
	for line := range slices.Chunk([]byte(coded), width) {
		lines = append(lines, string(line))
	}
	return AsBase64, strings.Join(lines, "\n")
}

// Parse reads a text that Content.Text wrote and a person has changed. Lines above the
// payload that begin with # are comments. A payload whose text is unchanged keeps its bytes. JSON
// must stay JSON, unless anything is set.
func Parse(text string, before Content, anything bool) (Content, error) {
	c := Content{Headers: amqp.Table{}}
	for n := 1; ; n++ {
		line, rest, more := strings.Cut(text, "\n")
		line = strings.TrimSpace(line)
		switch line {
		case asJSON, asText, AsBase64:
			var err error
			c.Body, err = parsePayload(line, strings.TrimSuffix(rest, "\n"), before.Body, anything)
			if err != nil {
				err = fmt.Errorf("the payload below line %d: %w", n, err)
			}
			return c, err
		}
		if line != "" && line[0] != '#' {
			if err := c.parseHeader(line); err != nil {
				return c, fmt.Errorf("line %d: %w", n, err)
			}
		}
		if !more {
			return c, fmt.Errorf("the line %q, %q or %q is missing above the payload",
				asJSON, asText, AsBase64)
		}
		text = rest
	}
}

func (c Content) parseHeader(line string) error {
	name, rest, _ := strings.Cut(line, " ")
	if line[0] == '"' {
		decoder := json.NewDecoder(strings.NewReader(line))
		if err := decoder.Decode(&name); err != nil {
			return fmt.Errorf("the name of the header: %w", err)
		}
		rest = line[decoder.InputOffset():]
	}
	if coded, is := strings.CutPrefix(name, "base64:"); is { // as operate.Encode writes it
		raw, err := base64.StdEncoding.DecodeString(coded)
		if err != nil {
			return fmt.Errorf("the name of the header: %w", err)
		}
		name = string(raw)
	}
	kind, value, _ := strings.Cut(strings.TrimSpace(rest), " ")
	if kind == "" {
		return fmt.Errorf("%q is no header: write NAME TYPE VALUE", line)
	}
	if err := Check(name); err != nil {
		return err
	}
	if _, twice := c.Headers[name]; twice {
		return fmt.Errorf("the header %q is there twice", name)
	}
	typed, err := valueOf(kind, strings.TrimSpace(value))
	if err != nil {
		return fmt.Errorf("header %q: %w", name, err)
	}
	c.Headers[name] = typed
	return nil
}

// ErrNoJSON: the payload was JSON, and would be none.
var ErrNoJSON = errors.New("it is no JSON")

func parsePayload(form, text string, before []byte, anything bool) (body []byte, err error) {
	if was, shown := payloadText(before); was == form && shown == text {
		return before, nil
	}
	body = []byte(text)
	if form == AsBase64 {
		body, err = base64.StdEncoding.DecodeString(strings.Join(strings.Fields(text), ""))
		if err != nil {
			return nil, fmt.Errorf("it is no base64: %w", err)
		}
	}
	if anything || form != asJSON && !json.Valid(before) {
		return body, nil
	}
	var valid json.RawMessage
	if err := json.Unmarshal(body, &valid); err != nil {
		var syntax *json.SyntaxError
		if errors.As(err, &syntax) {
			at := min(int(syntax.Offset), len(body))
			err = fmt.Errorf("in its line %d: %w", 1+bytes.Count(body[:at], []byte("\n")), err)
		}
		return nil, fmt.Errorf("%w: %w", ErrNoJSON, err)
	}
	var was, compact bytes.Buffer
	if form != asJSON || json.Compact(&was, before) == nil && !bytes.Equal(was.Bytes(), before) {
		return body, nil // it was indented before
	}
	err = json.Compact(&compact, valid)
	return compact.Bytes(), err
}
