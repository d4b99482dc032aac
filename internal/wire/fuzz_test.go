package wire_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/wire"
	"github.com/millpond-go/millpond/internal/wire/wiretest"
)

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

// Whatever arrives, what is republished is that, but for what is named.
func FuzzPublishing(f *testing.F) {
	f.Add([]byte{}, "", "", "", []byte(nil), byte(0))
	f.Add([]byte{1, 1, 'a', 0, 1, 'b'}, "x-death", "CC", "\xff", []byte("body"), byte(1))
	f.Add([]byte{1, 1, 'a', 17, 2, 15, 15}, "BCC", "x-delivery-count", strings.Repeat("i", 255), []byte{0}, byte(255))
	f.Fuzz(func(t *testing.T, data []byte, key, other, property string, body []byte, small byte) {
		g := &wiretest.Tables{Data: data}
		headers := g.Table(5)
		headers[key] = g.Value(5)
		headers[other] = property
		headers["note-old"] = "old"
		d := amqp.Delivery{
			Headers: headers, Body: body, DeliveryMode: small, Priority: small, MessageId: property, CorrelationId: property,
			UserId: property, Expiration: property, Type: property, Timestamp: time.Unix(int64(small), 0), Redelivered: small > 9,
		}
		before := wiretest.Dump(headers)
		got := wire.Publishing(&d, func(key string) bool { return strings.HasPrefix(key, "note-") }, map[string]string{"note-new": "new"})
		if after := wiretest.Dump(headers); after != before {
			t.Errorf("input changed from %s to %s", before, after)
		}
		if err := got.Headers.Validate(); err != nil {
			t.Errorf("cannot be sent: %v", err)
		}
		if got.UserId != "" || got.Expiration != "" || got.DeliveryMode != amqp.Persistent {
			t.Errorf("user id %q, expiration %q, delivery mode %d", got.UserId, got.Expiration, got.DeliveryMode)
		}
		if string(got.Body) != string(body) || got.MessageId != property || got.Priority != small || got.Type != property {
			t.Errorf("changed on the way: %+v", got)
		}
		for key, value := range got.Headers {
			if key == "note-new" {
				continue
			}
			if wiretest.Dump(value) != wiretest.Dump(headers[key]) {
				t.Errorf("header %q was %#v, is %#v", key, headers[key], value)
			}
		}
		for _, key := range []string{"x-death", "x-delivery-count", "x-acquired-count", "CC", "BCC", "note-old"} {
			if _, there := got.Headers[key]; there {
				t.Errorf("%s is republished", key)
			}
		}
		size := wire.PropertiesSize(&got)
		got.Headers["one-more"] = property
		if more := wire.PropertiesSize(&got); more < size+len(property) && headers["one-more"] == nil {
			t.Errorf("%d bytes, with one more header %d", size, more)
		}
	})
}
