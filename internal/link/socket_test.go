package link

import (
	"io"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

// patience bounds operations that must not wait for the timeout of a single write.
const patience = 30 * time.Second

// flood is more than the buffers of two sockets take.
var flood = func() []byte {
	b := make([]byte, 32<<20)
	for i := range b {
		b[i] = byte(i >> 8)
	}
	return b
}()

// stalled returns a socket whose peer reads nothing until drain, which reads until the end.
func stalled(t *testing.T, timeout time.Duration) (s *socket, drain func() string) {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	conn, err := net.Dial("tcp4", l.Addr().String())
	require.NoError(t, err)
	peer, err := l.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(); _ = peer.Close() })
	return newSocket(conn, timeout), func() string {
		got, err := io.ReadAll(peer)
		assert.NoError(t, err)
		return string(got)
	}
}

// write writes b, and does not wait for the peer.
func write(t *testing.T, s *socket, b []byte) {
	t.Helper()
	begun := time.Now()
	n, err := s.Write(b)
	require.NoError(t, err)
	assert.Equal(t, len(b), n)
	assert.Less(t, time.Since(begun), patience/2)
}

// endsWith reads until the connection ends with an error of this kind, before a long timeout would
// end it.
func endsWith(t *testing.T, s *socket, want error) (took time.Duration, err error) {
	t.Helper()
	begun := time.Now()
	_, err = s.Read(make([]byte, 1))
	took = time.Since(begun)
	assert.ErrorIs(t, err, want)
	assert.Less(t, took, patience/2)
	return took, err
}

func TestWriteThatMakesNoProgressEndsTheConnection(t *testing.T) {
	t.Parallel()
	s, _ := stalled(t, 300*time.Millisecond)
	write(t, s, flood)
	took, err := endsWith(t, s, os.ErrDeadlineExceeded)
	assert.ErrorContains(t, err, "write tcp", "reading returns the reason")
	assert.GreaterOrEqual(t, took, 250*time.Millisecond)
	_, err = s.Write([]byte("a"))
	assert.ErrorIs(t, err, os.ErrDeadlineExceeded)
}

func TestWriteTimeoutBeginsWithEachWrite(t *testing.T) {
	t.Parallel()
	s, drain := stalled(t, 300*time.Millisecond)
	write(t, s, []byte("a"))
	<-time.After(400 * time.Millisecond) // longer than the timeout of the first
	write(t, s, []byte("b"))
	require.NoError(t, s.Close())
	assert.Equal(t, "ab", drain())
}

func TestDeadlineEndsABlockedWrite(t *testing.T) {
	t.Parallel()
	s, _ := stalled(t, patience)
	write(t, s, flood)
	require.NoError(t, s.SetDeadline(time.Now().Add(200*time.Millisecond)))
	endsWith(t, s, os.ErrDeadlineExceeded)
	// Reading may end a moment before writing does.
	testbroker.WaitFor(t, "the backlog to be given up", patience, func() bool {
		return s.backlog() == nil
	})
}

func TestTimeoutGoesBeforeALaterDeadline(t *testing.T) {
	t.Parallel()
	s, _ := stalled(t, 200*time.Millisecond)
	require.NoError(t, s.SetDeadline(time.Now().Add(time.Hour)))
	write(t, s, flood)
	endsWith(t, s, os.ErrDeadlineExceeded)
}

// The deadline of a handshake that has ended does not bind the bytes after it.
func TestDeadlineThatIsTakenBack(t *testing.T) {
	t.Parallel()
	s, drain := stalled(t, patience)
	require.NoError(t, s.SetDeadline(time.Now().Add(200*time.Millisecond)))
	endsWith(t, s, os.ErrDeadlineExceeded)
	require.NoError(t, s.SetDeadline(time.Time{}))
	write(t, s, []byte("a"))
	require.NoError(t, s.Close())
	assert.Equal(t, "a", drain())
}

// A peer that reads again finds all bytes in their order, whether the system or the goroutine has
// written them.
func TestBytesThatDoNotFitLeaveInTheirOrder(t *testing.T) {
	t.Parallel()
	for name, wrap := range map[string]func(net.Conn) net.Conn{
		"a socket of the system": func(c net.Conn) net.Conn { return c },
		"a connection of a user": func(c net.Conn) net.Conn { return struct{ net.Conn }{c} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			plain, drain := stalled(t, patience)
			s := newSocket(wrap(plain.Conn), patience)
			write(t, s, []byte("begin"))
			write(t, s, flood)
			wait := s.backlog()
			require.NotNil(t, wait)
			s.hold()
			write(t, s, []byte("and "))
			require.NoError(t, s.keep([][]byte{[]byte("again "), flood}))
			write(t, s, []byte("end"))
			s.release()
			result := make(chan string)
			go func() { result <- drain() }()
			select {
			case <-wait:
			case <-time.After(patience):
				t.Fatal("the backlog stays")
			}
			assert.Nil(t, s.backlog())
			require.NoError(t, s.Close())
			got := <-result
			assert.True(t, got == "begin"+string(flood)+"and again "+string(flood)+"end",
				"%d bytes", len(got))
		})
	}
}

// writes counts the system calls of a socket that cannot write without waiting.
type writes struct {
	net.Conn
	n atomic.Int64
}

func (w *writes) Write(b []byte) (int, error) {
	w.n.Add(1)
	return w.Conn.Write(b)
}

// Goroutines that write at the same time share a system call, and no byte stays behind.
func TestHeldWritesLeaveTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		conn, peer := net.Pipe()
		counted := &writes{Conn: conn}
		s := newSocket(counted, patience)
		const writers, each = 16, 50
		s.hold()
		for range writers {
			go func() {
				for range each {
					s.hold()
					write(t, s, []byte("x"))
					s.release()
				}
			}()
		}
		synctest.Wait()
		assert.EqualValues(t, 1, counted.n.Load(), "another writer's hold keeps nothing back")
		s.release()
		got := make(chan []byte, 1)
		go func() {
			all, _ := io.ReadAll(peer)
			got <- all
		}()
		synctest.Wait()
		require.NoError(t, s.Close())
		assert.Len(t, <-got, writers*each)
		assert.LessOrEqual(t, counted.n.Load(), int64(2), "what came during the first write left at once")
	})
}

// Bytes that were written and held leave before the connection is closed.
func TestCloseLetsHeldWritesLeave(t *testing.T) {
	t.Parallel()
	s, drain := stalled(t, patience)
	s.hold()
	write(t, s, []byte("goodbye"))
	require.NoError(t, s.Close())
	assert.Equal(t, "goodbye", drain())
}

func TestFailedWriteEndsReadingToo(t *testing.T) {
	t.Parallel()
	s, _ := stalled(t, patience)
	s.mu.Lock()
	s.fail(syscall.EPIPE)
	s.mu.Unlock()
	endsWith(t, s, syscall.EPIPE)
	_, err := s.Write([]byte("a"))
	assert.ErrorIs(t, err, syscall.EPIPE)
}
