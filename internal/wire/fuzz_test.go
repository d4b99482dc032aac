package wire_test

import (
	"encoding/json"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/wire"
)

func FuzzText(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{3, 1, 'a', 13, 255, 1, 2, 3, 4, 1, 'b', 17, 4, 11, 0x7f, 0xc0, 0, 0})
	for seed := range uint64(8) {
		f.Add(randomTables(seed, 400).data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		g := &tables{data}
		headers := g.table(5)
		before := dump(headers)
		got := wire.TextHeaders(headers)
		if after := dump(headers); after != before {
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
		wire.Text(g.foreign())
		clone := wire.Clone(&amqp.Delivery{Headers: headers})
		if dump(clone.Headers) != before {
			t.Errorf("clone of %s is %s", before, dump(clone.Headers))
		}
	})
}
