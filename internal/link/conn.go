package link

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// ErrLost is the cause of an operation that ended with its connection.
var ErrLost = errors.New("connection to the broker was lost")

// Conn is one connection, from its dial to its end. A publish asks Unblocked and Backlog whether
// it may write, and writes within Together. The rest of the write path is socket's.
type Conn struct {
	*amqp.Connection
	socket  *socket
	stream  *stream
	cluster *Cluster
	gone    chan struct{}

	mu        sync.Mutex
	killed    error // the reason of Kill
	cause     error
	unblocked chan struct{} // nil while the broker takes publishes
}

// User returns the user of the connection, or "" where a certificate or another mechanism names it.
func (c *Conn) User() string {
	for _, auth := range c.Config.SASL { // amqp091-go has left the mechanism that was used
		switch auth := auth.(type) {
		case *amqp.PlainAuth:
			return auth.Username
		case *amqp.AMQPlainAuth:
			return auth.Username
		}
	}
	return ""
}

// Unblocked returns a channel that is closed when the broker takes publishes again. It is nil
// while the broker takes them.
func (c *Conn) Unblocked() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.unblocked
}

// Backlog returns a channel that is closed when everything that was written has left. It is nil
// while more may be written.
func (c *Conn) Backlog() <-chan struct{} { return c.socket.backlog() }

// Together runs f. The bytes that f writes leave in one system call with the bytes that other
// goroutines write at the same time. Together does not wait for that call. An error of it ends
// the connection.
func (c *Conn) Together(f func()) {
	c.socket.hold()
	defer c.socket.release()
	f()
}

const (
	// flushAt is the largest number of bytes held back for a common system call.
	flushAt = 64 << 10
	// backlogLimit is the backlog from which a publish waits for its turn.
	backlogLimit = 256 << 10
	// lastWords is how long reading goes on after a failed write: the broker may have said why.
	lastWords = time.Second
)

// socket never keeps a writer waiting. Under an alarm, RabbitMQ stops reading from a connection
// that publishes. Then the buffers fill, and a write would block for as long as the alarm lasts,
// with the connection's lock held. So a goroutine writes the bytes that do not fit into the
// system's buffers. If it makes no progress for a while, the connection is over.
//
// Writers that hold the socket share a system call: a goroutine, the flusher, writes what they have
// left together.
type socket struct {
	net.Conn
	timeout time.Duration // for a write to make progress
	raw     syscall.RawConn

	mu      sync.Mutex
	holds   int           // writers that bring more
	leaving bool          // the flusher flushes in a moment
	wake    chan struct{} // of the flusher; nil before the first release and after Close
	closed  bool
	pending [][]byte // not given to the system yet, without the goroutine's bytes
	size    int      // of pending and ours
	ours    []byte   // copied bytes, behind those of pending
	taken   int      // bytes that the goroutine has
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

// hold keeps back all bytes that are written until release.
func (s *socket) hold() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.holds++
}

// Write takes all of b, or fails because an earlier write has failed.
func (s *socket) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return 0, s.err
	}
	sent := 0
	if s.holds == 0 && s.size == 0 && s.taken == 0 {
		sent = s.try(b)
	}
	if sent < len(b) {
		s.ours = append(s.ours, b[sent:]...)
		s.size += len(b) - sent
		s.flushMuch()
	}
	if s.err != nil {
		return 0, s.err
	}
	return len(b), nil
}

// keep writes pieces without copying them: they must never change. It fails only because an earlier
// write has failed.
func (s *socket) keep(pieces [][]byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return s.err
	}
	s.seal()
	s.pending = append(s.pending, pieces...)
	for _, piece := range pieces {
		s.size += len(piece)
	}
	s.flushMuch()
	return s.err
}

// seal puts the bytes that were copied behind the pending ones. s.mu is held.
func (s *socket) seal() {
	if len(s.ours) > 0 {
		s.pending = append(s.pending, s.ours)
		s.ours = nil
	}
}

