package link

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/wire"
)

const (
	// tlsAlert and tlsMajor begin the TLS record that says that the client does not speak TLS.
	tlsAlert, tlsMajor = 21, 3
	// maxFrame is larger than any frame that a broker negotiates (F16). A frame that claims to be
	// larger is passed on, and amqp091-go refuses it.
	maxFrame = 1 << 20
	// reminder is how often amqp091-go gets a heartbeat while all frames are taken from it: it
	// extends the deadline of reading with each frame that it sees.
	reminder = time.Second
	// keepUnreadable is the number of bytes kept of headers that cannot be read, so that they fit
	// in a frame together with our headers.
	keepUnreadable = 120 << 10
)

// stream is the connection that amqp091-go uses. Headers that amqp091-go cannot read would end the
// connection of every consumer that gets the message. stream replaces them first (F26).
//
// It also takes the frames that a Channel reads from those that amqp091-go reads, and puts the
// frames of a Channel between those that amqp091-go writes. It hands out one frame at a time. So
// when a Channel gets a confirm, amqp091-go has passed on the return before it.
type stream struct {
	net.Conn
	unreadable string // name of the header in their place
	channels   atomic.Pointer[known]

	in       *bufio.Reader
	begun    bool
	pass     int       // bytes of a frame that are passed on unseen
	ready    []byte    // bytes of a frame that was looked at
	frame    []byte    // reused
	reminded time.Time // of amqp091-go, by a heartbeat

	writing sync.Mutex
	part    []byte     // of a frame of amqp091-go
	opening sync.Mutex // held by a caller of amqp091-go until its channel.open is written
	number  *uint16    // where the number of that channel goes; nil for no caller

	mu     sync.Mutex
	failed error
}

func newStream(conn net.Conn, unreadable string) *stream {
	s := &stream{Conn: conn, unreadable: unreadable, in: bufio.NewReaderSize(conn, 16<<10)}
	s.channels.Store(&known{})
	return s
}

func (s *stream) Read(p []byte) (n int, err error) {
	if len(p) == 0 {
		return 0, nil
	}
	if s.pass == 0 && len(s.ready) == 0 {
		err = s.next()
	}
	switch {
	case err != nil:
	case len(s.ready) > 0:
		n = copy(p, s.ready)
		s.ready = s.ready[n:]
	default:
		n, err = s.in.Read(p[:min(len(p), s.pass)])
		s.pass -= n
	}
	if err != nil {
		s.mu.Lock()
		s.failed = err
		s.mu.Unlock()
	}
	return n, err
}

// next looks at frames until one is for amqp091-go.
func (s *stream) next() error {
	for taken := true; taken; {
		s.frame = append(s.frame[:0], make([]byte, wire.FrameHead)...)
		head := s.frame
		if _, err := io.ReadFull(s.in, head); err != nil {
			return err
		}
		if !s.begun && head[0] == tlsAlert && head[1] == tlsMajor {
			return errSpeaksTLS
		}
		s.begun = true
		size := int(binary.BigEndian.Uint32(head[3:]))
		if size < 0 || size > maxFrame { // negative where int has 32 bits
			s.pass = max(size, 0) + 1
			s.ready = head
			return nil
		}
		var err error
		c := (*s.channels.Load())[binary.BigEndian.Uint16(head[1:])]
		if taken, err = s.look(c, size); err != nil {
			return err
		}
		if now := time.Now(); taken && now.Sub(s.reminded) > reminder {
			s.reminded, s.ready = now, []byte{wire.HeartbeatFrame, 0, 0, 0, 0, 0, 0, wire.FrameEnd}
			return nil
		}
	}
	return nil
}

// look takes a frame of a channel, or lets it pass. c is nil for a channel of amqp091-go alone.
func (s *stream) look(c *Channel, size int) (taken bool, err error) {
	kind := s.frame[0]
	switch {
	case kind == wire.HeaderFrame, c != nil && kind == wire.MethodFrame:
	case c != nil && kind == wire.BodyFrame && c.left > 0:
		return true, unexpected(c.body(s.in, size))
	default:
		s.ready, s.pass = s.frame, size+1
		return false, nil
	}
	s.frame = append(s.frame, make([]byte, size+1)...)
	if _, err := io.ReadFull(s.in, s.frame[wire.FrameHead:]); err != nil {
		return false, unexpected(err)
	}
	s.ready = s.frame
	payload, end := s.frame[wire.FrameHead:wire.FrameHead+size], s.frame[wire.FrameHead+size]
	replaced := false
	if kind == wire.HeaderFrame {
		var other []byte
		other, replaced = wire.ReplaceUnreadable(payload, s.unreadable, keepUnreadable)
		if replaced {
			payload = other
		}
	}
	switch {
	case c == nil || end != wire.FrameEnd: // amqp091-go refuses the latter
	case kind == wire.HeaderFrame:
		taken, err = c.header(payload)
	default:
		taken, err = c.method(payload)
	}
	switch {
	case taken:
		s.ready = nil
	case replaced:
		s.ready = append([]byte{}, s.frame[:3]...)
		s.ready = binary.BigEndian.AppendUint32(s.ready, uint32(len(payload)))
		s.ready = append(append(s.ready, payload...), end)
	}
	return taken, err
}

