package link

import (
	"encoding/binary"
	"errors"
	"io"
	"maps"
	"sync"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/wire"
)

// Channel is a channel of amqp091-go whose frequent frames are written and read here: publishes and
// their confirms, deliveries and their acks. amqp091-go opens and closes it, and does all the rest.
// The methods Publish, PublishWithDeferredConfirm and their variants must not be called on it: the
// broker counts the publishes of a channel, and amqp091-go sees no confirm of it.
//
// Its methods may be called from many goroutines.
type Channel struct {
	*amqp.Channel
	conn *Conn
	id   uint16

	mu    sync.Mutex
	frame []byte // the frames of one publish or ack; reused
	sent  uint64 // publishes, which the broker counts, too
	first uint64 // the first publish that may have no answer yet
	open  map[uint64]*Confirm
	over  bool // no confirm and no delivery comes any more

	inbox
	incoming // only the reader of the connection uses it
}

// Open opens a channel.
func (c *Conn) Open() (*Channel, error) {
	ch, id, err := c.open()
	if err != nil {
		return nil, err
	}
	own := &Channel{Channel: ch, conn: c, id: id, first: 1, open: map[uint64]*Confirm{}}
	own.gone = make(chan struct{})
	closed := ch.NotifyClose(make(chan *amqp.Error, 1))
	c.stream.know(own)
	go func() {
		for range closed { // until amqp091-go has closed the channel
		}
		own.end()
	}()
	return own, nil
}

// Channel opens a channel of amqp091-go alone.
func (c *Conn) Channel() (*amqp.Channel, error) {
	ch, _, err := c.open()
	return ch, err
}

// open opens a channel. Only its first frame tells its number.
func (c *Conn) open() (ch *amqp.Channel, id uint16, err error) {
	c.stream.expect(&id)
	defer c.stream.forget(&id)
	ch, err = c.Connection.Channel()
	return ch, id, err
}

// Confirm is the answer to a publish.
type Confirm struct {
	done   chan struct{}
	answer Answer
}

// Answer says what the broker has answered to a publish.
type Answer int

// The answers.
const (
	Lost   Answer = iota // none: the channel was closed before
	Acked                // the broker has the message
	Nacked               // the broker has refused it
)

// Done is closed when there is an answer, or when none can come any more.
func (c *Confirm) Done() <-chan struct{} { return c.done }

// Answer returns the answer after Done is closed.
func (c *Confirm) Answer() Answer { return c.answer }

// Copied is the size of the largest body that is copied when it is sent.
const Copied = flushAt

// Send publishes a message on a channel in confirm mode. It does not wait until the message is
// written. After an error nothing was sent, or the connection is about to end. A body that is
// larger than Copied must never change, not even after an error.
func (c *Channel) Send(
	exchange, routingKey string, mandatory bool, msg *amqp.Publishing,
) (*Confirm, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over || c.IsClosed() {
		return nil, amqp.ErrClosed
	}
	if err := c.write(exchange, routingKey, mandatory, msg); err != nil {
		return nil, err
	}
	c.sent++
	confirm := &Confirm{done: make(chan struct{})}
	c.open[c.sent] = confirm
	return confirm, nil
}

// write writes the frames of a publish. c.mu is held.
func (c *Channel) write(exchange, routingKey string, mandatory bool, msg *amqp.Publishing) error {
	size := c.conn.Config.FrameSize
	if len(msg.Body) > Copied {
		return c.conn.stream.sendPieces(c,
			wire.PublishPieces(c.id, size, exchange, routingKey, mandatory, msg))
	}
	c.frame = wire.AppendPublish(c.frame[:0], c.id, size, exchange, routingKey, mandatory, msg)
	err := c.conn.stream.send(c, c.frame)
	if cap(c.frame) > 2*flushAt {
		c.frame = nil
	}
	return err
}

// Ack acks a delivery, and with multiple all before it.
func (c *Channel) Ack(tag uint64, multiple bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over || c.IsClosed() {
		return amqp.ErrClosed
	}
	c.frame = wire.AppendAck(c.frame[:0], c.id, tag, multiple)
	return c.conn.stream.send(c, c.frame)
}

// Deliveries consumes a queue as Consume of amqp091-go does, once on a channel. The prefetch may be
// any number.
func (c *Channel) Deliveries(
	queue, tag string, prefetch int, exclusive, noLocal bool, args amqp.Table,
) (<-chan amqp.Delivery, error) {
	out := make(chan amqp.Delivery, min(prefetch, maxBuffered))
	c.mu.Lock()
	c.out = out
	c.mu.Unlock()
	consumed, err := c.Consume(queue, tag, false, exclusive, noLocal, false, args)
	if err != nil {
		return nil, err
	}
	go func() {
		for range consumed { // until amqp091-go has ended the consumer
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.ended = true; !c.feeding {
			close(out)
		}
	}()
	return out, nil
}

// maxBuffered bounds the memory of the deliveries that wait to be received, while they are few.
const maxBuffered = 1 << 10

// inbox has the deliveries that the consumer has not received yet.
type inbox struct {
	out     chan amqp.Delivery // nil before consuming
	more    []amqp.Delivery    // that did not fit into out
	feeding bool               // a goroutine puts them there
	ended   bool               // the consumer: nothing comes any more
	gone    chan struct{}      // closed with the channel
}

// put never waits. c.mu is held.
func (c *Channel) put(d *amqp.Delivery) {
	if c.out == nil || c.ended || c.over {
		return
	}
	if len(c.more) == 0 {
		select {
		case c.out <- *d:
			return
		default:
		}
	}
	c.more = append(c.more, *d)
	if !c.feeding {
		c.feeding = true
		go c.feed()
	}
}

// feed hands out what did not fit, as long as the channel is open.
func (c *Channel) feed() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.more) > 0 && !c.over {
		d := c.more[0]
		c.more[0] = amqp.Delivery{}
		c.more = c.more[1:]
		c.mu.Unlock()
		select {
		case c.out <- d:
		case <-c.gone:
		}
		c.mu.Lock()
	}
	c.more, c.feeding = nil, false
	if c.ended {
		close(c.out)
	}
}

