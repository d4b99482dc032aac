package wire_test

import (
	"encoding/json"
	"math"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"

	"github.com/millpond-go/millpond/internal/wire"
	"github.com/millpond-go/millpond/internal/wire/wiretest"
)

func TestText(t *testing.T) {
	t.Parallel()
	zone := time.FixedZone("", 2*60*60)
	for _, c := range []struct {
		name  string
		value any
		want  string
	}{
		{"string", "päper & <ink>", "päper & <ink>"},
		{"string that looks like JSON", `{"a":1}`, `{"a":1}`},
		{"empty string", "", ""},
		{"string that is not UTF-8", "a\xff\xfeb", "a\xff\xfeb"},
		{"bytes", []byte{0, 1, 0xff}, "AAH/"},
		{"no bytes", []byte{}, ""},
		{"true", true, "true"},
		{"false", false, "false"},
		{"int", int(-7), "-7"},
		{"int8", int8(math.MinInt8), "-128"},
		{"int16", int16(math.MinInt16), "-32768"},
		{"int32", int32(math.MinInt32), "-2147483648"},
		{"int64", int64(math.MinInt64), "-9223372036854775808"},
		{"uint8", uint8(255), "255"},
		{"uint16", uint16(65535), "65535"},
		{"uint32", uint32(4294967295), "4294967295"},
		{"uint64", uint64(math.MaxUint64), "18446744073709551615"},
		{"float32", float32(0.1), "0.1"},
		{"float32, large", float32(1e30), "1e+30"},
		{"float32, not a number", float32(math.NaN()), "NaN"},
		{"float64", 0.1, "0.1"},
		{"float64, whole", 3.0, "3"},
		{"float64, smallest", math.SmallestNonzeroFloat64, "5e-324"},
		{"not a number", math.NaN(), "NaN"},
		{"infinity", math.Inf(1), "+Inf"},
		{"minus infinity", math.Inf(-1), "-Inf"},
		{"decimal", amqp.Decimal{Scale: 2, Value: 12345}, "123.45"},
		{"decimal without scale", amqp.Decimal{Value: -12}, "-12"},
		{"negative decimal", amqp.Decimal{Scale: 2, Value: -12345}, "-123.45"},
		{"decimal with as many digits as scale", amqp.Decimal{Scale: 2, Value: 45}, "0.45"},
		{"decimal with fewer digits than scale", amqp.Decimal{Scale: 4, Value: 45}, "0.0045"},
		{"negative decimal with fewer digits than scale", amqp.Decimal{Scale: 3, Value: -5}, "-0.005"},
		{"decimal, zero", amqp.Decimal{Scale: 2}, "0.00"},
		{"decimal, least", amqp.Decimal{Scale: 10, Value: math.MinInt32}, "-0.2147483648"},
		{"time", time.Date(2024, 5, 6, 7, 8, 9, 0, zone), "2024-05-06T05:08:09Z"},
		{"time, zero seconds", time.Unix(0, 0), "1970-01-01T00:00:00Z"},
		{"nil", nil, "null"},
		{"table", amqp.Table{"b": int32(2), "a": "x"}, `{"a":"x","b":2}`},
		{"empty table", amqp.Table{}, `{}`},
		{"nil table", amqp.Table(nil), `{}`},
		{"array", []any{"a", int64(1), true, nil}, `["a",1,true,null]`},
		{"empty array", []any{}, `[]`},
		{"nested arrays", []any{[]any{[]any{uint8(1)}, "x"}, []any{}}, `[[[1],"x"],[]]`},
		{
			"table in array in table",
			amqp.Table{"l": []any{amqp.Table{"k": []byte("hi")}}},
			`{"l":[{"k":"aGk="}]}`,
		},
		{
			"values that JSON cannot hold",
			[]any{math.NaN(), math.Inf(-1), float32(math.Inf(1)), time.Unix(0, 0), []byte{1}},
			`["NaN","-Inf","+Inf","1970-01-01T00:00:00Z","AQ=="]`,
		},
		{
			"decimals in an array",
			[]any{amqp.Decimal{Scale: 1, Value: -15}, amqp.Decimal{Scale: 3, Value: 5}},
			`[-1.5,0.005]`,
		},
		{"floats in an array", []any{0.1, 1e21, 2.0}, `[0.1,1e+21,2]`},
		{"string in an array that is not UTF-8", []any{"a\xffb"}, "[\"a\\ufffdb\"]"},
		{
			"death of a message",
			[]any{amqp.Table{
				"count": int64(3), "reason": "expired", "routing-keys": []any{"q"}, "time": time.Unix(60, 0),
			}},
			`[{"count":3,"reason":"expired","routing-keys":["q"],"time":"1970-01-01T00:01:00Z"}]`,
		},
		{"type that never comes off the wire", []string{"a"}, `["a"]`},
		{"complex, which JSON refuses", complex(1, 2), "(1+2i)"},
		{"map with a value that JSON refuses", map[string]any{"a": math.NaN()}, "map[a:NaN]"},
		{"float32 in an array", []any{float32(0.1)}, "[0.1]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			assert.Equal(t, c.want, wire.Text(c.value))
		})
	}
}