// unexpected returns the error of a frame that ends within. None of its bytes may have come.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// Write takes bytes of amqp091-go, which may cut a frame anywhere, and writes whole frames.
func (s *stream) Write(b []byte) (int, error) {
	s.writing.Lock()
	defer s.writing.Unlock()
	all := b
	if len(s.part) > 0 {
		s.part = append(s.part, b...)
		all = s.part
	}
	whole := s.follow(all)
	if whole > 0 {
		if _, err := s.Conn.Write(all[:whole]); err != nil {
			return 0, err
		}
	}
	if rest := all[whole:]; len(s.part) > 0 {
		s.part = s.part[:copy(s.part, rest)]
	} else {
		s.part = append(s.part, rest...)
	}
	if len(s.part) == 0 && cap(s.part) > maxFrame {
		s.part = nil
	}
	return len(b), nil
}

// follow returns how many bytes the whole frames in b take, and notes the channels that they open
// and close. s.writing is held.
func (s *stream) follow(b []byte) (whole int) {
	for rest := b; ; rest = b[whole:] {
		size := len("AMQP0091")
		if len(rest) > 0 && rest[0] != 'A' { // which begins no frame
			if len(rest) < wire.FrameHead {
				return whole
			}
			size = wire.FrameHead + int(binary.BigEndian.Uint32(rest[3:])) + 1
		}
		if len(rest) < size {
			return whole
		}
		whole += size
		if rest[0] != wire.MethodFrame || size < wire.FrameHead+4+1 {
			continue
		}
		id := binary.BigEndian.Uint16(rest[1:])
		switch binary.BigEndian.Uint32(rest[wire.FrameHead:]) {
		case wire.ChannelOpen:
			if s.number != nil {
				*s.number = id
				s.expected()
			}
		case wire.ChannelClose, wire.ChannelCloseOk:
			s.channels.Store(s.channels.Load().with(id, nil))
		}
	}
}

// expect writes the number of the channel that amqp091-go opens next to number. forget must follow.
func (s *stream) expect(number *uint16) {
	s.opening.Lock()
	s.writing.Lock()
	defer s.writing.Unlock()
	s.number = number
}

// expected lets the next caller open a channel. s.writing is held.
func (s *stream) expected() {
	s.number = nil
	s.opening.Unlock()
}

// forget takes back an expect if no channel.open was written.
func (s *stream) forget(number *uint16) {
	s.writing.Lock()
	defer s.writing.Unlock()
	if s.number == number {
		s.expected()
	}
}

// know begins to take the frames of a channel.
func (s *stream) know(c *Channel) {
	s.writing.Lock()
	defer s.writing.Unlock()
	s.channels.Store(s.channels.Load().with(c.id, c))
}

// send writes whole frames of a channel, unless amqp091-go has closed it.
func (s *stream) send(c *Channel, frames []byte) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	if (*s.channels.Load())[c.id] != c {
		return amqp.ErrClosed
	}
	_, err := s.Conn.Write(frames)
	return err
}

// sendPieces is send for frames in pieces, which must never change. Without TLS none is copied.
func (s *stream) sendPieces(c *Channel, pieces [][]byte) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	if (*s.channels.Load())[c.id] != c {
		return amqp.ErrClosed
	}
	if plain, ok := s.Conn.(*socket); ok {
		return plain.keep(pieces)
	}
	for _, piece := range pieces {
		if _, err := s.Conn.Write(piece); err != nil {
			return err
		}
	}
	return nil
}

// errSpeaksTLS says that the broker has answered with an alert of TLS.
var errSpeaksTLS = errors.New("the broker speaks TLS on this port: use amqps://")

// cause returns why reading failed, or nil. amqp091-go keeps no more than the text.
func (s *stream) cause() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed
}
