package wire_test

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/millpond-go/millpond/internal/wire"
)

// header is the payload of a content header frame with a content type, a header table of these
// bytes, and a message id behind it.
func header(table []byte) []byte {
	b := append(make([]byte, 2+2+8), 0xa0, 0x80, 2, 'c', 't')
	b = binary.BigEndian.AppendUint32(b, uint32(len(table)))
	return append(append(b, table...), 2, 'i', 'd')
}

// container is an array or a table with these bytes.
func container(kind byte, content []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{kind}, uint32(len(content))), content...)
}

// nested is a header with containers in each other.
func nested(depth int, table bool) []byte {
	b := []byte{'V'}
	for range depth {
		if table {
			b = container('F', append([]byte{1, 'k'}, b...))
		} else {
			b = container('A', b)
		}
	}
	return append([]byte{1, 'k'}, b...)
}

// list is a header with an array of n values.
func list(n int) []byte {
	return append([]byte("\x01k"), container('A', bytes.Repeat([]byte("V"), n))...)
}

func TestReplaceUnreadable(t *testing.T) {
	t.Parallel()
	const eight = "\xff\xff\xff\xff\xff\xff\xff\xff"
	all := []byte("\x00V\x01at\x07\x01bB\xff\x01cb\xff\x01ds\x00\x01\x01eu\x00\x01" +
		"\x01fI\x00\x00\x00\x01\x01gi\x00\x00\x00\x01\x01hf\x00\x00\x00\x01" +
		"\x01iD\xc8\x00\x00\x00\x01\x01jl" + eight + "\x01kd" + eight + "\x01lT" + eight +
		"\x01mS\x00\x00\x00\x02\xff\xfe\x01nx\x00\x00\x00\x00" +
		"\x01oA\x00\x00\x00\x03Vt\x00\x01pF\x00\x00\x00\x00")
	for _, c := range []struct {
		name     string
		table    []byte
		readable bool
	}{
		{"none", nil, true},
		{"every type", all, true},
		{"arrays 32 deep", nested(32, false), true},
		{"arrays 33 deep", nested(33, false), false},
		{"tables 32 deep", nested(32, true), true},
		{"tables 33 deep", nested(33, true), false},
		{"8192 headers", bytes.Repeat([]byte("\x01kV"), 8192), true},
		{"8193 headers", bytes.Repeat([]byte("\x01kV"), 8193), false},
		{"a list of 8192", list(8192), true},
		{"a list of 8193", list(8193), false},
		{"an unsigned long", []byte("\x01kL\x00\x00\x00\x00\x00\x00\x00\x01"), false},
		{"an unknown type", []byte("\x01kZ"), false},
		{"a value cut short", []byte("\x01kl\x00"), false},
		{"a length cut short", []byte("\x01kS\x00\x00"), false},
		{"a length beyond the end", []byte("\x01kS\xff\xff\xff\xff"), false},
		{"a name without a value", []byte("\x01k"), false},
		{"a name beyond the end", []byte("\xffk"), false},
	} {
		payload := header(c.table)
		got, replaced := wire.ReplaceUnreadable(payload, "raw", 1<<20)
		assert.Equal(t, !c.readable, replaced, c.name)
		if replaced {
			assert.Equal(t, header(append([]byte("\x03raw"), container('x', c.table)...)), got, c.name)
		}
	}
}

func TestReplaceUnreadableKeepsNoMoreThanTheLimit(t *testing.T) {
	t.Parallel()
	got, replaced := wire.ReplaceUnreadable(header([]byte("\x01kZ0123456789")), "raw", 5)
	assert.True(t, replaced)
	assert.Equal(t, header(append([]byte("\x03raw"), container('x', []byte("\x01kZ01"))...)), got)
}

// The payload that takes the place of any frame can be read, and is not replaced again.
func FuzzReplaceUnreadable(f *testing.F) {
	f.Add([]byte{})
	f.Add(header(nil))
	f.Add(header([]byte("\x01kV")))
	f.Add(header([]byte("\x01kL12345678")))
	f.Add(header([]byte("\x01kS\xff\xff\xff\xff")))
	f.Add(header(nested(33, true)))
	f.Add(header(nested(2, false))[:20])
	f.Fuzz(func(t *testing.T, payload []byte) {
		before := string(payload)
		got, replaced := wire.ReplaceUnreadable(payload, "raw", 1000)
		assert.Equal(t, before, string(payload), "the input is changed")
		if !replaced {
			return
		}
		if _, again := wire.ReplaceUnreadable(got, "raw", 1000); again {
			t.Errorf("%q cannot be read either", got)
		}
		if len(got) > len(payload)+len("raw")+6 || !strings.Contains(string(got), "\x03rawx") {
			t.Errorf("%q became %q", payload, got)
		}
	})
}
