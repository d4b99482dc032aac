package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strconv"
	"sync"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/testing/frame"
)

// bestByHand is the fastest client that this machine allows: it copies frames.
const bestByHand = "by hand on the socket"

// frames is a connection without a client library.
type frames struct {
	net.Conn
	in      *bufio.Reader
	payload []byte // of the last frame
	acking  sync.Mutex
}

// dialFrames opens a connection with channel 1.
func dialFrames(url string) (*frames, error) {
	uri, err := amqp.ParseURI(url)
	if err != nil {
		return nil, err
	}
	conn, err := net.Dial("tcp", net.JoinHostPort(uri.Host, strconv.Itoa(uri.Port)))
	if err != nil {
		return nil, err
	}
	c := &frames{Conn: conn, in: bufio.NewReaderSize(conn, 256<<10)}
	_, err = c.Write([]byte("AMQP\x00\x00\x09\x01"))
	err = errors.Join(err,
		c.await(frame.ConnectionStart),
		c.say(0, frame.ConnectionStartOk, frame.LongString(""), frame.Short("PLAIN"),
			frame.LongString("\x00"+uri.Username+"\x00"+uri.Password), frame.Short("en_US")),
		c.await(frame.ConnectionTune),
		c.say(0, frame.ConnectionTuneOk, []byte{0, 1}, frame.Number(131072), []byte{0, 0}),
		c.say(0, frame.ConnectionOpen, frame.Short(uri.Vhost), []byte{0, 0}),
		c.await(frame.ConnectionOpenOk),
		c.say(1, frame.ChannelOpen, []byte{0}), c.await(frame.ChannelOpenOk),
	)
	return c, err
}

func (c *frames) say(channel uint16, m frame.Method, args ...[]byte) error {
	_, err := c.Write(frame.NewMethod(channel, m, args...))
	return err
}

// next reads a frame. Its payload stays until the next one.
func (c *frames) next() (kind byte, m frame.Method, err error) {
	var head [7]byte
	if _, err = io.ReadFull(c.in, head[:]); err != nil {
		return 0, 0, err
	}
	size := int(binary.BigEndian.Uint32(head[3:]))
	if cap(c.payload) <= size {
		c.payload = make([]byte, 2*size+1)
	}
	c.payload = c.payload[:size+1]
	_, err = io.ReadFull(c.in, c.payload)
	c.payload = c.payload[:size]
	if kind = head[0]; kind == frame.KindMethod {
		m = frame.Method(binary.BigEndian.Uint32(c.payload))
	}
	return kind, m, err
}

func (c *frames) await(want frame.Method) error {
	for {
		if _, m, err := c.next(); err != nil || m == want {
			return err
		}
	}
}

// limit hands failed messages over, and acks all that are settled with one ack.
type limit struct {
	w       work
	in, out *frames
	unsent  []byte // of publishes that have not left

	mu     sync.Mutex
	open   []opened // deliveries from the first that is not settled on
	acked  uint64   // the delivery before
	copies []uint64 // the delivery of each publish without a confirm
	first  uint64   // the number of the first of these
}

type opened struct {
	id      [8]byte // begins the body
	settled bool
}

// serveByHand serves with the fewest steps: the header frame of a delivery is copied, with one more
// header. Messages must have headers and no other property in front of them.
func serveByHand(_ context.Context, b *broker, w work) (*service, error) {
	wait := w.queue + ".hand.wait"
	err := errors.Join(b.declare(w.queue, quorum), b.declareWait(wait, w.queue, w.delay))
	if err != nil {
		return nil, err
	}
	l := &limit{w: w, first: 1}
	if l.in, err = dialFrames(b.node.URL()); err != nil {
		return nil, err
	}
	if l.out, err = dialFrames(b.node.URL()); err != nil {
		return nil, errors.Join(err, l.in.Close())
	}
	err = errors.Join(
		l.out.say(1, frame.ConfirmSelect, []byte{0}), l.out.await(frame.ConfirmSelectOk),
		l.in.say(1, frame.BasicQos, frame.Number(0),
			binary.BigEndian.AppendUint16(nil, uint16(w.ahead())), []byte{0}),
		l.in.await(frame.BasicQos+1),
		l.in.say(1, frame.BasicConsume, []byte{0, 0}, frame.Short(w.queue), frame.Short("hand"),
			[]byte{0}, frame.Number(0)))
	var serving sync.WaitGroup
	serving.Go(func() { _ = l.consume(wait) })
	serving.Go(func() { _ = l.confirm() })
	return &service{waits: []string{wait}, stop: func() error {
		err := errors.Join(l.in.Close(), l.out.Close())
		serving.Wait()
		return err
	}}, err
}

