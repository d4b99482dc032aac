package operate

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	amqp "github.com/rabbitmq/amqp091-go"
)

// field is a header's value with its type.
type field struct {
	Type  string          `json:"type"`
	Value json.RawMessage `json:"value,omitempty"`
}

const base64Key = "base64:" // before a key that is not UTF-8, or begins so

func fieldsOf(t amqp.Table) (map[string]field, error) {
	if t == nil {
		return nil, nil
	}
	fields := make(map[string]field, len(t))
	for key, value := range t {
		f, err := fieldOf(value)
		if err != nil {
			return nil, fmt.Errorf("header %q: %w", key, err)
		}
		if !utf8.ValidString(key) || strings.HasPrefix(key, base64Key) {
			key = base64Key + base64.StdEncoding.EncodeToString([]byte(key))
		}
		fields[key] = f
	}
	return fields, nil
}

// plain are the types that JSON holds as they are, by their names, and how they are read.
var plain = map[string]func(field) (any, error){
	"bool": read[bool], "uint8": read[uint8], "int8": read[int8], "int16": read[int16],
	"uint16": read[uint16], "int32": read[int32], "uint32": read[uint32], "int64": read[int64],
	"decimal": read[amqp.Decimal],
}

func read[T any](f field) (any, error) { return as[T](f) }

func fieldOf(value any) (field, error) {
	var err error
	name, out := fmt.Sprintf("%T", value), value
	switch v := value.(type) {
	case nil:
		return field{Type: "void"}, nil
	case float32: // as text, because JSON has no infinity
		out = strconv.FormatFloat(float64(v), 'g', -1, 32)
	case float64:
		out = strconv.FormatFloat(v, 'g', -1, 64)
	case string:
		out = text(v)
	case []byte:
		name, out = "bytes", encoded{v}
	case time.Time:
		name, out = "timestamp", v.Unix()
	case amqp.Table:
		name = "table"
		out, err = fieldsOf(v)
	case []any:
		name = "array"
		list := make([]field, len(v))
		for i, item := range v {
			if list[i], err = fieldOf(item); err != nil {
				break
			}
		}
		out = list
	case amqp.Decimal:
		name = "decimal"
	default:
		if plain[name] == nil {
			return field{}, fmt.Errorf("a value of type %s does not come from AMQP", name)
		}
	}
	if err != nil {
		return field{}, err
	}
	data, err := json.Marshal(out)
	return field{Type: name, Value: data}, err
}

func tableOf(fields map[string]field) (amqp.Table, error) {
	if fields == nil {
		return nil, nil
	}
	t := make(amqp.Table, len(fields))
	for key, f := range fields {
		if coded, ok := strings.CutPrefix(key, base64Key); ok {
			raw, err := base64.StdEncoding.DecodeString(coded)
			if err != nil {
				return nil, fmt.Errorf("header %q: %w", key, err)
			}
			key = string(raw)
		}
		value, err := valueOf(f)
		if err != nil {
			return nil, fmt.Errorf("header %q: %w", key, err)
		}
		t[key] = value
	}
	return t, nil
}

func valueOf(f field) (any, error) {
	switch f.Type {
	case "void":
		return nil, nil
	case "float32":
		written, err := as[string](f)
		v, failed := strconv.ParseFloat(written, 32)
		return float32(v), cmp.Or(err, failed)
	case "float64":
		written, err := as[string](f)
		v, failed := strconv.ParseFloat(written, 64)
		return v, cmp.Or(err, failed)
	case "string":
		v, err := as[text](f)
		return string(v), err
	case "bytes":
		v, err := as[encoded](f)
		if v.Base64 == nil {
			v.Base64 = []byte{}
		}
		return v.Base64, err
	case "timestamp":
		v, err := as[int64](f)
		return time.Unix(v, 0), err
	case "table":
		v, err := as[map[string]field](f)
		if err != nil {
			return nil, err
		}
		return tableOf(v)
	case "array":
		v, err := as[[]field](f)
		if err != nil {
			return nil, err
		}
		list := make([]any, len(v))
		for i, item := range v {
			if list[i], err = valueOf(item); err != nil {
				return nil, err
			}
		}
		return list, nil
	}
	if known := plain[f.Type]; known != nil {
		return known(f)
	}
	return nil, fmt.Errorf("type %q is unknown", f.Type)
}

func as[T any](f field) (v T, err error) {
	if len(f.Value) == 0 {
		return v, errors.New("the value is missing")
	}
	err = json.Unmarshal(f.Value, &v)
	return v, err
}
