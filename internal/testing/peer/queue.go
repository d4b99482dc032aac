package peer

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/millpond-go/millpond/internal/testing/frame"
)

// queue keeps messages for its consumers. It exists once a client has declared it.
type queue struct {
	name      string
	quorum    bool
	single    bool // has a single active consumer, the first
	ready     []*message
	consumers []*consumer // the next one first
}

type message struct {
	exchange, key string
	header, body  []byte
	redelivered   bool
	number        int // of its arrival, which is its place in the queue
}

type consumer struct {
	ch    *channel
	queue *queue
	tag   string
	deaf  bool // is sent nothing
}

// unacked is a delivery that is not settled.
type unacked struct {
	tag   uint64
	queue *queue
	msg   *message
}

// Move moves the first ready message to the tail of another queue, as a broker that dead-letters it
// through the default exchange. It does nothing if either queue or the message is missing.
func (s *Server) Move(from, to string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	source, target := s.queues[from], s.queues[to]
	if source == nil || target == nil || len(source.ready) == 0 {
		return
	}
	m := source.ready[0]
	source.ready = source.ready[1:]
	s.add(target, &message{key: to, header: died(m.header, from), body: m.body})
}

// died returns a content header with an x-death that names the queue and the reason alone.
func died(header []byte, queue string) []byte {
	const size, contentType, encoding, headers = 12, 1 << 15, 1 << 14, 1 << 13
	rest := frame.Args(header[size:])
	flags := rest.Uint16()
	for _, property := range []uint16{contentType, encoding} {
		if flags&property != 0 {
			rest.Short()
		}
	}
	before, table := header[size+2:len(header)-len(rest)], []byte(nil)
	if flags&headers != 0 {
		end := 4 + binary.BigEndian.Uint32(rest)
		table, rest = rest[4:end], rest[end:]
	}
	death := slices.Concat(frame.Short("queue"), []byte("S"), frame.LongString(queue),
		frame.Short("reason"), []byte("S"), frame.LongString("expired"))
	deaths := "F" + string(frame.LongString(string(death)))
	table = slices.Concat(table, frame.Short("x-death"), []byte("A"), frame.LongString(deaths))
	return slices.Concat(header[:size], binary.BigEndian.AppendUint16(nil, flags|headers), before,
		frame.LongString(string(table)), rest)
}

func (s *Server) add(q *queue, m *message) {
	s.arrived++
	m.number = s.arrived
	q.ready = append(q.ready, m)
	q.deliver()
}

func (s *Server) remove(name string) (messages int) {
	q := s.queues[name]
	if q == nil {
		return 0
	}
	delete(s.queues, name)
	q.tell()
	return len(q.ready)
}

// tell cancels the consumers. The client has asked for it with a capability.
func (q *queue) tell() {
	for _, k := range q.consumers {
		k.ch.send(frame.BasicCancel, frame.Short(k.tag), []byte{1})
	}
}

// Vanish deletes queues as RabbitMQ 3.10 deletes a quorum queue: it looks 30 ms later whether the
// queue is gone for good. If it is, its consumers are told. Else the broker hands its messages to
// them again, and sends them nothing (F54).
func (s *Server) Vanish(queues ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range queues {
		old := s.queues[name]
		delete(s.queues, name)
		time.AfterFunc(30*time.Millisecond, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			again := s.queues[name]
			if again == nil {
				old.tell()
				return
			}
			for _, k := range old.consumers {
				k.queue, k.deaf = again, true
			}
			again.consumers = append(old.consumers, again.consumers...)
			again.deliver()
		})
	}
}

func (s *Server) cancel(ends func(*consumer) bool) {
	for _, q := range s.queues {
		q.consumers = slices.DeleteFunc(q.consumers, ends)
	}
}

// Forget makes a queue forget its consumers without a word, as if the broker had lost count of what
// they have in hand.
func (s *Server) Forget(queue string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cancel(func(k *consumer) bool { return k.queue.name == queue })
}

// deliver hands the ready messages to consumers in turn, as far as their prefetch allows.
func (q *queue) deliver() {
	for full := 0; len(q.ready) > 0 && full < len(q.consumers); {
		k := q.consumers[0]
		if !q.single {
			q.consumers = append(q.consumers[1:], k)
		}
		if k.ch.prefetch > 0 && len(k.ch.unacked) >= k.ch.prefetch {
			if full++; q.single {
				return
			}
			continue
		}
		full = 0
		m := q.ready[0]
		q.ready = q.ready[1:]
		tag := k.ch.hand(q, m)
		if k.deaf {
			continue
		}
		k.ch.conn.write(m.frames(k.ch.id, frame.BasicDeliver, frame.Short(k.tag), frame.Long(tag),
			flag(m.redelivered), frame.Short(m.exchange), frame.Short(m.key))...)
	}
}

