package operate_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/operate"
)

// unshown are characters that move the cursor of a terminal or change its order, or are not seen.
const unshown = "a\x1b[2J\u007f\u0085\u202e\u2066\u200b\u2028\ufeff\U000e0041b"

// everyType are headers of every type that AMQP has.
func everyType() amqp.Table {
	return amqp.Table{
		"void": nil, "bool": true, "uint8": uint8(255), "int8": int8(-7), "int16": int16(-300),
		"uint16": uint16(65535), "int32": int32(math.MinInt32), "uint32": uint32(math.MaxUint32),
		"int64": int64(math.MaxInt64), "float32": float32(0.1), "float64": math.Inf(-1), "small": 5e-324,
		"decimal": amqp.Decimal{Scale: 2, Value: -12345}, "string": "päper", "not UTF-8": "a\xff",
		"empty": "", "bytes": []byte{0, 255}, "no bytes": []byte{}, "time": time.Unix(1700000000, 0),
		"key \xff": "x", "base64:": "y", unshown: unshown, "array": []any{}, "no table": amqp.Table{},
		"table": amqp.Table{"n": int32(1), "deeper": amqp.Table{"l": []any{int64(1), "b", nil}}},
	}
}

func TestEncodeLosesNothing(t *testing.T) {
	t.Parallel()
	d := amqp.Delivery{
		Headers: everyType(), ContentType: "a/b", ContentEncoding: "gzip", DeliveryMode: 2, Priority: 9,
		CorrelationId: "c\xff", ReplyTo: "r", Expiration: "60000", MessageId: "m",
		Timestamp: time.Unix(1700000000, 0), Type: "t", UserId: "guest", AppId: "app",
		Redelivered: true, Exchange: "e", RoutingKey: unshown, Body: []byte{0, 1, 255},
	}
	line, err := operate.Encode(d)
	require.NoError(t, err)
	require.True(t, json.Valid(line))
	for _, r := range string(line) {
		require.True(t, unicode.IsPrint(r), "%U", r)
	}
	back, err := operate.Decode(line)
	require.NoError(t, err)
	require.Equal(t, d, back)

	line, err = operate.Encode(amqp.Delivery{Headers: amqp.Table{"x": float32(math.NaN())}})
	require.NoError(t, err)
	back, err = operate.Decode(line)
	require.NoError(t, err)
	require.IsType(t, float32(0), back.Headers["x"])
	require.True(t, math.IsNaN(float64(back.Headers["x"].(float32))))

	_, err = operate.Encode(amqp.Delivery{Headers: amqp.Table{"x": struct{}{}}})
	require.ErrorContains(t, err, `header "x"`)
	for _, bad := range []string{
		"", "{", `{"headers":{"x":{"type":"int8","value":999}}}`,
		`{"headers":{"x":{"type":"who"}}}`, `{"headers":{"x":{"type":"int8"}}}`,
	} {
		_, err := operate.Decode([]byte(bad))
		require.Error(t, err, bad)
	}
}

func FuzzDecode(f *testing.F) {
	line, err := operate.Encode(amqp.Delivery{Headers: everyType(), Body: []byte("x")})
	require.NoError(f, err)
	f.Add(line)
	f.Fuzz(func(t *testing.T, line []byte) {
		d, err := operate.Decode(line)
		if err != nil {
			return
		}
		again, err := operate.Encode(d)
		if err != nil {
			t.Fatalf("%s was decoded and cannot be encoded: %v", line, err)
		}
		if _, err := operate.Decode(again); err != nil {
			t.Fatalf("%s cannot be decoded again: %v", again, err)
		}
	})
}

