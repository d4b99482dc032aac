package wire

import (
	"encoding/binary"
	"iter"
	"math"
	"slices"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// This file writes the frames that are frequent, as amqp091-go writes them: that takes sixty
// allocations for a publish.

// The kinds of frames, and the size of what surrounds a payload.
const (
	MethodFrame    = 1
	HeaderFrame    = 2
	BodyFrame      = 3
	HeartbeatFrame = 8

	FrameHead = 1 + 2 + 4 // kind, channel, size of the payload
	FrameEnd  = 0xCE      // one octet
)

// The methods that are read or written here: class<<16 | method.
const (
	ChannelOpen    = 20<<16 | 10
	ChannelClose   = 20<<16 | 40
	ChannelCloseOk = 20<<16 | 41
	BasicPublish   = 60<<16 | 40
	BasicDeliver   = 60<<16 | 60
	BasicAck       = 60<<16 | 80
	BasicNack      = 60<<16 | 120
)

// The property flags, in the order in which properties are sent.
const (
	flagContentType = 1 << (15 - iota)
	flagContentEncoding
	flagHeaders
	flagDeliveryMode
	flagPriority
	flagCorrelationID
	flagReplyTo
	flagExpiration
	flagMessageID
	flagTimestamp
	flagType
	flagUserID
	flagAppID
	flagClusterID
)

// AppendPublish appends the frames of a publish to b. A frameSize of 0 is no limit. No short
// string of msg may be longer than 255 bytes, and its headers must be valid.
func AppendPublish(
	b []byte, channel uint16, frameSize int, exchange, routingKey string, mandatory bool,
	msg *amqp.Publishing,
) []byte {
	b = appendPublishHead(b, channel, exchange, routingKey, mandatory, msg)
	for piece := range pieces(msg.Body, frameSize) {
		var body int
		b, body = beginFrame(b, BodyFrame, channel)
		b = endFrame(append(b, piece...), body)
	}
	return b
}

// PublishPieces returns the same bytes in pieces that share the body of msg.
func PublishPieces(
	channel uint16, frameSize int, exchange, routingKey string, mandatory bool, msg *amqp.Publishing,
) (all [][]byte) {
	b := appendPublishHead(nil, channel, exchange, routingKey, mandatory, msg)
	for piece := range pieces(msg.Body, frameSize) {
		b, _ = beginFrame(b, BodyFrame, channel)
		binary.BigEndian.PutUint32(b[len(b)-4:], uint32(len(piece)))
		all = append(all, b, piece)
		b = []byte{FrameEnd}
	}
	return append(all, b)
}

// pieces are the payloads of the frames of a body.
func pieces(body []byte, frameSize int) iter.Seq[[]byte] {
	most := frameSize - FrameHead - 1
	if frameSize <= 0 {
		most = max(1, len(body))
	}
	return slices.Chunk(body, most)
}

// appendPublishHead appends the frames of a publish that come before its body.
func appendPublishHead(
	b []byte, channel uint16, exchange, routingKey string, mandatory bool, msg *amqp.Publishing,
) []byte {
	b, method := beginFrame(b, MethodFrame, channel)
	b = binary.BigEndian.AppendUint32(b, BasicPublish)
	b = append(b, 0, 0) // reserved
	b = appendShort(b, exchange)
	b = appendShort(b, routingKey)
	b = endFrame(append(b, bit(mandatory)), method)

	b, header := beginFrame(b, HeaderFrame, channel)
	return endFrame(appendProperties(b, msg), header)
}

// AppendAck appends a basic.ack.
func AppendAck(b []byte, channel uint16, tag uint64, multiple bool) []byte {
	b, method := beginFrame(b, MethodFrame, channel)
	b = binary.BigEndian.AppendUint32(b, BasicAck)
	b = binary.BigEndian.AppendUint64(b, tag)
	return endFrame(append(b, bit(multiple)), method)
}

// beginFrame appends the head of a frame, and returns where its payload begins.
func beginFrame(b []byte, kind byte, channel uint16) (_ []byte, payload int) {
	b = append(b, kind, byte(channel>>8), byte(channel), 0, 0, 0, 0)
	return b, len(b)
}

// endFrame writes the size of the payload, and appends the end.
func endFrame(b []byte, payload int) []byte {
	putSize(b, payload)
	return append(b, FrameEnd)
}

// putSize writes the number of bytes from begin on into the four bytes before.
func putSize(b []byte, begin int) {
	binary.BigEndian.PutUint32(b[begin-4:], uint32(len(b)-begin))
}

func bit(set bool) byte {
	if set {
		return 1
	}
	return 0
}

func appendShort(b []byte, s string) []byte { return append(append(b, byte(len(s))), s...) }

// appendProperties appends the payload of the content header frame.
func appendProperties(b []byte, msg *amqp.Publishing) []byte {
	b = binary.BigEndian.AppendUint32(b, 60<<16) // the class, and no weight
	b = binary.BigEndian.AppendUint64(b, uint64(len(msg.Body)))
	at, flags := len(b), uint16(0)
	b = append(b, 0, 0)
	short := func(flag uint16, s string) {
		if s != "" {
			flags |= flag
			b = appendShort(b, s)
		}
	}
	short(flagContentType, msg.ContentType)
	short(flagContentEncoding, msg.ContentEncoding)
	if len(msg.Headers) > 0 {
		flags |= flagHeaders
		b = appendTable(b, msg.Headers)
	}
	if msg.DeliveryMode > 0 {
		flags |= flagDeliveryMode
		b = append(b, msg.DeliveryMode)
	}
	if msg.Priority > 0 {
		flags |= flagPriority
		b = append(b, msg.Priority)
	}
	short(flagCorrelationID, msg.CorrelationId)
	short(flagReplyTo, msg.ReplyTo)
	short(flagExpiration, msg.Expiration)
	short(flagMessageID, msg.MessageId)
	if !msg.Timestamp.IsZero() {
		flags |= flagTimestamp
		b = binary.BigEndian.AppendUint64(b, uint64(msg.Timestamp.Unix()))
	}
	short(flagType, msg.Type)
	short(flagUserID, msg.UserId)
	short(flagAppID, msg.AppId)
	binary.BigEndian.PutUint16(b[at:], flags)
	return b
}

func appendTable(b []byte, t amqp.Table) []byte {
	b = append(b, 0, 0, 0, 0)
	begin := len(b)
	for key, value := range t {
		b = appendValue(appendShort(b, key), value)
	}
	putSize(b, begin)
	return b
}

// appendValue appends the type's octet and the value.
func appendValue(b []byte, value any) []byte {
	switch v := value.(type) {
	case string:
		b = binary.BigEndian.AppendUint32(append(b, 'S'), uint32(len(v)))
		return append(b, v...)
	case bool:
		return append(b, 't', bit(v))
	case int8:
		return append(b, 'b', byte(v))
	case uint8:
		return append(b, 'B', v)
	case int16:
		return binary.BigEndian.AppendUint16(append(b, 's'), uint16(v))
	case uint16:
		return binary.BigEndian.AppendUint16(append(b, 'u'), v)
	case int:
		return binary.BigEndian.AppendUint32(append(b, 'I'), uint32(v))
	case int32:
		return binary.BigEndian.AppendUint32(append(b, 'I'), uint32(v))
	case uint32:
		return binary.BigEndian.AppendUint32(append(b, 'i'), v)
	case int64:
		return binary.BigEndian.AppendUint64(append(b, 'l'), uint64(v))
	case float32:
		return binary.BigEndian.AppendUint32(append(b, 'f'), math.Float32bits(v))
	case float64:
		return binary.BigEndian.AppendUint64(append(b, 'd'), math.Float64bits(v))
	case amqp.Decimal:
		return binary.BigEndian.AppendUint32(append(b, 'D', v.Scale), uint32(v.Value))
	case time.Time:
		return binary.BigEndian.AppendUint64(append(b, 'T'), uint64(v.Unix()))
	case []byte:
		b = binary.BigEndian.AppendUint32(append(b, 'x'), uint32(len(v)))
		return append(b, v...)
	case amqp.Table:
		return appendTable(append(b, 'F'), v)
	case []any:
		b = append(b, 'A', 0, 0, 0, 0)
		begin := len(b)
		for _, item := range v {
			b = appendValue(b, item)
		}
		putSize(b, begin)
		return b
	}
	return append(b, 'V') // nil; Validate refuses other types
}
