package frame_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/frame"
)

func TestFrameIsReadAsItWasMade(t *testing.T) {
	t.Parallel()
	made := frame.NewMethod(7, frame.BasicAck, frame.Long(3), []byte{1})
	want := frame.Frame("\x01\x00\x07\x00\x00\x00\x0d\x00\x3c\x00\x50" +
		"\x00\x00\x00\x00\x00\x00\x00\x03\x01\xce")
	assert.Equal(t, want, made)
	read, err := frame.Read(bytes.NewReader(made))
	require.NoError(t, err)
	assert.Equal(t, made, read)
	assert.EqualValues(t, 7, read.Channel())
	assert.Equal(t, frame.BasicAck, read.Method())
	assert.Equal(t, "basic.ack", read.String())
	assert.Equal(t, []byte("\x00\x00\x00\x00\x00\x00\x00\x03\x01"), read.Args())

	_, err = frame.Read(bytes.NewReader(made[:len(made)-1]))
	assert.Error(t, err, "cut short")
}

func TestOtherFramesHaveNoMethod(t *testing.T) {
	t.Parallel()
	for kind, name := range map[byte]string{
		frame.KindHeader: "header", frame.KindBody: "body", frame.KindHeartbeat: "heartbeat",
		9: "unknown frame",
	} {
		f := frame.New(kind, 1, []byte{0, 60, 0, 80})
		assert.Zero(t, f.Method(), name)
		assert.Equal(t, name, f.String())
	}
	assert.Zero(t, frame.New(frame.KindMethod, 1, []byte{0, 60}).Method(), "too short")
	assert.Equal(t, "method 90.20", frame.NewMethod(1, 90<<16|20).String())
}

func TestNextTakesWholeFramesOnly(t *testing.T) {
	t.Parallel()
	first := frame.New(frame.KindBody, 1, []byte("first"))
	second := frame.New(frame.KindHeartbeat, 0, nil)
	stream := append(append([]byte("AMQP\x00\x00\x09\x01"), first...), second...)
	for cut := range len(stream) + 1 {
		var whole [][]byte
		var frames []bool
		rest := append([]byte(nil), stream[:cut]...)
		take := func() {
			for {
				next, left, isFrame := frame.Next(rest)
				if next == nil {
					return
				}
				whole, frames, rest = append(whole, next), append(frames, isFrame), left
			}
		}
		take()
		rest = append(append([]byte(nil), rest...), stream[cut:]...)
		take()
		require.Equal(t, [][]byte{stream[:8], first, second}, whole, "cut after %d bytes", cut)
		require.Equal(t, []bool{false, true, true}, frames)
		require.Empty(t, rest)
	}
}

func TestShortStrings(t *testing.T) {
	t.Parallel()
	s, rest := frame.TakeShort(append(frame.Short("orders"), "more"...))
	assert.Equal(t, "orders", s)
	assert.Equal(t, "more", string(rest))
}
