package link

import (
	"net"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"
)

const (
	// flushAt is how much is held back for a common system call, at most.
	flushAt = 64 << 10
	// backlogLimit is the backlog from which a publish waits for its turn.
	backlogLimit = 256 << 10
	// lastWords is how long a broker that takes nothing any more may still be read:
	// it may have said why.
	lastWords = time.Second
)

// socket never keeps a writer waiting. RabbitMQ stops reading from a publishing
// connection under an alarm; with the buffers full, a write would block for as long
// as the alarm lasts, holding the connection's lock. What does not fit into the
// buffers of the system is written by a goroutine, and where that makes no progress
// for a while, the connection is over.
//
// Writers that hold it share a system call: what they write leaves with the last
// of them that is ready to run.
type socket struct {
	net.Conn
	timeout time.Duration // for a write to make progress
	raw     syscall.RawConn

	mu      sync.Mutex
	holds   int    // writers that bring more
	leaving bool   // one of them flushes in a moment
	pending []byte // not given to the system yet, without what the goroutine has
	taken   int    // bytes that the goroutine has
	drained chan struct{}
	err     error     // nothing is written any more
	limit   time.Time // no write goes on beyond it; zero: none
}

func newSocket(conn net.Conn, timeout time.Duration) *socket {
	s := &socket{Conn: conn, timeout: timeout}
	if c, ok := conn.(syscall.Conn); ok {
		s.raw, _ = c.SyscallConn() // without one, the goroutine writes everything
	}
	return s
}

// Write takes all of b, or fails because an earlier write has failed.
func (s *socket) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return 0, s.err
	}
	sent := 0
	if s.holds == 0 && len(s.pending) == 0 && s.taken == 0 {
		sent = s.try(b)
	}
	if sent < len(b) {
		s.pending = append(s.pending, b[sent:]...)
		if s.holds == 0 || len(s.pending) >= flushAt {
			s.flush()
		}
	}
	if s.err != nil {
		return 0, s.err
	}
	return len(b), nil
}

// hold keeps back what is written until release.
func (s *socket) hold() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.holds++
}

// release lets everything leave that was written, after those who are about to
// write have done so.
func (s *socket) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.holds--
	if s.leaving || len(s.pending) == 0 {
		return
	}
	s.leaving = true
	s.mu.Unlock()
	runtime.Gosched()
	s.mu.Lock()
	s.leaving = false
	s.flush()
}

// backlog returns a channel that is closed when what was written has left; nil
// where that is little enough.
func (s *socket) backlog() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.taken == 0 || s.err != nil || len(s.pending)+s.taken < backlogLimit {
		return nil
	}
	return s.drained
}

// flush gives what is pending to the system, or to a goroutine what does not fit.
// s.mu is held.
func (s *socket) flush() {
	if s.taken > 0 || len(s.pending) == 0 || s.err != nil {
		return
	}
	sent := s.try(s.pending)
	s.pending = s.pending[:copy(s.pending, s.pending[sent:])]
	s.keepLittle()
	if len(s.pending) > 0 && s.err == nil {
		s.taken = len(s.pending)
		s.drained = make(chan struct{})
		go s.write(s.pending)
		s.pending = nil
	}
}

// keepLittle lets go of what a large message has taken. s.mu is held.
func (s *socket) keepLittle() {
	if len(s.pending) == 0 && cap(s.pending) > 4*flushAt {
		s.pending = nil
	}
}

// try gives to the system what it takes without waiting. s.mu is held.
func (s *socket) try(b []byte) (sent int) {
	if s.raw == nil {
		return 0
	}
	sent, err := send(s.raw, b)
	if err != nil {
		s.fail(&net.OpError{Op: "write", Net: s.LocalAddr().Network(), Source: s.LocalAddr(), Addr: s.RemoteAddr(), Err: err})
	}
	return sent
}

// write writes b and whatever is pending after it.
func (s *socket) write(b []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer close(s.drained)
	for rest := b; s.err == nil; {
		if len(rest) == 0 {
			b, s.pending = s.pending, b[:0]
			rest, s.taken = b, len(b)
			if s.taken == 0 {
				s.keepLittle()
				_ = s.SetWriteDeadline(s.limit)
				return
			}
		}
		piece := rest[:min(len(rest), flushAt)]
		_ = s.SetWriteDeadline(s.deadline())
		s.mu.Unlock()
		_, err := s.Conn.Write(piece)
		s.mu.Lock()
		if err != nil {
			s.fail(err)
		}
		rest = rest[len(piece):]
		s.taken = len(rest)
	}
}

func (s *socket) deadline() time.Time {
	deadline := time.Now().Add(s.timeout)
	if !s.limit.IsZero() && s.limit.Before(deadline) {
		return s.limit
	}
	return deadline
}

// fail ends the writing, and the reading with it: nobody may be there whom a
// failed write could tell. s.mu is held.
func (s *socket) fail(err error) {
	if s.err == nil {
		s.err = err
		_ = s.SetReadDeadline(time.Now().Add(lastWords))
	}
}

// Read says why nothing can be written any more where it fails for that.
func (s *socket) Read(b []byte) (int, error) {
	n, err := s.Conn.Read(b)
	if err != nil && os.IsTimeout(err) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.err != nil {
			err = s.err
		}
	}
	return n, err
}

// SetDeadline is what amqp091-go calls for the handshake and for a bounded
// close; it outranks the timeout of a single write.
func (s *socket) SetDeadline(t time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.limit = t
	err := s.Conn.SetDeadline(t)
	if s.taken > 0 {
		err = s.SetWriteDeadline(s.deadline())
	}
	return err
}

// Close closes the connection. What fits into the buffers of the system still
// leaves.
func (s *socket) Close() error {
	s.mu.Lock()
	if s.taken == 0 && s.err == nil && len(s.pending) > 0 {
		s.try(s.pending)
		s.pending = nil
	}
	s.mu.Unlock()
	return s.Conn.Close()
}