// answered gives the publishes up to tag their answer, or only the one with that tag.
func (c *Channel) answered(tag uint64, multiple bool, answer Answer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !multiple {
		c.settle(tag, answer)
	}
	for ; c.first <= c.sent; c.first++ {
		if multiple && c.first <= tag {
			c.settle(c.first, answer)
		} else if c.open[c.first] != nil {
			return
		}
	}
}

// settle gives a publish its answer. c.mu is held.
func (c *Channel) settle(tag uint64, answer Answer) {
	if confirm := c.open[tag]; confirm != nil {
		delete(c.open, tag)
		confirm.answer = answer
		close(confirm.done)
	}
}

// end answers the publishes that were not answered, and drops the deliveries that were not
// received: the broker has them again.
func (c *Channel) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
	close(c.gone)
	for ; c.first <= c.sent; c.first++ {
		c.settle(c.first, Lost)
	}
	for more := true; more; {
		select {
		case _, more = <-c.out:
		default:
			more = false
		}
	}
}

// incoming is a delivery on its way.
type incoming struct {
	delivery amqp.Delivery
	content  bool   // its content header comes next
	left     uint64 // bytes of its body
}

// reserve bounds the bytes that are allocated for the rest of a body by those that have come. With
// the small factor of append, the buffers of a large body would be six times its size together.
const reserve = 16

// errContent says that frames of a delivery are not as they must be.
var errContent = errors.New("a delivery of the broker cannot be read")

// method takes a method frame, unless amqp091-go must see it.
func (c *Channel) method(payload []byte) (taken bool, err error) {
	c.content, c.left = false, 0
	if len(payload) < 4 {
		return false, nil
	}
	switch method, args := binary.BigEndian.Uint32(payload), payload[4:]; method {
	case wire.BasicAck, wire.BasicNack:
		if len(args) != 9 {
			return false, nil
		}
		answer := Acked
		if method == wire.BasicNack {
			answer = Nacked
		}
		c.answered(binary.BigEndian.Uint64(args), args[8]&1 > 0, answer)
		return true, nil
	case wire.BasicDeliver:
		if !wire.ReadDeliver(args, &c.delivery) {
			return false, errContent
		}
		c.content = true
		return true, nil
	}
	return false, nil
}

// header takes the content header of a delivery. amqp091-go must see those of returned messages.
func (c *Channel) header(payload []byte) (taken bool, err error) {
	if !c.content {
		return false, nil
	}
	c.content = false
	var ok bool
	if c.left, ok = wire.ReadProperties(payload, &c.delivery); !ok {
		return false, errContent
	}
	// What a header claims is allocated as it comes, see reserve.
	c.delivery.Body = make([]byte, 0, min(c.left, maxFrame)+1)
	return true, c.arrive()
}

// body reads a frame of the body.
func (c *Channel) body(in io.Reader, size int) error {
	if uint64(size) > c.left {
		return errContent
	}
	c.left -= uint64(size)
	b := c.delivery.Body
	at, end := len(b), len(b)+size+1 // with the end of the frame
	if cap(b) < end {
		more := min(c.left, uint64(end)*reserve, 1<<30)
		b = append(make([]byte, 0, end+int(more)), b...)
	}
	b = b[:end]
	if _, err := io.ReadFull(in, b[at:]); err != nil {
		return err
	}
	if b[at+size] != wire.FrameEnd {
		return errContent
	}
	c.delivery.Body = b[:at+size]
	return c.arrive()
}

// arrive hands the delivery out when it is whole. The names in it are kept for the next one.
func (c *Channel) arrive() error {
	if c.left > 0 {
		return nil
	}
	d := c.delivery
	c.delivery.Headers, c.delivery.Body = nil, nil
	d.Acknowledger = c.Channel
	c.mu.Lock()
	defer c.mu.Unlock()
	c.put(&d)
	return nil
}

// known are the Channels of a connection, by their number.
type known map[uint16]*Channel

// with returns the same with a change. nil takes a channel away.
func (k known) with(id uint16, c *Channel) *known {
	changed := maps.Clone(k)
	if changed == nil {
		changed = known{}
	}
	if changed[id] = c; c == nil {
		delete(changed, id)
	}
	return &changed
}
