package wire_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/millpond-go/millpond/internal/testing/frame"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/internal/wire"
	"github.com/millpond-go/millpond/internal/wire/wiretest"
)

// original is amqp091-go, which has opened channel 1 to this end of the connection and consumes.
type original struct {
	net.Conn
	client     *amqp.Connection
	ch         *amqp.Channel
	deliveries <-chan amqp.Delivery
}

// frameMax is so small that a fuzzer finds messages of several frames.
const frameMax = 4096

func talk(t testing.TB) *original {
	t.Helper()
	client, server := net.Pipe()
	o := &original{Conn: server}
	var handshake sync.WaitGroup
	handshake.Go(func() {
		_, _ = io.ReadFull(server, make([]byte, len("AMQP0091")))
		o.say(0, frame.ConnectionStart, []byte{0, 9}, make([]byte, 4), frame.LongString("PLAIN"),
			frame.LongString("en_US"))
		o.hear(frame.ConnectionStartOk)
		o.say(0, frame.ConnectionTune, []byte{0, 0, 0, 0, frameMax >> 8, 0, 0, 0})
		o.hear(frame.ConnectionOpen)
		o.say(0, frame.ConnectionOpenOk, frame.Short(""))
		o.hear(frame.ChannelOpen)
		o.say(1, frame.ChannelOpenOk, frame.LongString(""))
		o.hear(frame.BasicConsume)
		o.say(1, frame.BasicConsumeOk, frame.Short("tag"))
	})
	var err error
	o.client, err = amqp.Open(client, amqp.Config{
		SASL: []amqp.Authentication{&amqp.PlainAuth{}}, FrameSize: frameMax, Heartbeat: -1,
	})
	require.NoError(t, err)
	o.ch, err = o.client.Channel()
	require.NoError(t, err)
	o.deliveries, err = o.ch.Consume("queue", "tag", false, false, false, false, nil)
	require.NoError(t, err)
	handshake.Wait()
	return o
}

func (o *original) say(channel uint16, m frame.Method, args ...[]byte) {
	_, _ = o.Write(frame.NewMethod(channel, m, args...))
}

func (o *original) hear(m frame.Method) {
	for {
		if f, err := frame.Read(o); err != nil || f.Method() == m {
			return
		}
	}
}

func (o *original) end() {
	_ = o.Close()
	_ = o.client.Close()
}

// published returns the frames with which amqp091-go publishes.
func (o *original) published(
	t *testing.T, exchange, key string, mandatory bool, msg amqp.Publishing,
) (frames []frame.Frame) {
	t.Helper()
	var sending sync.WaitGroup
	sending.Go(func() { assert.NoError(t, o.ch.Publish(exchange, key, mandatory, false, msg)) })
	for size := -1; size != 0; {
		f, err := frame.Read(o)
		require.NoError(t, err)
		frames = append(frames, f)
		switch f.Kind() {
		case frame.KindHeader:
			size = len(msg.Body)
		case frame.KindBody:
			size -= len(f.Payload())
		}
	}
	sending.Wait()
	return frames
}

// delivered returns what amqp091-go reads from a delivery, and its error.
func (o *original) delivered(args, header, body []byte) (amqp.Delivery, error) {
	go func() {
		o.say(1, frame.BasicDeliver, args)
		_, _ = o.Write(frame.New(frame.KindHeader, 1, header))
		for len(body) > 0 {
			piece := body[:min(len(body), frameMax-8)]
			body = body[len(piece):]
			_, _ = o.Write(frame.New(frame.KindBody, 1, piece))
		}
	}()
	d, open := <-o.deliveries
	if !open {
		return d, errors.New("the connection has ended")
	}
	return d, nil
}

