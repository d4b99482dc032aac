// Package wiretest makes header tables for tests, from random bytes or from a fuzzer's bytes.
package wiretest

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Tables makes header tables from bytes. When the bytes have run out, every value is zero.
type Tables struct{ Data []byte }

// Random returns Tables of size random bytes, the same for the same seed.
func Random(seed uint64, size int) *Tables {
	random := rand.New(rand.NewPCG(seed, seed))
	data := make([]byte, size)
	for i := range data {
		data[i] = byte(random.Uint32())
	}
	return &Tables{data}
}

// Byte returns the next byte, or 0 at the end.
func (g *Tables) Byte() byte {
	if len(g.Data) == 0 {
		return 0
	}
	b := g.Data[0]
	g.Data = g.Data[1:]
	return b
}

// Uint64 returns the next eight bytes as a number.
func (g *Tables) Uint64() (n uint64) {
	for range 8 {
		n = n<<8 | uint64(g.Byte())
	}
	return n
}

// Text returns at most limit bytes, which need not be UTF-8.
func (g *Tables) Text(limit int) string {
	n := min(int(g.Byte()), limit, len(g.Data))
	s := string(g.Data[:n])
	g.Data = g.Data[n:]
	return s
}

// Table returns at most five headers, nested at most depth deep.
func (g *Tables) Table(depth int) amqp.Table {
	t := amqp.Table{}
	for range g.Byte() % 6 {
		t[g.Text(255)] = g.Value(depth)
	}
	return t
}

// Value returns a value of a type that amqp091-go can send.
func (g *Tables) Value(depth int) any {
	kind := g.Byte() % 18
	if depth == 0 && kind >= 16 {
		kind = 0
	}
	switch kind {
	case 0:
		return g.Text(255)
	case 1:
		return []byte(g.Text(255))
	case 2:
		return g.Byte()%2 == 0
	case 3:
		return g.Byte()
	case 4:
		return int8(g.Byte())
	case 5:
		return int16(g.Uint64())
	case 6:
		return uint16(g.Uint64())
	case 7:
		return int32(g.Uint64())
	case 8:
		return uint32(g.Uint64())
	case 9:
		return int(int32(g.Uint64()))
	case 10:
		return int64(g.Uint64())
	case 11:
		return math.Float32frombits(uint32(g.Uint64()))
	case 12:
		return math.Float64frombits(g.Uint64())
	case 13:
		return amqp.Decimal{Scale: g.Byte(), Value: int32(g.Uint64())}
	case 14:
		return time.Unix(int64(g.Uint64()), 0)
	case 15:
		return nil
	case 16:
		return g.Table(depth - 1)
	default:
		list := make([]any, g.Byte()%6)
		for i := range list {
			list[i] = g.Value(depth - 1)
		}
		return list
	}
}

// Foreign returns a value of a type that never comes off the wire.
func (g *Tables) Foreign() any {
	switch g.Byte() % 8 {
	case 0:
		return g.Uint64()
	case 1:
		return uint(g.Uint64())
	case 2:
		return map[string]any{g.Text(9): g.Value(1)}
	case 3:
		return struct{ A any }{g.Value(1)}
	case 4:
		return make(chan int)
	case 5:
		return math.Float64frombits
	case 6:
		return []string{g.Text(9)}
	default:
		return amqp.Table(nil)
	}
}

// Dump writes a table so that two can be compared, even with NaN in them. Maps are sorted.
func Dump(v any) string { return fmt.Sprintf("%#v", v) }
