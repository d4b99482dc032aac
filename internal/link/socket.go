package link

import (
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// socket bounds every write. RabbitMQ stops reading from a publishing
// connection under an alarm; with the buffers full a write without a deadline
// blocks for as long as the alarm lasts, holding the connection's lock.
type socket struct {
	net.Conn
	timeout  time.Duration
	lastRead atomic.Int64 // unix nanoseconds

	mu    sync.Mutex
	limit time.Time // no write goes on beyond it; zero: none
}

func (s *socket) Write(b []byte) (int, error) {
	deadline := time.Now().Add(s.timeout)
	s.mu.Lock()
	if !s.limit.IsZero() && s.limit.Before(deadline) {
		deadline = s.limit
	}
	err := s.Conn.SetWriteDeadline(deadline)
	s.mu.Unlock()
	if err != nil {
		return 0, err
	}
	return s.Conn.Write(b)
}

func (s *socket) Read(b []byte) (int, error) {
	n, err := s.Conn.Read(b)
	if n > 0 {
		s.lastRead.Store(time.Now().UnixNano())
	}
	return n, err
}

// SetDeadline is what amqp091-go calls for the handshake and for a bounded
// close; it outranks the timeout of a single write.
func (s *socket) SetDeadline(t time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.limit = t
	return s.Conn.SetDeadline(t)
}

// limitWrites ends writes at t, also one that is blocked now; zero lifts it.
func (s *socket) limitWrites(t time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.limit = t
	if !t.IsZero() {
		_ = s.Conn.SetWriteDeadline(t)
	}
}