// message makes a message from bytes.
func message(g *wiretest.Tables) (msg amqp.Publishing, exchange, key string) {
	set, more := g.Byte(), g.Byte()
	text := func(bit byte, from *byte) string {
		if *from&bit == 0 {
			return ""
		}
		return g.Text(255)
	}
	msg.ContentType, msg.ContentEncoding = text(1, &set), text(2, &set)
	msg.CorrelationId, msg.ReplyTo = text(4, &set), text(8, &set)
	msg.Expiration, msg.MessageId = text(16, &set), text(32, &set)
	msg.Type, msg.UserId, msg.AppId = text(64, &set), text(128, &set), text(1, &more)
	exchange, key = text(2, &more), text(4, &more)
	if more&8 > 0 {
		msg.DeliveryMode, msg.Priority = g.Byte(), g.Byte()
	}
	if more&16 > 0 {
		msg.Timestamp = time.Unix(int64(g.Uint64()), 0)
	}
	if more&32 > 0 {
		msg.Headers = g.Table(3)
	}
	body := int(g.Byte()) * int(g.Byte()) / 4
	msg.Body = bytes.Repeat([]byte{more}, body)
	return msg, exchange, key
}

// Given a message, when it is published, then the frames are those that amqp091-go writes. It
// writes the entries of a table in any order, so a header frame may differ in this order alone.
func FuzzPublishIsThatOfAmqp091(f *testing.F) {
	for seed := range uint64(300) {
		f.Add(wiretest.Random(seed, 600).Data, seed%2 == 0)
	}
	o := talk(f)
	f.Cleanup(o.end)
	f.Fuzz(func(t *testing.T, data []byte, mandatory bool) {
		msg, exchange, key := message(&wiretest.Tables{Data: data})
		if msg.Headers.Validate() != nil || wire.PropertiesSize(&msg) > frameMax-8 {
			t.Skip("not published")
		}
		own := wire.AppendPublish(nil, 1, frameMax, exchange, key, mandatory, &msg)
		for _, want := range o.published(t, exchange, key, mandatory, msg) {
			next, rest, _ := frame.Next(own)
			own = rest
			got := frame.Frame(next)
			require.Equal(t, want.String(), got.String())
			if want.Kind() != frame.KindHeader {
				require.Equal(t, want, got)
				continue
			}
			require.Len(t, got, len(want))
			require.Len(t, want.Payload(), wire.PropertiesSize(&msg))
			var a, b amqp.Delivery
			sizeA, okA := wire.ReadProperties(want.Payload(), &a)
			sizeB, okB := wire.ReadProperties(got.Payload(), &b)
			require.True(t, okA && okB)
			require.Equal(t, sizeA, sizeB)
			same(t, a, b)
		}
		require.Empty(t, own)
		msg.Headers = nil // whose order changes
		for _, size := range []int{0, frameMax} {
			own = wire.AppendPublish(nil, 1, size, exchange, key, mandatory, &msg)
			pieces := wire.PublishPieces(1, size, exchange, key, mandatory, &msg)
			require.Equal(t, own, bytes.Join(pieces, nil))
		}
	})
}

// same compares deliveries, in which a float may be no number.
func same(t *testing.T, want, got amqp.Delivery) {
	t.Helper()
	want.Acknowledger, got.Acknowledger = nil, nil
	require.Equal(t, wiretest.Dump(want.Headers), wiretest.Dump(got.Headers)) // with NaN
	want.Headers, got.Headers = nil, nil
	if len(want.Body) == 0 && len(got.Body) == 0 {
		want.Body, got.Body = nil, nil
	}
	require.Equal(t, want, got)
}

