package link

import (
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// stalled returns a socket whose peer reads nothing until told to.
func stalled(t *testing.T, timeout time.Duration) (s *socket, drain func() []byte) {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	conn, err := net.Dial("tcp4", l.Addr().String())
	require.NoError(t, err)
	peer, err := l.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(); _ = peer.Close() })
	return &socket{Conn: conn, timeout: timeout}, func() []byte {
		got, err := io.ReadAll(peer)
		assert.NoError(t, err)
		return got
	}
}

// patience bounds what must not wait for the timeout of a single write.
const patience = 30 * time.Second

// flood is more than the buffers of two sockets take.
var flood = make([]byte, 32<<20)

func timed(f func() error) (time.Duration, error) {
	begun := time.Now()
	err := f()
	return time.Since(begun), err
}

func write(s *socket) func() error {
	return func() error {
		_, err := s.Write(flood)
		return err
	}
}

func TestWriteEndsAtItsTimeout(t *testing.T) {
	t.Parallel()
	s, _ := stalled(t, 300*time.Millisecond)
	took, err := timed(write(s))
	assert.ErrorIs(t, err, os.ErrDeadlineExceeded)
	assert.GreaterOrEqual(t, took, 300*time.Millisecond)
	assert.Less(t, took, 10*time.Second)
}

func TestWriteTimeoutBeginsWithEachWrite(t *testing.T) {
	t.Parallel()
	s, drain := stalled(t, 300*time.Millisecond)
	_, err := s.Write([]byte("a"))
	require.NoError(t, err)
	<-time.After(400 * time.Millisecond) // longer than the timeout of the first
	_, err = s.Write([]byte("b"))
	require.NoError(t, err)
	require.NoError(t, s.Close())
	assert.Equal(t, "ab", string(drain()))
}

func TestDeadlineEndsABlockedWrite(t *testing.T) {
	t.Parallel()
	s, _ := stalled(t, patience)
	result := make(chan error, 1)
	go func() { result <- write(s)() }()
	require.NoError(t, s.SetDeadline(time.Now().Add(200*time.Millisecond)))
	select {
	case err := <-result:
		assert.ErrorIs(t, err, os.ErrDeadlineExceeded)
	case <-time.After(patience / 2):
		t.Fatal("the write goes on")
	}
}

func TestTimeoutGoesBeforeALaterDeadline(t *testing.T) {
	t.Parallel()
	s, _ := stalled(t, 200*time.Millisecond)
	require.NoError(t, s.SetDeadline(time.Now().Add(time.Hour)))
	_, err := timed(write(s))
	assert.ErrorIs(t, err, os.ErrDeadlineExceeded)
}

func TestDeadlineOfTheHandshakeOutranksTheTimeout(t *testing.T) {
	t.Parallel()
	s, drain := stalled(t, patience)
	require.NoError(t, s.SetDeadline(time.Now().Add(200*time.Millisecond)))
	took, err := timed(write(s))
	assert.ErrorIs(t, err, os.ErrDeadlineExceeded)
	assert.Less(t, took, patience/2)
	_, err = s.Read(make([]byte, 1))
	assert.ErrorIs(t, err, os.ErrDeadlineExceeded)

	require.NoError(t, s.SetDeadline(time.Time{}))
	drained := make(chan []byte)
	go func() { drained <- drain() }() // for the buffers are full
	_, err = s.Write([]byte("a"))
	assert.NoError(t, err)
	require.NoError(t, s.Close())
	got := <-drained
	assert.Equal(t, "a", string(got[len(got)-1:]))
}
