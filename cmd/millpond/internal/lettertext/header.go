package lettertext

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/internal/wire"
	"github.com/millpond-go/millpond/topology/operate"
)

var types = map[string]bool{
	"string": true, "bool": true, "int8": true, "int16": true, "int32": true, "int64": true,
	"uint8": true, "uint16": true, "uint32": true, "float32": true, "float64": true, "decimal": true,
	"bytes": true, "timestamp": true, "table": true, "array": true, "void": true,
}

// ParseHeader reads name=value, which is a string, or name:type=value.
func ParseHeader(text string) (name string, value any, err error) {
	name, content, ok := strings.Cut(text, "=")
	if !ok {
		return "", nil, fmt.Errorf("header %q: write name=value or name:type=value", text)
	}
	value = content
	if i := strings.LastIndex(name, ":"); i > 0 && types[name[i+1:]] {
		kind := name[i+1:]
		if name = name[:i]; kind != "string" {
			if value, err = valueOf(kind, content); err != nil {
				return "", nil, fmt.Errorf("header %q: %w", text, err)
			}
		}
	}
	return name, value, Check(name)
}

// valueOf reads a value of a type, such as 3 of an int32. Times are in RFC 3339, bytes in base64,
// and tables and arrays are written as operate.Encode writes them.
func valueOf(kind, text string) (any, error) {
	switch {
	case strings.HasPrefix(kind, "float") && !strings.HasPrefix(text, `"`):
		text = strconv.Quote(text)
	case kind == "bytes" && !strings.HasPrefix(text, "{"):
		text = `{"base64":` + strconv.Quote(text) + `}`
	case kind == "timestamp":
		if t, err := time.Parse(time.RFC3339, text); err == nil {
			text = strconv.FormatInt(t.Unix(), 10)
		}
	}
	typed := map[string]any{"type": kind}
	if text != "" {
		typed["value"] = json.RawMessage(text)
	}
	var d amqp.Delivery
	record, err := json.Marshal(map[string]any{"body": "", "headers": map[string]any{"value": typed}})
	if err == nil {
		d, err = operate.Decode(record)
	}
	if err != nil {
		return nil, fmt.Errorf("no value of type %s: %w", kind, err)
	}
	return d.Headers["value"], nil
}

// Check returns an error for the name of a header that an edit must not touch.
func Check(name string) error {
	switch {
	case name == "" || len(name) > 255:
		return fmt.Errorf("the name of a header has %d bytes: AMQP allows 1 to 255", len(name))
	case fixed(name):
		return fmt.Errorf("the header %q belongs to the library or to the broker: leave it out", name)
	}
	return nil
}

// fixed reports whether a header belongs to the library or to the broker.
func fixed(name string) bool {
	d := amqp.Delivery{Headers: amqp.Table{name: nil}}
	return strings.HasPrefix(name, "millpond-") ||
		len(wire.Publishing(&d, keys.IsState, nil).Headers) == 0
}

// TypeName is the AMQP type of a header's value, as ParseHeader takes it.
func TypeName(value any) string {
	switch value.(type) {
	case nil:
		return "void"
	case []byte:
		return "bytes"
	case []any:
		return "array"
	}
	name := fmt.Sprintf("%T", value)
	return strings.ToLower(name[strings.LastIndex(name, ".")+1:])
}

// Properties are the names and values of the properties that a message has, without its ID, its
// timestamp and its priority.
func Properties(d amqp.Delivery) (rows [][]string) {
	for _, row := range [][]string{
		{"app id", d.AppId},
		{"content encoding", d.ContentEncoding},
		{"content type", d.ContentType},
		{"correlation id", d.CorrelationId},
		{"expiration", d.Expiration},
		{"reply to", d.ReplyTo},
		{"type", d.Type},
		{"user id", d.UserId},
	} {
		if row[1] != "" {
			rows = append(rows, row)
		}
	}
	return rows
}
