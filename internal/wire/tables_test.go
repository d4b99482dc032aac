package wire_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// tables makes header tables out of bytes: out of random ones, or out of those
// of a fuzzer. When the bytes have run out everything is zero.
type tables struct{ data []byte }

func randomTables(seed uint64, size int) *tables {
	random := rand.New(rand.NewPCG(seed, seed))
	data := make([]byte, size)
	for i := range data {
		data[i] = byte(random.Uint32())
	}
	return &tables{data}
}

func (g *tables) byte() byte {
	if len(g.data) == 0 {
		return 0
	}
	b := g.data[0]
	g.data = g.data[1:]
	return b
}

func (g *tables) uint64() (n uint64) {
	for range 8 {
		n = n<<8 | uint64(g.byte())
	}
	return n
}

// text returns bytes that need not be UTF-8.
func (g *tables) text(limit int) string {
	n := min(int(g.byte()), limit, len(g.data))
	s := string(g.data[:n])
	g.data = g.data[n:]
	return s
}

func (g *tables) table(depth int) amqp.Table {
	t := amqp.Table{}
	for range g.byte() % 6 {
		t[g.text(255)] = g.value(depth)
	}
	return t
}

// value is of a type that amqp091-go can send.
func (g *tables) value(depth int) any {
	kind := g.byte() % 18
	if depth == 0 && kind >= 16 {
		kind = 0
	}
	switch kind {
	case 0:
		return g.text(255)
	case 1:
		return []byte(g.text(255))
	case 2:
		return g.byte()%2 == 0
	case 3:
		return g.byte()
	case 4:
		return int8(g.byte())
	case 5:
		return int16(g.uint64())
	case 6:
		return uint16(g.uint64())
	case 7:
		return int32(g.uint64())
	case 8:
		return uint32(g.uint64())
	case 9:
		return int(int32(g.uint64()))
	case 10:
		return int64(g.uint64())
	case 11:
		return math.Float32frombits(uint32(g.uint64()))
	case 12:
		return math.Float64frombits(g.uint64())
	case 13:
		return amqp.Decimal{Scale: g.byte(), Value: int32(g.uint64())}
	case 14:
		return time.Unix(int64(g.uint64()), 0)
	case 15:
		return nil
	case 16:
		return g.table(depth - 1)
	default:
		list := make([]any, g.byte()%6)
		for i := range list {
			list[i] = g.value(depth - 1)
		}
		return list
	}
}

// foreign is of a type that never comes off the wire.
func (g *tables) foreign() any {
	switch g.byte() % 8 {
	case 0:
		return uint64(g.uint64())
	case 1:
		return uint(g.uint64())
	case 2:
		return map[string]any{g.text(9): g.value(1)}
	case 3:
		return struct{ A any }{g.value(1)}
	case 4:
		return make(chan int)
	case 5:
		return math.Float64frombits
	case 6:
		return []string{g.text(9)}
	default:
		return amqp.Table(nil)
	}
}

// dump writes a table so that two can be compared, NaN included; maps are sorted.
func dump(v any) string { return fmt.Sprintf("%#v", v) }