// Messages that were exported, thrown away and imported are unchanged.
func TestExportDiscardImport(t *testing.T) {
	forTypes(t, func(t *testing.T, b *box) {
		const dead = 700
		b.die(dead, func(i int, _ *header.RetryState, m *amqp.Publishing) {
			if i == 0 {
				every := everyType()
				delete(every, "float64") // infinity: the broker closes the connection
				m.Headers["every"] = every
				m.Priority, m.Type, m.ReplyTo, m.AppId, m.ContentEncoding = 5, "t", "r", "a", "gzip"
			}
		})
		before := b.letters(operate.Filter{})
		var file bytes.Buffer
		n, err := operate.Export(&file, b.Dead(t.Context(), b.plan, operate.Filter{}, 0))
		require.NoError(t, err)
		require.Equal(t, dead, n)
		require.Equal(t, dead, b.ok(b.Discard(t.Context(), b.plan, operate.MoveOptions{})).Done)
		b.depth(b.dead, 0)

		var told int
		lines, err := b.Import(t.Context(), b.plan, bytes.NewReader(file.Bytes()),
			operate.ImportOptions{Progress: func(n int) { told = n }})
		require.NoError(t, err)
		require.Equal(t, dead, lines)
		require.Equal(t, dead, told)
		after := b.letters(operate.Filter{})
		require.Equal(t, strings.Join(ids(before), " "), strings.Join(ids(after), " "))
		want, got := before[0].Delivery, after[0].Delivery
		for _, d := range []*amqp.Delivery{&want, &got} {
			d.Redelivered, d.DeliveryTag, d.MessageCount, d.ConsumerTag = false, 0, 0, ""
			delete(d.Headers, keys.Publish)
			delete(d.Headers, "x-delivery-count")
			delete(d.Headers, "x-acquired-count")
		}
		require.Equal(t, want, got)
	})
}

// An import that stopped is continued where it was, or fails without doing
// anything twice.
func TestImportGoesOn(t *testing.T) {
	forTypes(t, func(t *testing.T, b *box) {
		var file bytes.Buffer
		for i := range 20 {
			line, err := operate.Encode(amqp.Delivery{Body: fmt.Append(nil, i)})
			require.NoError(t, err)
			if i == 12 {
				file.WriteString("no JSON\n")
			}
			file.Write(append(line, '\n'))
		}
		restore := func(options operate.ImportOptions) (int, error) {
			return b.Import(t.Context(), b.plan, bytes.NewReader(file.Bytes()), options)
		}
		lines, err := restore(operate.ImportOptions{})
		require.ErrorContains(t, err, "line 13")
		require.Equal(t, 12, lines)
		b.depth(b.dead, 12)
		lines, err = restore(operate.ImportOptions{Skip: 13})
		require.NoError(t, err)
		require.Equal(t, 21, lines)
		require.Len(t, b.bodies(b.dead, 20), 20)
		lines, err = b.Import(t.Context(), b.plan, strings.NewReader("{\"body\":\"x\"}\n"),
			operate.ImportOptions{To: b.queue + ".nowhere"})
		require.ErrorIs(t, err, topology.ErrUnroutable)
		require.Zero(t, lines)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = b.Import(ctx, b.plan, bytes.NewReader(file.Bytes()), operate.ImportOptions{})
		require.ErrorIs(t, err, context.Canceled)
	})
}

// fullSoon is a disk that is full after one write.
type fullSoon struct{ kept []byte }

func (f *fullSoon) Write(p []byte) (int, error) {
	if f.kept != nil {
		return 0, syscall.ENOSPC
	}
	f.kept = bytes.Clone(p)
	return len(p), nil
}

func (f *fullSoon) Sync() error { return nil }

// What cannot be kept is not thrown away: the second batch stays, and all behind it.
func TestDiscardKeepsWhatCannotBeKept(t *testing.T) {
	forTypes(t, func(t *testing.T, b *box) {
		b.die(450)
		file := &fullSoon{}
		done, err := b.Discard(t.Context(), b.plan, operate.MoveOptions{KeepIn: file})
		require.ErrorIs(t, err, syscall.ENOSPC)
		require.Equal(t, []int{64, 64}, []int{bytes.Count(file.kept, []byte("\n")), done.Done})
		require.Equal(t, numbered(64, 450), b.bodies(b.dead, 450-64))
	})
}
