package link

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"

	"github.com/millpond-go/millpond/internal/wire"
)

const (
	frameHead   = 1 + 2 + 4 // type, channel, size
	frameEnd    = 1
	headerFrame = 2
	// tlsAlert and tlsMajor begin the TLS record that says that the client does not speak TLS.
	tlsAlert, tlsMajor = 21, 3
	// maxHeaderFrame is larger than any frame that a broker negotiates (F16). A frame that claims
	// to be larger is passed on, and amqp091-go refuses it.
	maxHeaderFrame = 1 << 20
	// keepUnreadable is the number of bytes kept of headers that cannot be read, so that they fit
	// in a frame together with our headers.
	keepUnreadable = 120 << 10
)

// stream is the connection that amqp091-go reads from. Headers that amqp091-go cannot read would
// end the connection of every consumer that gets the message. stream replaces them first (F26).
type stream struct {
	net.Conn
	unreadable string // name of the header in their place
	in         *bufio.Reader
	begun      bool
	pass       int    // bytes of a frame that are passed on unseen
	ready      []byte // bytes of a frame that was looked at
	frame      []byte // reused

	mu     sync.Mutex
	failed error
}

func newStream(conn net.Conn, unreadable string) *stream {
	return &stream{Conn: conn, unreadable: unreadable, in: bufio.NewReaderSize(conn, 16<<10)}
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

// next looks at the beginning of a frame.
func (s *stream) next() error {
	s.frame = append(s.frame[:0], make([]byte, frameHead)...)
	if _, err := io.ReadFull(s.in, s.frame); err != nil {
		return err
	}
	if !s.begun && s.frame[0] == tlsAlert && s.frame[1] == tlsMajor {
		return errSpeaksTLS
	}
	s.begun = true
	size := int(binary.BigEndian.Uint32(s.frame[3:]))
	if s.frame[0] != headerFrame || size > maxHeaderFrame {
		s.ready, s.pass = s.frame, size+frameEnd
		return nil
	}
	s.frame = append(s.frame, make([]byte, size+frameEnd)...)
	switch _, err := io.ReadFull(s.in, s.frame[frameHead:]); {
	case err == io.EOF: // none of them has come
		return io.ErrUnexpectedEOF
	case err != nil:
		return err
	}
	payload := s.frame[frameHead : frameHead+size]
	s.ready = s.frame
	if replaced, ok := wire.ReplaceUnreadable(payload, s.unreadable, keepUnreadable); ok {
		end := s.frame[frameHead+size:]
		s.ready = append([]byte{}, s.frame[:3]...)
		s.ready = binary.BigEndian.AppendUint32(s.ready, uint32(len(replaced)))
		s.ready = append(append(s.ready, replaced...), end...)
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
