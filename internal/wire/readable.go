package wire

import "encoding/binary"

const (
	// maxDepth is how deep containers may nest, and maxElements how many values one may hold, so
	// that amqp091-go can read them. Brokers take more (F26).
	maxDepth    = 32
	maxElements = 8192
)

// ReplaceUnreadable looks at the payload of a content header frame. It returns false if
// amqp091-go can read the headers. Unreadable headers would end the connection. In that case it
// returns another payload, in which one header named key takes their place. Its value is their
// bytes as they were sent, limited to the first limit bytes.
func ReplaceUnreadable(payload []byte, key string, limit int) ([]byte, bool) {
	start, end, ok := headersIn(payload)
	if !ok || readableTable(payload[start+4:end], 0) {
		return nil, false
	}
	table := payload[start+4 : end]
	table = table[:min(len(table), limit)]
	out := make([]byte, 0, len(payload)+len(key)+10)
	out = append(out, payload[:start]...)
	out = binary.BigEndian.AppendUint32(out, uint32(1+len(key)+1+4+len(table)))
	out = append(out, byte(len(key)))
	out = append(out, key...)
	out = append(out, 'x')
	out = binary.BigEndian.AppendUint32(out, uint32(len(table)))
	out = append(out, table...)
	return append(out, payload[end:]...), true
}

// headersIn returns where the header table begins, with its length, and where it ends. It returns
// false if there is no table.
func headersIn(payload []byte) (start, end int, ok bool) {
	const flagsAt = 2 + 2 + 8 // behind class, weight and body size
	if len(payload) < flagsAt+2 {
		return 0, 0, false
	}
	flags := binary.BigEndian.Uint16(payload[flagsAt:])
	at := flagsAt + 2
	for _, short := range []uint16{flagContentType, flagContentEncoding} {
		if flags&short == 0 {
			continue
		}
		if at >= len(payload) {
			return 0, 0, false
		}
		at += 1 + int(payload[at])
	}
	if flags&flagHeaders == 0 || at+4 > len(payload) {
		return 0, 0, false
	}
	size := int(binary.BigEndian.Uint32(payload[at:]))
	if size > len(payload)-at-4 {
		return 0, 0, false
	}
	return at, at + 4 + size, true
}

// readableTable reports whether amqp091-go can read these names and values.
func readableTable(b []byte, depth int) bool {
	for n := 0; len(b) > 0; n++ {
		name := 1 + int(b[0])
		if n >= maxElements || name >= len(b) {
			return false
		}
		size, ok := readableValue(b[name:], depth)
		if !ok {
			return false
		}
		b = b[name+size:]
	}
	return true
}

func readableArray(b []byte, depth int) bool {
	for n := 0; len(b) > 0; n++ {
		size, ok := readableValue(b, depth)
		if !ok || n >= maxElements {
			return false
		}
		b = b[size:]
	}
	return true
}

// readableValue returns how many bytes the first value in b takes, with its type. It returns false
// if amqp091-go cannot read the value.
func readableValue(b []byte, depth int) (size int, ok bool) {
	switch b[0] {
	case 'V':
		size = 1
	case 't', 'B', 'b':
		size = 1 + 1
	case 's', 'u':
		size = 1 + 2
	case 'I', 'i', 'f':
		size = 1 + 4
	case 'D':
		size = 1 + 1 + 4
	case 'l', 'd', 'T':
		size = 1 + 8
	case 'S', 'x', 'A', 'F':
		if len(b) < 5 {
			return 0, false
		}
		size = 1 + 4 + int(binary.BigEndian.Uint32(b[1:]))
	default:
		return 0, false
	}
	if size > len(b) {
		return 0, false
	}
	switch b[0] {
	case 'A':
		ok = depth < maxDepth && readableArray(b[5:size], depth+1)
	case 'F':
		ok = depth < maxDepth && readableTable(b[5:size], depth+1)
	default:
		ok = true
	}
	return size, ok
}
