package wire_test

import (
	"math"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"

	"github.com/millpond-go/millpond/internal/wire"
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
		{"table in array in table", amqp.Table{"l": []any{amqp.Table{"k": []byte("hi")}}}, `{"l":[{"k":"aGk="}]}`},
		{
			"what JSON cannot hold",
			[]any{math.NaN(), math.Inf(-1), float32(math.Inf(1)), time.Unix(0, 0), []byte{1}},
			`["NaN","-Inf","+Inf","1970-01-01T00:00:00Z","AQ=="]`,
		},
		{"decimals in an array", []any{amqp.Decimal{Scale: 1, Value: -15}, amqp.Decimal{Scale: 3, Value: 5}}, `[-1.5,0.005]`},
		{"floats in an array", []any{0.1, 1e21, 2.0}, `[0.1,1e+21,2]`},
		{"string in an array that is not UTF-8", []any{"a\xffb"}, "[\"a\\ufffdb\"]"},
		{
			"death of a message",
			[]any{amqp.Table{"count": int64(3), "reason": "expired", "routing-keys": []any{"q"}, "time": time.Unix(60, 0)}},
			`[{"count":3,"reason":"expired","routing-keys":["q"],"time":"1970-01-01T00:01:00Z"}]`,
		},
		{"type that never comes off the wire", []string{"a"}, `["a"]`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			assert.Equal(t, c.want, wire.Text(c.value))
		})
	}
}

func TestTextOfWhatJSONRefuses(t *testing.T) {
	t.Parallel()
	assert.Equal(t, "(1+2i)", wire.Text(complex(1, 2)))
	assert.Equal(t, "map[a:NaN]", wire.Text(map[string]any{"a": math.NaN()}))
}

func TestFloat32InAnArrayReadsLikeOneOutsideIt(t *testing.T) {
	t.Parallel()
	assert.Equal(t, "0.1", wire.Text(float32(0.1)))
	assert.Equal(t, "[0.1]", wire.Text([]any{float32(0.1)}))
}

func TestTextHeaders(t *testing.T) {
	t.Parallel()
	inner := []any{amqp.Table{"count": int64(1)}}
	body := []byte("raw")
	headers := amqp.Table{"s": "text", "n": int32(5), "death": inner, "raw": body, "none": nil}

	got := wire.TextHeaders(headers)

	assert.Equal(t, amqp.Table{"s": "text", "n": "5", "death": `[{"count":1}]`, "raw": "cmF3", "none": "null"}, got)
	assert.Equal(t, amqp.Table{
		"s": "text", "n": int32(5), "death": []any{amqp.Table{"count": int64(1)}}, "raw": []byte("raw"), "none": nil,
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