// consume publishes a copy of each delivery that fails.
func (l *limit) consume(wait string) error {
	publish := frame.NewMethod(1, frame.BasicPublish, []byte{0, 0}, frame.Short(""),
		frame.Short(wait), []byte{1})
	var header []byte
	for {
		kind, _, err := l.in.next()
		if err != nil {
			return err
		}
		switch p := l.in.payload; kind {
		case frame.KindHeader:
			header = append(header[:0], p...)
		case frame.KindBody:
			l.delivered(publish, header, p)
		}
		if l.in.in.Buffered() == 0 || len(l.unsent) > 128<<10 {
			if _, err := l.out.Write(l.unsent); err != nil {
				return err
			}
			l.unsent = l.unsent[:0]
			l.ack()
		}
	}
}

func (l *limit) delivered(publish, header, body []byte) {
	failed := l.w.handle(body) != nil
	l.mu.Lock()
	defer l.mu.Unlock()
	tag := l.acked + uint64(len(l.open)) + 1
	l.open = append(l.open, opened{id: [8]byte(body)})
	if !failed {
		l.settle(tag)
		return
	}
	l.copies = append(l.copies, tag)
	const more = "\x07attemptS\x00\x00\x00\x011"
	table := 14 + 4 + int(binary.BigEndian.Uint32(header[14:]))
	b := l.unsent
	b = append(b, publish...)
	b = append(b, frame.KindHeader, 0, 1)
	b = binary.BigEndian.AppendUint32(b, uint32(len(header)+len(more)))
	b = append(b, header[:14]...)
	b = binary.BigEndian.AppendUint32(b, uint32(table-18+len(more)))
	b = append(append(append(append(b, header[18:table]...), more...), header[table:]...), 0xCE)
	b = append(b, frame.KindBody, 0, 1)
	b = binary.BigEndian.AppendUint32(b, uint32(len(body)))
	l.unsent = append(append(b, body...), 0xCE)
}

// confirm settles the deliveries whose copies are confirmed.
func (l *limit) confirm() error {
	for {
		_, m, err := l.out.next()
		if err != nil {
			return err
		}
		if m == frame.BasicAck {
			n, multiple := binary.BigEndian.Uint64(l.out.payload[4:]), l.out.payload[12]&1 > 0
			l.mu.Lock()
			from := n
			if multiple {
				from = l.first
			}
			for ; from <= n; from++ {
				if tag := l.copies[from-l.first]; tag != 0 {
					l.copies[from-l.first] = 0
					l.settle(tag)
				}
			}
			for len(l.copies) > 0 && l.copies[0] == 0 {
				l.copies = l.copies[1:]
				l.first++
			}
			l.mu.Unlock()
		}
		if l.out.in.Buffered() == 0 {
			l.ack()
		}
	}
}

// settle notes that a delivery is settled. l.mu is held.
func (l *limit) settle(tag uint64) {
	one := &l.open[tag-l.acked-1]
	one.settled = true
	l.w.settled(one.id[:])
}

// ack acks the deliveries up to the first one that is not settled.
func (l *limit) ack() {
	l.in.acking.Lock()
	defer l.in.acking.Unlock()
	l.mu.Lock()
	before := l.acked
	for len(l.open) > 0 && l.open[0].settled {
		l.open = l.open[1:]
		l.acked++
	}
	tag := l.acked
	l.mu.Unlock()
	if tag > before {
		_ = l.in.say(1, frame.BasicAck, frame.Long(tag), []byte{1})
	}
}
