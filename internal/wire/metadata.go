// Package wire turns deliveries into what a handler sees and into what is
// republished: typed headers to strings, and a delivery to a publishing.
package wire

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Text returns a header's value as metadata: strings as they are, numbers and
// bools by strconv, a time in RFC 3339, bytes in base64, and tables, arrays and
// nil as JSON.
func Text(value any) string {
	switch v := value.(type) {
	case string:
		return v
	case []byte:
		return base64.StdEncoding.EncodeToString(v)
	case time.Time:
		return v.UTC().Format(time.RFC3339)
	case bool:
		return strconv.FormatBool(v)
	case int, int8, int16, int32, int64, uint8, uint16, uint32, uint64:
		return fmt.Sprint(v)
	case float32:
		return strconv.FormatFloat(float64(v), 'g', -1, 32)
	case float64:
		return strconv.FormatFloat(v, 'g', -1, 64)
	case amqp.Decimal:
		return decimal(v)
	}
	text, err := json.Marshal(jsonValue(value))
	if err != nil { // not a type that comes off the wire
		return fmt.Sprint(value)
	}
	return string(text)
}

// TextHeaders returns a copy of headers in which every value is a string, which
// is all that Watermill's marshalers understand.
func TextHeaders(headers amqp.Table) amqp.Table {
	out := make(amqp.Table, len(headers)+1)
	for key, value := range headers {
		out[key] = Text(value)
	}
	return out
}

// jsonValue returns value with what JSON cannot hold written as Text does.
func jsonValue(value any) any {
	switch v := value.(type) {
	case amqp.Table:
		out := make(map[string]any, len(v))
		for key, item := range v {
			out[key] = jsonValue(item)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, item := range v {
			out[i] = jsonValue(item)
		}
		return out
	case amqp.Decimal:
		return json.Number(decimal(v))
	case float32:
		if f := float64(v); math.IsNaN(f) || math.IsInf(f, 0) {
			return Text(v)
		}
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return Text(v)
		}
	case []byte, time.Time:
		return Text(v)
	}
	return value
}

// decimal writes Value × 10^-Scale without rounding.
func decimal(d amqp.Decimal) string {
	digits, sign := strconv.FormatInt(int64(d.Value), 10), ""
	if rest, negative := strings.CutPrefix(digits, "-"); negative {
		digits, sign = rest, "-"
	}
	if d.Scale == 0 {
		return sign + digits
	}
	scale := int(d.Scale)
	if missing := scale + 1 - len(digits); missing > 0 {
		digits = strings.Repeat("0", missing) + digits
	}
	return sign + digits[:len(digits)-scale] + "." + digits[len(digits)-scale:]
}
