package link

import (
	"net"
	"sync"
	"time"
)

// socket bounds every write. RabbitMQ stops reading from a publishing
// connection under an alarm; with the buffers full a write without a deadline
// blocks for as long as the alarm lasts, holding the connection's lock.
type socket struct {
	net.Conn
	timeout time.Duration

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

// SetDeadline is what amqp091-go calls for the handshake and for a bounded
// close; it outranks the timeout of a single write.
func (s *socket) SetDeadline(t time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.limit = t
	return s.Conn.SetDeadline(t)
}
