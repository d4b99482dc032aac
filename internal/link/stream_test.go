package link

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/wire"
)

// wired is a connection that reads from a Reader.
type wired struct {
	net.Conn
	io.Reader
}

func (w wired) Read(p []byte) (int, error) { return w.Reader.Read(p) }

func streamOf(data []byte, slow bool) *stream {
	var r io.Reader = bytes.NewReader(data)
	if slow {
		r = iotest.OneByteReader(r)
	}
	return newStream(wired{Reader: r}, "raw")
}

func frame(kind byte, payload []byte) []byte {
	b := binary.BigEndian.AppendUint32([]byte{kind, 0, 1}, uint32(len(payload)))
	return append(append(b, payload...), 0xCE)
}

// bodiless begins the payload of a content header frame with headers, before their table.
const bodiless = "\x00\x3c\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x20\x00"

// Every frame passes as it is, except a content header that amqp091-go cannot read.
func FuzzStream(f *testing.F) {
	bad := []byte(bodiless + "\x00\x00\x00\x0b\x01kL12345678")
	f.Add(byte(headerFrame), bad, []byte("body"), []byte(nil), true)
	f.Add(byte(headerFrame), bad[:17], []byte{}, []byte{2, 0}, false)
	f.Add(byte(1), []byte("method"), bytes.Repeat([]byte("b"), 40_000),
		[]byte{2, 0, 1, 0xff, 0xff, 0xff, 0xff}, false)
	f.Add(byte(8), []byte{}, []byte{}, []byte{2, 0, 1, 0, 0, 0, 9, 1}, true)
	f.Fuzz(func(t *testing.T, kind byte, payload, body, rest []byte, slow bool) {
		if kind == tlsAlert {
			t.Skip("no frame")
		}
		first := frame(kind, payload)
		want := append([]byte{}, first...)
		replaced, ok := wire.ReplaceUnreadable(payload, "raw", keepUnreadable)
		if ok && kind == headerFrame {
			want = frame(kind, replaced)
		}
		second := frame(3, body)
		got, _ := io.ReadAll(streamOf(append(append(first, second...), rest...), slow))
		if want = append(want, second...); !bytes.HasPrefix(got, want) {
			t.Fatalf("got %q, want it to begin with %q", got, want)
		}
	})
}

func TestStreamThatEndsWithinAFrame(t *testing.T) {
	t.Parallel()
	whole := frame(headerFrame, []byte("payload"))
	for n := range len(whole) {
		s := streamOf(whole[:n], n%2 == 0)
		_, err := io.ReadAll(s)
		if n == 0 {
			require.NoError(t, err) // EOF
		} else {
			require.ErrorIs(t, err, io.ErrUnexpectedEOF, n)
		}
		require.Error(t, s.cause())
	}
}

func TestStreamNamesAPortThatSpeaksTLS(t *testing.T) {
	t.Parallel()
	_, err := io.ReadAll(streamOf([]byte("\x15\x03\x03\x00\x02\x02\x46"), false))
	require.ErrorIs(t, err, errSpeaksTLS)
}

// A frame that passes is not copied into new memory.
func TestStreamAllocatesNothing(t *testing.T) {
	header := frame(headerFrame, []byte(bodiless+"\x00\x00\x00\x03\x01kV"))
	data := strings.Repeat(string(header)+string(frame(3, []byte("body"))), 2000)
	s := streamOf([]byte(data), false)
	p := make([]byte, 4096)
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		if _, err := s.Read(p); err != nil {
			t.Fatal(err)
		}
	}))
}