// flushMuch flushes, unless writers bring more. s.mu is held.
func (s *socket) flushMuch() {
	if s.holds == 0 || s.size >= flushAt {
		s.flush()
	}
}

// release lets all bytes leave that were written. The flusher writes them, so that the writer goes
// on at once.
func (s *socket) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.holds--
	if s.leaving || s.closed || s.size == 0 {
		return
	}
	if s.wake == nil {
		s.wake = make(chan struct{}, 1)
		go s.flushWhen(s.wake)
	}
	s.leaving = true
	s.wake <- struct{}{} // never waits: it is empty unless s.leaving
}

// flushWhen flushes each time that it is woken. It first lets the writers run that are about to
// write.
func (s *socket) flushWhen(wake <-chan struct{}) {
	for range wake {
		runtime.Gosched()
		s.mu.Lock()
		s.leaving = false
		s.flush()
		s.mu.Unlock()
	}
}

// flush gives the pending bytes to the system, and the bytes that do not fit to a goroutine.
// s.mu is held.
func (s *socket) flush() {
	if s.taken > 0 || s.size == 0 || s.err != nil {
		return
	}
	if len(s.pending) == 0 { // most often
		sent := s.try(s.ours)
		s.size -= sent
		if s.size == 0 {
			if s.ours = s.ours[:0]; cap(s.ours) > 4*flushAt { // of a large message
				s.ours = nil
			}
			return
		}
		s.ours = s.ours[sent:]
	}
	s.seal()
	for i, piece := range s.pending {
		sent := s.try(piece)
		s.size -= sent
		if s.pending[i] = piece[sent:]; sent < len(piece) {
			break
		}
	}
	rest, size := s.take()
	if size > 0 && s.err == nil {
		s.taken = size
		s.drained = make(chan struct{})
		go s.write(rest)
	}
}

// take returns the pending bytes, which are pending no more. s.mu is held.
func (s *socket) take() (pieces [][]byte, size int) {
	s.seal()
	pieces, size = s.pending, s.size
	s.pending, s.size = nil, 0
	return pieces, size
}

// try gives the system as many bytes as it takes without waiting. s.mu is held.
func (s *socket) try(b []byte) (sent int) {
	if s.raw == nil {
		return 0
	}
	sent, err := send(s.raw, b)
	if err != nil {
		s.fail(&net.OpError{
			Op: "write", Net: s.LocalAddr().Network(),
			Source: s.LocalAddr(), Addr: s.RemoteAddr(), Err: err,
		})
	}
	return sent
}

// write writes the pieces, and the bytes that are pending after them.
func (s *socket) write(pieces [][]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer close(s.drained)
	for s.taken > 0 || s.size > 0 {
		if s.taken == 0 {
			pieces, s.taken = s.take()
		}
		for i := 0; i < len(pieces) && s.err == nil; {
			piece := pieces[i][:min(len(pieces[i]), flushAt)]
			_ = s.SetWriteDeadline(s.deadline())
			s.mu.Unlock()
			_, err := s.Conn.Write(piece)
			s.mu.Lock()
			if err != nil {
				s.fail(err)
			}
			s.taken -= len(piece)
			if pieces[i] = pieces[i][len(piece):]; len(pieces[i]) == 0 {
				i++
			}
		}
		if s.err != nil {
			return
		}
	}
	_ = s.SetWriteDeadline(s.limit)
}

func (s *socket) deadline() time.Time {
	deadline := time.Now().Add(s.timeout)
	if !s.limit.IsZero() && s.limit.Before(deadline) {
		return s.limit
	}
	return deadline
}

// fail ends the writing. It ends the reading with it, because no writer may be left to see the
// error. s.mu is held.
func (s *socket) fail(err error) {
	if s.err == nil {
		s.err = err
		_ = s.SetReadDeadline(time.Now().Add(lastWords))
	}
}