// Given the bytes of a delivery, when they are read, then the result is that of amqp091-go.
func FuzzDeliveryIsThatOfAmqp091(f *testing.F) {
	for seed := range uint64(8) {
		msg, exchange, key := message(wiretest.Random(seed, 600))
		if msg.Headers.Validate() != nil {
			continue
		}
		frames := wire.AppendPublish(nil, 1, 0, exchange, key, true, &msg)
		_, rest, _ := frame.Next(frames)
		header, _, _ := frame.Next(rest)
		f.Add([]byte(exchange), []byte(key), seed, frame.Frame(header).Payload(), len(msg.Body))
	}
	var o *original
	again := func(t testing.TB) {
		o = talk(t)
		go func(from net.Conn) { _, _ = io.Copy(io.Discard, from) }(o) // it may say goodbye
	}
	again(f)
	f.Cleanup(func() { o.end() })
	f.Fuzz(func(t *testing.T, exchange, key []byte, tag uint64, header []byte, size int) {
		if len(exchange) > 255 || len(key) > 255 || len(header) < 12 || len(header) > frameMax-8 {
			t.Skip("no such frame")
		}
		if size < 0 || size > 3*frameMax {
			t.Skip("too large")
		}
		header = slices.Concat(header[:4], frame.Long(uint64(size)), header[12:])
		if other, replaced := wire.ReplaceUnreadable(header, "raw", 100); replaced {
			if header = other; len(header) > frameMax-8 {
				t.Skip("too large")
			}
		}
		args := bytes.Join([][]byte{
			frame.Short("tag"), frame.Long(tag),
			{byte(tag)},
			frame.Short(string(exchange)), frame.Short(string(key)),
		}, nil)
		body := bytes.Repeat([]byte{7}, size)
		want, err := o.delivered(args, header, body)
		if err != nil {
			o.end()
			again(t)
		}
		got := amqp.Delivery{ConsumerTag: "last", Exchange: string(exchange)}
		require.True(t, wire.ReadDeliver(args, &got))
		read, ok := wire.ReadProperties(header, &got)
		require.Equal(t, err == nil, ok)
		if !ok {
			return
		}
		require.EqualValues(t, size, read)
		got.Body = body
		same(t, want, got)
	})
}

// Arguments of a delivery that end too early are refused.
func TestDeliverThatEndsTooEarly(t *testing.T) {
	t.Parallel()
	args := bytes.Join([][]byte{
		frame.Short("tag"), frame.Long(7), {1}, frame.Short("exchange"), frame.Short("key"),
	}, nil)
	for n := range args {
		var d amqp.Delivery
		assert.False(t, wire.ReadDeliver(args[:n], &d), n)
	}
	var d amqp.Delivery
	require.True(t, wire.ReadDeliver(args, &d))
	assert.Equal(t, amqp.Delivery{
		ConsumerTag: "tag", DeliveryTag: 7, Redelivered: true, Exchange: "exchange", RoutingKey: "key",
	}, d)
}

func TestAckIsThatOfAmqp091(t *testing.T) {
	t.Parallel()
	o := talk(t)
	defer o.end()
	for _, multiple := range []bool{true, false} {
		go func() { assert.NoError(t, o.ch.Ack(1<<40+5, multiple)) }()
		want, err := frame.Read(iotest.OneByteReader(o))
		require.NoError(t, err)
		assert.Equal(t, []byte(want), wire.AppendAck(nil, 1, 1<<40+5, multiple))
	}
}

// A publish is written without an allocation, and a delivery read with one for each header, its
// map, and one for all texts.
func TestFramesAllocateLittle(t *testing.T) {
	msg := amqp.Publishing{
		Headers:   amqp.Table{"a": "1", "b": int64(2), "c": amqp.Table{"d": true}},
		MessageId: "id", Body: make([]byte, 1000),
	}
	buffer := make([]byte, 0, 4096)
	assert.Zero(t, testing.AllocsPerRun(100, func() {
		wire.AppendPublish(buffer, 1, frameMax, "", "queue", true, &msg)
	}))
	msg.Headers = amqp.Table{"a": "1", "b": "2"}
	_, rest, _ := frame.Next(wire.AppendPublish(nil, 1, frameMax, "", "queue", true, &msg))
	header, _, _ := frame.Next(rest)
	var d amqp.Delivery
	assert.LessOrEqual(t, testing.AllocsPerRun(100, func() {
		wire.ReadProperties(frame.Frame(header).Payload(), &d)
	}), 5.0)
}

func TestMain(m *testing.M) {
	testbroker.Main(m, func() error { return goleak.Find() })
}
