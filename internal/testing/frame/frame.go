// Package frame reads and writes the frames of AMQP 0-9-1, for tests that stand
// between a client and its broker, or in the broker's place.
package frame

import (
	"encoding/binary"
	"io"
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
	// protocolHeader is what a client sends before its first frame, and a
	// broker that speaks another version in place of one.
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

// NewMethod returns a method frame. Its arguments are bytes as they go on the
// wire, see [Short] and [Long].
func NewMethod(channel uint16, m Method, args ...[]byte) Frame {
	payload := binary.BigEndian.AppendUint32(nil, uint32(m))
	for _, arg := range args {
		payload = append(payload, arg...)
	}
	return New(KindMethod, channel, payload)
}

// Kind of the frame.
func (f Frame) Kind() byte { return f[0] }

// Channel the frame belongs to; 0 is the connection.
func (f Frame) Channel() uint16 { return binary.BigEndian.Uint16(f[1:]) }

// Payload is the frame without head and end.
func (f Frame) Payload() []byte { return f[headSize : len(f)-1] }

// Method returns 0 for a frame that is no method.
func (f Frame) Method() Method {
	if f.Kind() != KindMethod || len(f.Payload()) < 4 {
		return 0
	}
	return Method(binary.BigEndian.Uint32(f.Payload()))
}

// Args are the arguments of a method.
func (f Frame) Args() []byte { return f.Payload()[4:] }

// String is what the frame is called in a test's output.
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

// Next cuts the first whole frame, or the protocol header, off what has been read so far; whole is
// nil where there is none yet. isFrame is false for a protocol header.
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

// Short is a short string.
func Short(s string) []byte { return append([]byte{byte(len(s))}, s...) }

// Long is a number of 64 bits.
func Long(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

// TakeShort reads a short string and returns what follows it.
func TakeShort(data []byte) (s string, rest []byte) {
	n := int(data[0]) + 1
	return string(data[1:n]), data[n:]
}