// hand counts a message as delivered.
func (ch *channel) hand(q *queue, m *message) (tag uint64) {
	ch.delivered++
	ch.unacked = append(ch.unacked, unacked{ch.delivered, q, m})
	return ch.delivered
}

// frames returns the content of a message behind a method.
func (m *message) frames(channel uint16, method frame.Method, args ...[]byte) []frame.Frame {
	frames := []frame.Frame{
		frame.NewMethod(channel, method, args...), frame.New(frame.KindHeader, channel, m.header),
	}
	for rest := m.body; len(rest) > 0; {
		n := min(len(rest), 100_000) // fits into a frame
		frames = append(frames, frame.New(frame.KindBody, channel, rest[:n]))
		rest = rest[n:]
	}
	return frames
}

// giveBack puts a message in front of the messages that were never delivered. In a classic queue it
// gets its old place, in a quorum queue with a delivery limit the last place before them (F34).
func (q *queue) giveBack(m *message) {
	at := slices.IndexFunc(q.ready, func(other *message) bool {
		return !other.redelivered || !q.quorum && other.number > m.number
	})
	if at < 0 {
		at = len(q.ready)
	}
	q.ready = slices.Insert(q.ready, at, m)
}

// settle ends deliveries. requeue gives them back.
func (ch *channel) settle(tag uint64, multiple, requeue bool) {
	before := len(ch.unacked)
	ch.unacked = slices.DeleteFunc(ch.unacked, func(u unacked) bool {
		if u.tag != tag && (!multiple || u.tag > tag && tag > 0) {
			return false
		}
		if requeue {
			u.msg.redelivered = true
			u.queue.giveBack(u.msg)
		}
		return true
	})
	if len(ch.unacked) < before { // the channel may take more of every queue
		ch.conn.server.deliver()
	}
}

func (s *Server) deliver() {
	for _, q := range s.queues {
		q.deliver()
	}
}

func (c *connection) declare(ch *channel, name string, passive, noWait bool, rest frame.Args) {
	q := c.server.queues[name]
	switch {
	case q == nil && passive:
		ch.refuseMissing(name)
		return
	case q == nil:
		q = &queue{
			name: name, quorum: bytes.Contains(rest, []byte("quorum")),
			single: bytes.Contains(rest, []byte("x-single-active-consumer")),
		}
		c.server.queues[name] = q
	}
	if !noWait {
		ch.send(frame.QueueDeclareOk, frame.Short(name), frame.Number(uint32(len(q.ready))),
			frame.Number(uint32(len(q.consumers))))
	}
}

func (c *connection) consume(ch *channel, name, tag string, rest frame.Args) {
	q := c.server.queues[name]
	switch {
	case q == nil:
		ch.refuseMissing(name)
		return
	case bytes.Contains(rest, []byte("x-stream-offset")): // F31
		kind := "classic"
		if q.quorum {
			kind = "quorum"
		}
		ch.refuse(406, fmt.Sprintf("PRECONDITION_FAILED - invalid arg 'x-stream-offset' for queue '%s' "+
			"in vhost '/' of queue type rabbit_%s_queue", name, kind))
		return
	}
	ch.send(frame.BasicConsumeOk, frame.Short(tag))
	q.consumers = append(q.consumers, &consumer{ch: ch, queue: q, tag: tag})
	q.deliver()
}

func (c *connection) get(ch *channel, name string, noAck bool) {
	q := c.server.queues[name]
	switch {
	case q == nil:
		ch.refuseMissing(name)
		return
	case len(q.ready) == 0:
		ch.send(frame.BasicGetEmpty, frame.Short(""))
		return
	}
	m := q.ready[0]
	q.ready = q.ready[1:]
	tag := ch.hand(q, m)
	c.write(m.frames(ch.id, frame.BasicGetOk, frame.Long(tag), flag(m.redelivered),
		frame.Short(m.exchange), frame.Short(m.key), frame.Number(uint32(len(q.ready))))...)
	if noAck {
		ch.settle(tag, false, false)
	}
}

func (ch *channel) refuseMissing(queue string) {
	ch.refuse(404, fmt.Sprintf("NOT_FOUND - no queue '%s' in vhost '/'", queue))
}

func flag(on bool) []byte {
	if on {
		return []byte{1}
	}
	return []byte{0}
}