// backlog returns a channel that is closed when everything that was written has left. It is nil
// if that is little enough.
func (s *socket) backlog() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.taken == 0 || s.err != nil || s.size+s.taken < backlogLimit {
		return nil
	}
	return s.drained
}

// Read returns the error of the failed write if that write has ended the reading.
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

// SetDeadline is called by amqp091-go for the handshake and for a bounded close. It goes before
// the timeout of a single write.
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

// Close closes the connection. Bytes that fit into the system's buffers still leave.
func (s *socket) Close() error {
	s.mu.Lock()
	if s.taken == 0 && s.err == nil {
		pieces, _ := s.take()
		for _, piece := range pieces {
			if s.try(piece) < len(piece) {
				break
			}
		}
	}
	if s.closed = true; s.wake != nil {
		close(s.wake)
		s.wake = nil
	}
	s.mu.Unlock()
	return s.Conn.Close()
}

// watch follows the connection until it ends.
func (c *Conn) watch(closed <-chan *amqp.Error, blocked <-chan amqp.Blocking) {
	defer close(c.gone)
	defer c.cluster.leave()
	// While a write is blocked, amqp091-go cannot finish its own close.
	defer func() { _ = c.socket.Close() }()
	for {
		select {
		case b, ok := <-blocked:
			if !ok {
				blocked = nil
				continue
			}
			c.setBlocked(b.Active)
		case err := <-closed:
			c.mu.Lock()
			switch c.cause = ErrLost; {
			case c.killed != nil:
				c.cause = fmt.Errorf("%w: %w", ErrLost, c.killed)
			case err != nil:
				c.cause = fmt.Errorf("%w: %w", ErrLost, err)
			}
			c.mu.Unlock()
			return
		}
	}
}

func (c *Conn) setBlocked(active bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case active && c.unblocked == nil:
		c.unblocked = make(chan struct{})
	case !active && c.unblocked != nil:
		close(c.unblocked)
		c.unblocked = nil
	}
}

// Gone is closed when the connection has ended.
func (c *Conn) Gone() <-chan struct{} { return c.gone }

// Cause returns why the connection ended, or nil while it lives.
func (c *Conn) Cause() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cause
}

// Kill ends the connection without asking the broker. reason becomes its cause.
func (c *Conn) Kill(reason error) {
	c.mu.Lock()
	if c.killed == nil {
		c.killed = reason
	}
	c.mu.Unlock()
	_ = c.socket.Close()
}

// Close ends the connection. It waits for the broker's goodbye for at most limit.
func (c *Conn) Close(limit time.Duration) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = c.CloseDeadline(time.Now().Add(limit))
	}()
	select {
	case <-c.gone: // amqp091-go may be closing it already, without a limit
	case <-time.After(limit):
		c.Kill(errors.New("the broker has not answered the goodbye"))
		<-c.gone
	}
	<-done
}

// Do runs f on a new channel, so that an error of the broker closes no channel that others use.
// It returns at the end of ctx at the latest. Then f may still be waiting for the broker, and
// ends with the connection: after an error, the caller must not read what f writes. An error of f
// on a connection that has ended names why it ended, too.
func (c *Conn) Do(ctx context.Context, f func(*amqp.Channel) error) error {
	done := make(chan error, 1)
	go func() {
		ch, err := c.Channel()
		if err != nil {
			done <- c.why(fmt.Errorf("open channel: %w", err))
			return
		}
		if err = context.Cause(ctx); err == nil { // otherwise the caller has gone
			err = c.why(f(ch))
		}
		_ = ch.Close()
		done <- err
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// why puts the cause before an error that says only that the connection has ended: amqp091-go tells
// the broker's reason to the calls that wait, and ErrClosed to those that follow.
func (c *Conn) why(err error) error {
	if !errors.Is(err, amqp.ErrClosed) || !c.IsClosed() {
		return err
	}
	<-c.gone
	return fmt.Errorf("%w: %w", c.Cause(), err)
}
