// Package frame reads and writes the frames of AMQP 0-9-1, for tests that stand
// between a client and its broker, or in the broker's place.
package frame

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
)

// Kinds of frames.
const (
	KindMethod    = 1
	KindHeader    = 2
	KindBody      = 3
	KindHeartbeat = 8
)

const (
	headSize = 7 // kind, channel, size
	endMark  = 0xCE
	// protocolHeader is the size of the protocol header: a client sends it before its first frame, and
	// a broker of another version sends it instead of a frame.
	protocolHeader = 8
)

// Frame is one whole frame, from its kind to its end mark.
type Frame []byte

// New returns a frame.
func New(kind byte, channel uint16, payload []byte) Frame {
	f := make(Frame, 0, headSize+len(payload)+1)
	f = append(f, kind)
	f = binary.BigEndian.AppendUint16(f, channel)
	f = binary.BigEndian.AppendUint32(f, uint32(len(payload)))
	return append(append(f, payload...), endMark)
}

// NewMethod returns a method frame. Its arguments are bytes on the wire, see [Short] and [Long].
func NewMethod(channel uint16, m Method, args ...[]byte) Frame {
	payload := binary.BigEndian.AppendUint32(nil, uint32(m))
	for _, arg := range args {
		payload = append(payload, arg...)
	}
	return New(KindMethod, channel, payload)
}

// Kind returns the kind of the frame.
func (f Frame) Kind() byte { return f[0] }

// Channel returns the frame's channel; 0 is the connection.
func (f Frame) Channel() uint16 { return binary.BigEndian.Uint16(f[1:]) }

// Payload returns the frame without head and end mark.
func (f Frame) Payload() []byte { return f[headSize : len(f)-1] }

// Method returns 0 for a frame that is not a method.
func (f Frame) Method() Method {
	if f.Kind() != KindMethod || len(f.Payload()) < 4 {
		return 0
	}
	return Method(binary.BigEndian.Uint32(f.Payload()))
}

// Args returns the arguments of a method.
func (f Frame) Args() []byte { return f.Payload()[4:] }

// String returns the frame's name for a test's output.
func (f Frame) String() string {
	switch f.Kind() {
	case KindMethod:
		return f.Method().String()
	case KindHeader:
		return "header"
	case KindBody:
		return "body"
	case KindHeartbeat:
		return "heartbeat"
	default:
		return "unknown frame"
	}
}

// Read reads one frame.
func Read(from io.Reader) (Frame, error) {
	head := make([]byte, headSize)
	if _, err := io.ReadFull(from, head); err != nil {
		return nil, err
	}
	rest := make([]byte, binary.BigEndian.Uint32(head[3:])+1)
	_, err := io.ReadFull(from, rest)
	return append(head, rest...), err
}

// Next cuts the first whole frame, or the protocol header, off the data that was read so far.
// Without a whole frame it returns nil. isFrame is false for a protocol header.
func Next(data []byte) (whole, rest []byte, isFrame bool) {
	size := headSize
	switch {
	case len(data) > 0 && data[0] == 'A':
		size = protocolHeader
	case len(data) >= headSize:
		size = headSize + int(binary.BigEndian.Uint32(data[3:])) + 1
		isFrame = true
	}
	if len(data) < size || size == headSize {
		return nil, data, false
	}
	return data[:size], data[size:], isFrame
}

// Watch returns a client's connection that shows whole frames: sent before they leave, received
// when they have arrived. A function may be nil.
func Watch(conn net.Conn, sent, received func(Frame)) net.Conn {
	return &watched{Conn: conn, sent: sent, received: received}
}

type watched struct {
	net.Conn
	sent, received func(Frame)
	up, down       []byte // the part of a frame that has arrived
}

func (w *watched) Read(b []byte) (int, error) {
	n, err := w.Conn.Read(b)
	w.down = show(append(w.down, b[:n]...), w.received)
	return n, err
}

func (w *watched) Write(b []byte) (int, error) {
	w.up = show(append(w.up, b...), w.sent)
	return w.Conn.Write(b)
}

// show calls to with the whole frames of data, and returns the bytes behind them.
func show(data []byte, to func(Frame)) (rest []byte) {
	if to == nil {
		return nil
	}
	for {
		whole, rest, isFrame := Next(data)
		if whole == nil {
			return rest
		}
		if isFrame {
			to(whole)
		}
		data = rest
	}
}

// Short returns a short string, and LongString a long one.
func Short(s string) []byte { return append([]byte{byte(len(s))}, s...) }