func TestTextHeaders(t *testing.T) {
	t.Parallel()
	inner, body := []any{amqp.Table{"count": int64(1)}}, []byte("raw")
	headers := amqp.Table{"s": "text", "n": int32(5), "death": inner, "raw": body, "none": nil}
	got := wire.TextHeaders(headers)
	assert.Equal(t, amqp.Table{
		"s": "text", "n": "5", "death": `[{"count":1}]`, "raw": "cmF3", "none": "null",
	}, got)
	assert.Equal(t, amqp.Table{
		"s": "text", "n": int32(5), "death": []any{amqp.Table{"count": int64(1)}},
		"raw": []byte("raw"), "none": nil,
	}, headers, "the input is changed")

	got["new"] = "x"
	got["s"] = "changed"
	inner[0].(amqp.Table)["count"] = int64(2)
	body[0] = 'X'
	assert.NotContains(t, headers, "new")
	assert.Equal(t, "text", headers["s"])
	assert.Equal(t, `[{"count":1}]`, got["death"], "the copy shares memory with the input")
	assert.Equal(t, "cmF3", got["raw"], "the copy shares memory with the input")
}

func TestTextHeadersOfNoneCanBeWrittenTo(t *testing.T) {
	t.Parallel()
	got := wire.TextHeaders(nil)
	assert.Empty(t, got)
	assert.NotPanics(t, func() { got["k"] = "v" })
}

func FuzzText(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{3, 1, 'a', 13, 255, 1, 2, 3, 4, 1, 'b', 17, 4, 11, 0x7f, 0xc0, 0, 0})
	for seed := range uint64(8) {
		f.Add(wiretest.Random(seed, 400).Data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		g := &wiretest.Tables{Data: data}
		headers := g.Table(5)
		before := wiretest.Dump(headers)
		got := wire.TextHeaders(headers)
		if after := wiretest.Dump(headers); after != before {
			t.Errorf("input changed from %s to %s", before, after)
		}
		if len(got) != len(headers) {
			t.Errorf("%d headers of %d", len(got), len(headers))
		}
		for key, value := range headers {
			text, ok := got[key].(string)
			if !ok || text != wire.Text(value) {
				t.Errorf("header %q is %#v, want %q", key, got[key], wire.Text(value))
			}
			switch value.(type) {
			case nil, amqp.Table, []any:
				if !json.Valid([]byte(text)) {
					t.Errorf("header %q is no JSON: %q", key, text)
				}
			}
		}
		wire.Text(g.Foreign())
		clone := wire.Clone(&amqp.Delivery{Headers: headers})
		if wiretest.Dump(clone.Headers) != before {
			t.Errorf("clone of %s is %s", before, wiretest.Dump(clone.Headers))
		}
	})
}
