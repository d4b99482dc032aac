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

// scalars are the types of single values that amqp091-go can send.
var scalars = []func(*Tables) any{
	func(g *Tables) any { return g.Text(255) },
	func(g *Tables) any { return []byte(g.Text(255)) },
	func(g *Tables) any { return g.Byte()%2 == 0 },
	func(g *Tables) any { return g.Byte() },
	func(g *Tables) any { return int8(g.Byte()) },
	func(g *Tables) any { return int16(g.Uint64()) },
	func(g *Tables) any { return uint16(g.Uint64()) },
	func(g *Tables) any { return int32(g.Uint64()) },
	func(g *Tables) any { return uint32(g.Uint64()) },
	func(g *Tables) any { return int(int32(g.Uint64())) },
	func(g *Tables) any { return int64(g.Uint64()) },
	func(g *Tables) any { return math.Float32frombits(uint32(g.Uint64())) },
	func(g *Tables) any { return math.Float64frombits(g.Uint64()) },
	func(g *Tables) any { return amqp.Decimal{Scale: g.Byte(), Value: int32(g.Uint64())} },
	func(g *Tables) any { return time.Unix(int64(g.Uint64()), 0) },
	func(*Tables) any { return nil },
}

// Value returns a value of a type that amqp091-go can send: a scalar, a table or a list.
func (g *Tables) Value(depth int) any {
	kind := int(g.Byte()) % (len(scalars) + 2)
	switch {
	case kind < len(scalars):
		return scalars[kind](g)
	case depth == 0:
		return g.Text(255)
	case kind == len(scalars):
		return g.Table(depth - 1)
	}
	list := make([]any, g.Byte()%6)
	for i := range list {
		list[i] = g.Value(depth - 1)
	}
	return list
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
