package wire_test

import (
	"encoding/json"
	"maps"
	"math"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"

	"github.com/millpond-go/millpond/internal/wire"
	"github.com/millpond-go/millpond/internal/wire/wiretest"
)

func keepAll(string) bool { return false }

// full returns a delivery in which nothing is zero.
func full() amqp.Delivery {
	list := []any{amqp.Table{"k": []byte("v")}}
	return amqp.Delivery{
		Acknowledger:    acker{},
		Headers:         amqp.Table{"tenant": "a", "n": int32(5), "list": list},
		ContentType:     "application/json",
		ContentEncoding: "gzip",
		DeliveryMode:    amqp.Transient,
		Priority:        7,
		CorrelationId:   "corr",
		ReplyTo:         "answers",
		Expiration:      "60000",
		MessageId:       "id-1",
		Timestamp:       time.Unix(1700000000, 0),
		Type:            "order.placed",
		UserId:          "guest",
		AppId:           "shop",
		ConsumerTag:     "tag",
		MessageCount:    3,
		DeliveryTag:     4,
		Redelivered:     true,
		Exchange:        "orders",
		RoutingKey:      "eu.orders",
		Body:            []byte("body"),
	}
}

type acker struct{}

func (acker) Ack(uint64, bool) error        { return nil }
func (acker) Nack(uint64, bool, bool) error { return nil }
func (acker) Reject(uint64, bool) error     { return nil }

func TestPublishingKeepsTheDelivery(t *testing.T) {
	t.Parallel()
	d := full()
	got := wire.Publishing(&d, keepAll, map[string]string{"note": "1"})
	headers := full().Headers
	headers["note"] = "1"
	assert.Equal(t, amqp.Publishing{
		Headers:         headers,
		ContentType:     "application/json",
		ContentEncoding: "gzip",
		DeliveryMode:    amqp.Persistent,
		Priority:        7,
		CorrelationId:   "corr",
		ReplyTo:         "answers",
		Expiration:      "", // it would shorten the wait
		MessageId:       "id-1",
		Timestamp:       time.Unix(1700000000, 0),
		Type:            "order.placed",
		UserId:          "", // the broker refuses another user's
		AppId:           "shop",
		Body:            []byte("body"),
	}, got)
	got.Headers["more"] = "x"
	assert.Equal(t, full(), d, "the delivery is changed")
}

func TestPublishingStripsHeadersOfTheBroker(t *testing.T) {
	t.Parallel()
	for stripped, headers := range map[bool][]string{
		true: {
			"x-death", "x-first-death-exchange", "x-first-death-queue", "x-first-death-reason",
			"x-last-death-exchange", "x-last-death-queue", "x-last-death-reason",
			"x-delivery-count", "x-acquired-count", "CC", "BCC",
		},
		// To the broker, "cc" is another name.
		false: {"cc", "x-tenant", "x-match", "traceparent", ""},
	} {
		for _, header := range headers {
			arrived := func() amqp.Table { return amqp.Table{header: "v", "other": int64(1)} }
			d, want := amqp.Delivery{Headers: arrived()}, arrived()
			if stripped {
				delete(want, header)
			}
			assert.Equal(t, want, wire.Publishing(&d, keepAll, nil).Headers)
			assert.Equal(t, arrived(), d.Headers, "the delivery is changed")
		}
	}
}

func TestPublishingOfADeliveryWithoutHeadersCanCarryMore(t *testing.T) {
	t.Parallel()
	got := wire.Publishing(&amqp.Delivery{}, keepAll, nil)
	assert.Empty(t, got.Headers)
	assert.NotPanics(t, func() { got.Headers["nonce"] = "1" })
	assert.Equal(t, amqp.Persistent, got.DeliveryMode)
}

// A republished message is the delivery as it arrived, except for the named headers and properties.
func FuzzPublishing(f *testing.F) {
	f.Add([]byte{}, "", "", "", []byte(nil), byte(0))
	f.Add([]byte{1, 1, 'a', 0, 1, 'b'}, "x-death", "CC", "\xff", []byte("body"), byte(1))
	f.Add([]byte{1, 1, 'a', 17, 2, 15, 15}, "BCC", "x-delivery-count", strings.Repeat("i", 255),
		[]byte{0}, byte(255))
	f.Fuzz(func(t *testing.T, data []byte, key, other, property string, body []byte, small byte) {
		g := &wiretest.Tables{Data: data}
		headers := g.Table(5)
		headers[key] = g.Value(5)
		headers[other] = property
		headers["note-old"] = "old"
		d := amqp.Delivery{
			Headers: headers, Body: body, DeliveryMode: small, Priority: small,
			MessageId: property, CorrelationId: property, UserId: property, Expiration: property,
			Type: property, Timestamp: time.Unix(int64(small), 0), Redelivered: small > 9,
		}
		before := wiretest.Dump(headers)
		drop := func(key string) bool { return strings.HasPrefix(key, "note-") }
		got := wire.Publishing(&d, drop, map[string]string{"note-new": "new"})
		if after := wiretest.Dump(headers); after != before {
			t.Errorf("input changed from %s to %s", before, after)
		}
		assert.NoError(t, got.Headers.Validate(), "cannot be sent")
		assert.False(t, got.UserId != "" || got.Expiration != "" || got.DeliveryMode != amqp.Persistent,
			"user %q, expiration %q, mode %d", got.UserId, got.Expiration, got.DeliveryMode)
		if string(got.Body) != string(body) || got.MessageId != property ||
			got.Priority != small || got.Type != property {
			t.Errorf("changed on the way: %+v", got)
		}
		want := maps.Clone(headers)
		for _, key := range []string{
			"x-death", "x-first-death-exchange", "x-first-death-queue", "x-first-death-reason",
			"x-last-death-exchange", "x-last-death-queue", "x-last-death-reason",
			"x-delivery-count", "x-acquired-count", "CC", "BCC",
		} {
			delete(want, key)
		}
		maps.DeleteFunc(want, func(key string, _ any) bool { return drop(key) })
		want["note-new"] = "new"
		assert.Equal(t, wiretest.Dump(want), wiretest.Dump(got.Headers))
		size := wire.PropertiesSize(&got)
		got.Headers["one-more"] = property
		more := wire.PropertiesSize(&got)
		assert.False(t, more < size+len(property) && headers["one-more"] == nil,
			"%d bytes, with one more header %d", size, more)
	})
}