func LongString(s string) []byte { return append(Number(uint32(len(s))), s...) }

// Long returns a number of 64 bits, and Number one of 32.
func Long(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

func Number(n uint32) []byte { return binary.BigEndian.AppendUint32(nil, n) }

// TakeShort reads a short string and returns the bytes behind it.
func TakeShort(data []byte) (s string, rest []byte) {
	n := int(data[0]) + 1
	return string(data[1:n]), data[n:]
}

// Args are the arguments of a method that are not read yet. Its methods read one each.
type Args []byte

func (a *Args) Skip(n int) { *a = (*a)[n:] }

func (a *Args) Short() (s string) {
	s, *a = TakeShort(*a)
	return s
}

func (a *Args) Byte() byte {
	defer a.Skip(1)
	return (*a)[0]
}

func (a *Args) Uint16() uint16 {
	defer a.Skip(2)
	return binary.BigEndian.Uint16(*a)
}

func (a *Args) Uint64() uint64 {
	defer a.Skip(8)
	return binary.BigEndian.Uint64(*a)
}

// Method is class<<16 | method.
type Method uint32

// The methods that tests use.
const (
	ConnectionStart     Method = 10<<16 | 10
	ConnectionStartOk   Method = 10<<16 | 11
	ConnectionTune      Method = 10<<16 | 30
	ConnectionTuneOk    Method = 10<<16 | 31
	ConnectionOpen      Method = 10<<16 | 40
	ConnectionOpenOk    Method = 10<<16 | 41
	ConnectionClose     Method = 10<<16 | 50
	ConnectionCloseOk   Method = 10<<16 | 51
	ConnectionBlocked   Method = 10<<16 | 60
	ConnectionUnblocked Method = 10<<16 | 61
	ChannelOpen         Method = 20<<16 | 10
	ChannelOpenOk       Method = 20<<16 | 11
	ChannelClose        Method = 20<<16 | 40
	ChannelCloseOk      Method = 20<<16 | 41
	ExchangeDeclare     Method = 40<<16 | 10
	ExchangeBind        Method = 40<<16 | 30
	QueueDeclare        Method = 50<<16 | 10
	QueueDeclareOk      Method = 50<<16 | 11
	QueueBind           Method = 50<<16 | 20
	QueueDelete         Method = 50<<16 | 40
	BasicQos            Method = 60<<16 | 10
	BasicConsume        Method = 60<<16 | 20
	BasicConsumeOk      Method = 60<<16 | 21
	BasicCancel         Method = 60<<16 | 30
	BasicPublish        Method = 60<<16 | 40
	BasicReturn         Method = 60<<16 | 50
	BasicDeliver        Method = 60<<16 | 60
	BasicGet            Method = 60<<16 | 70
	BasicGetOk          Method = 60<<16 | 71
	BasicGetEmpty       Method = 60<<16 | 72
	BasicAck            Method = 60<<16 | 80
	BasicReject         Method = 60<<16 | 90
	BasicNack           Method = 60<<16 | 120
	ConfirmSelect       Method = 85<<16 | 10
	ConfirmSelectOk     Method = 85<<16 | 11
)

var names = map[Method]string{
	ConnectionStart: "connection.start", ConnectionStartOk: "connection.start-ok",
	ConnectionTune: "connection.tune", ConnectionTuneOk: "connection.tune-ok",
	ConnectionOpen: "connection.open", ConnectionOpenOk: "connection.open-ok",
	ConnectionClose: "connection.close", ConnectionCloseOk: "connection.close-ok",
	ConnectionBlocked: "connection.blocked", ConnectionUnblocked: "connection.unblocked",
	ChannelOpen: "channel.open", ChannelOpenOk: "channel.open-ok",
	ChannelClose: "channel.close", ChannelCloseOk: "channel.close-ok",
	QueueDeclare: "queue.declare", QueueDeclareOk: "queue.declare-ok",
	BasicCancel: "basic.cancel", BasicPublish: "basic.publish", BasicReturn: "basic.return",
	BasicDeliver: "basic.deliver",
	BasicAck:     "basic.ack", BasicNack: "basic.nack",
	ConfirmSelect: "confirm.select", ConfirmSelectOk: "confirm.select-ok",
}

// String returns the method's name in the specification.
func (m Method) String() string {
	if name, ok := names[m]; ok {
		return name
	}
	return fmt.Sprintf("method %d.%d", uint32(m)>>16, uint32(m)&0xFFFF)
}
