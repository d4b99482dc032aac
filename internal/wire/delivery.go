package wire

import (
	"encoding/binary"
	"math"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// UUIDHeader is where watermill-amqp's marshalers keep Watermill's UUID.
const UUIDHeader = "_watermill_message_uuid"

// This file reads deliveries as amqp091-go reads them, which takes thirty allocations for one.

// ReadDeliver reads the arguments of a basic.deliver into d. The names of the last delivery in d
// are kept where they are the same. It returns false for bytes that are no such arguments.
func ReadDeliver(args []byte, d *amqp.Delivery) bool {
	at := 0
	short := func(last string) string {
		if at >= len(args) || at+1+int(args[at]) > len(args) {
			at = len(args) + 1
			return ""
		}
		name := args[at+1 : at+1+int(args[at])]
		at += 1 + len(name)
		if string(name) == last {
			return last
		}
		return string(name)
	}
	consumer := short(d.ConsumerTag)
	if at+9 > len(args) {
		return false
	}
	tag, redelivered := binary.BigEndian.Uint64(args[at:]), args[at+8]&1 > 0
	at += 9
	exchange := short(d.Exchange)
	routingKey := short(d.RoutingKey)
	if at > len(args) {
		return false
	}
	*d = amqp.Delivery{
		ConsumerTag: consumer, DeliveryTag: tag, Redelivered: redelivered,
		Exchange: exchange, RoutingKey: routingKey,
	}
	return true
}

// ReadProperties reads the payload of a content header frame into d, and returns the size of the
// body. All strings share one copy of the payload. It returns false where amqp091-go returns an
// error; it reads containers of any depth and size, see ReplaceUnreadable.
func ReadProperties(payload []byte, d *amqp.Delivery) (body uint64, ok bool) {
	c := cursor{rest: string(payload)}
	c.take(4) // class and weight
	body = c.number(8)
	flags := c.number(2)
	short := func(flag uint64) string {
		if flags&flag == 0 {
			return ""
		}
		return c.take(int(c.number(1)))
	}
	d.ContentType = short(flagContentType)
	d.ContentEncoding = short(flagContentEncoding)
	if flags&flagHeaders > 0 {
		d.Headers = c.table()
	}
	if flags&flagDeliveryMode > 0 {
		d.DeliveryMode = uint8(c.number(1))
	}
	if flags&flagPriority > 0 {
		d.Priority = uint8(c.number(1))
	}
	d.CorrelationId = short(flagCorrelationID)
	d.ReplyTo = short(flagReplyTo)
	d.Expiration = short(flagExpiration)
	d.MessageId = short(flagMessageID)
	if flags&flagTimestamp > 0 {
		d.Timestamp = time.Unix(int64(c.number(8)), 0)
	}
	d.Type = short(flagType)
	d.UserId = short(flagUserID)
	d.AppId = short(flagAppID)
	short(flagClusterID)
	return body, !c.bad
}

// cursor reads values from the beginning of a text. bad is set where the text ends too early.
type cursor struct {
	rest string
	bad  bool
}

func (c *cursor) take(n int) string {
	if n < 0 || n > len(c.rest) { // a length may be negative where int has 32 bits
		c.rest, c.bad = "", true
		return ""
	}
	s := c.rest[:n]
	c.rest = c.rest[n:]
	return s
}

// number reads a number of so many bytes.
func (c *cursor) number(size int) (n uint64) {
	for _, b := range []byte(c.take(size)) {
		n = n<<8 | uint64(b)
	}
	return n
}

// long reads a long string.
func (c *cursor) long() string { return c.take(int(c.number(4))) }

func (c *cursor) table() amqp.Table {
	in := cursor{rest: c.long(), bad: c.bad}
	t := make(amqp.Table, in.entries())
	for in.rest != "" {
		key := in.take(int(in.number(1)))
		value := in.value()
		if in.bad {
			break
		}
		t[key] = value
	}
	c.bad = in.bad
	return t
}

// entries guesses how many entries the table has, so that its map need not grow.
func (c *cursor) entries() int { return min(len(c.rest)/24, 16) }

func (c *cursor) value() any {
	switch kind := c.take(1); kind {
	case "S":
		return c.long()
	case "t":
		return c.number(1) != 0
	case "b":
		return int8(c.number(1))
	case "B":
		return uint8(c.number(1))
	case "s":
		return int16(c.number(2))
	case "u":
		return uint16(c.number(2))
	case "I":
		return int32(c.number(4))
	case "i":
		return uint32(c.number(4))
	case "l":
		return int64(c.number(8))
	case "f":
		return math.Float32frombits(uint32(c.number(4)))
	case "d":
		return math.Float64frombits(c.number(8))
	case "D":
		return amqp.Decimal{Scale: uint8(c.number(1)), Value: int32(c.number(4))}
	case "T":
		return time.Unix(int64(c.number(8)), 0)
	case "x":
		return []byte(c.long())
	case "F":
		return c.table()
	case "A":
		in := cursor{rest: c.long(), bad: c.bad}
		var items []any
		for in.rest != "" && !in.bad {
			items = append(items, in.value())
		}
		c.bad = in.bad
		return items
	case "V":
	default:
		c.bad = true
	}
	return nil
}