func TestCloneSharesNothing(t *testing.T) {
	t.Parallel()
	d := full()
	c := wire.Clone(&d)
	want := full()
	want.Acknowledger = nil
	assert.Equal(t, want, c)

	c.Body[0] = 'X'
	c.Headers["tenant"] = "b"
	c.Headers["new"] = true
	table := c.Headers["list"].([]any)[0].(amqp.Table)
	table["k"].([]byte)[0] = 'X'
	table["new"] = true
	c.Headers["list"].([]any)[0] = nil
	assert.Equal(t, full(), d, "the delivery is changed through its clone")
}

func TestCloneCannotBeAcked(t *testing.T) {
	t.Parallel()
	d := full()
	c := wire.Clone(&d)
	assert.Error(t, c.Ack(false))
	assert.Error(t, c.Nack(false, true))
	assert.Error(t, c.Reject(true))
	assert.NoError(t, d.Ack(false))
}

func TestCloneKeepsNilValues(t *testing.T) {
	t.Parallel()
	d := amqp.Delivery{Headers: amqp.Table{
		"t": amqp.Table(nil), "l": []any(nil), "b": []byte(nil), "n": nil,
	}}
	assert.Equal(t, d, wire.Clone(&d))
	assert.Nil(t, wire.Clone(&amqp.Delivery{}).Headers)
	assert.Nil(t, wire.Clone(&amqp.Delivery{}).Body)
}

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
		{"true", true, "true"},
		{"int", int(-7), "-7"},
		{"int64", int64(math.MinInt64), "-9223372036854775808"},
		{"uint64", uint64(math.MaxUint64), "18446744073709551615"},
		{"float32", float32(0.1), "0.1"},
		{"float64, whole", 3.0, "3"},
		{"float64, smallest", math.SmallestNonzeroFloat64, "5e-324"},
		{"not a number", math.NaN(), "NaN"},
		{"infinity", math.Inf(1), "+Inf"},
		{"decimal", amqp.Decimal{Scale: 2, Value: 12345}, "123.45"},
		{"decimal with as many digits as scale", amqp.Decimal{Scale: 2, Value: 45}, "0.45"},
		{"decimal with fewer digits than scale", amqp.Decimal{Scale: 4, Value: 45}, "0.0045"},
		{"negative decimal with fewer digits than scale", amqp.Decimal{Scale: 3, Value: -5}, "-0.005"},
		{"decimal, zero", amqp.Decimal{Scale: 2}, "0.00"},
		{"decimal, least", amqp.Decimal{Scale: 10, Value: math.MinInt32}, "-0.2147483648"},
		{"time", time.Date(2024, 5, 6, 7, 8, 9, 0, zone), "2024-05-06T05:08:09Z"},
		{"nil", nil, "null"},
		{"table", amqp.Table{"b": int32(2), "a": "x"}, `{"a":"x","b":2}`},
		{"nil table", amqp.Table(nil), `{}`},
		{"array", []any{"a", int64(1), true, nil}, `["a",1,true,null]`},
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
	} {
		assert.Equal(t, c.want, wire.Text(c.value), c.name)
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
		assert.Equal(t, len(headers), len(got), "%d headers of %d", len(got), len(headers))
		for key, value := range headers {
			text, ok := got[key].(string)
			assert.False(t, !ok || text != wire.Text(value),
				"header %q is %#v, want %q", key, got[key], wire.Text(value))
			switch value.(type) {
			case nil, amqp.Table, []any:
				assert.True(t, json.Valid([]byte(text)), "header %q is no JSON: %q", key, text)
			}
		}
		wire.Text(g.Foreign())
		clone := wire.Clone(&amqp.Delivery{Headers: headers})
		assert.Equal(t, before, wiretest.Dump(clone.Headers),
			"clone of %s is %s", before, wiretest.Dump(clone.Headers))
	})
}
