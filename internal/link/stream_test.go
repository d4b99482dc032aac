package link

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	amqpframe "github.com/millpond-go/millpond/internal/testing/frame"
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
	f.Add(byte(wire.HeaderFrame), bad, []byte("body"), []byte(nil), true)
	f.Add(byte(wire.HeaderFrame), bad[:17], []byte{}, []byte{2, 0}, false)
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
		if ok && kind == wire.HeaderFrame {
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
	whole := frame(wire.HeaderFrame, []byte("payload"))
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
	header := frame(wire.HeaderFrame, []byte(bodiless+"\x00\x00\x00\x03\x01kV"))
	data := strings.Repeat(string(header)+string(frame(3, []byte("body"))), 2000)
	s := streamOf([]byte(data), false)
	p := make([]byte, 4096)
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		if _, err := s.Read(p); err != nil {
			t.Fatal(err)
		}
	}))
}

// A large body is allocated once when it is read, and not at all when its copy is sent. A header
// that claims more than comes allocates sixteen times the bytes that have come at most.
func TestALargeBodyIsAllocatedOnce(t *testing.T) {
	const size = 16 << 20
	msg := amqp.Publishing{Body: bytes.Repeat([]byte("b"), size)}
	publish := wire.AppendPublish(nil, 1, 131072, "", "", false, &msg)
	_, content, _ := amqpframe.Next(publish)
	delivery := slices.Concat(amqpframe.NewMethod(1, wire.BasicDeliver, amqpframe.Short("tag"),
		amqpframe.Long(1), []byte{0}, amqpframe.Short(""), amqpframe.Short("queue")), content)
	c := &Channel{id: 1}
	read := func(come int) {
		s := streamOf(delivery[:come], false)
		s.know(c)
		_, err := io.ReadAll(s)
		require.Equal(t, come < len(delivery), err != nil)
	}
	allocated := func(f func()) int {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		f()
		runtime.ReadMemStats(&after)
		return int(after.TotalAlloc - before.TotalAlloc)
	}
	require.Less(t, allocated(func() { read(len(delivery)) }), size*5/4)
	require.Less(t, allocated(func() { read(300_000) }), 20*300_000)

	conn, peer := net.Pipe()
	defer peer.Close()
	s := newStream(newSocket(conn, patience), "raw")
	s.know(c)
	c.conn = &Conn{Connection: &amqp.Connection{}, stream: s}
	c.conn.Config.FrameSize = 131072
	require.Less(t, allocated(func() { require.NoError(t, c.write("", "", false, &msg)) }), size/100)
	sent := make([]byte, len(publish))
	_, err := io.ReadFull(peer, sent)
	require.NoError(t, err)
	require.True(t, bytes.Equal(publish, sent))
}

// amqp091-go extends the deadline of reading with each frame that it sees. So it sees heartbeats
// while all others are taken from it.
func TestHeartbeatsTakeThePlaceOfTakenFrames(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client, broker := net.Pipe()
		s := newStream(client, "raw")
		s.know(&Channel{id: 1})
		const every, seconds = 300 * time.Millisecond, 60
		begun := time.Now()
		go func() {
			for time.Since(begun) < seconds*time.Second {
				_, _ = broker.Write(wire.AppendAck(nil, 1, 1, false))
				time.Sleep(every)
			}
			_ = broker.Close()
		}()
		heartbeat := []byte("\x08\x00\x00\x00\x00\x00\x00\xCE")
		last, n := begun, 0
		for p := make([]byte, 100); ; n++ {
			got, err := s.Read(p)
			if err != nil {
				break
			}
			require.Equal(t, heartbeat, p[:got])
			require.LessOrEqual(t, time.Since(last), 2*reminder)
			last = time.Now()
		}
		require.InDelta(t, seconds/reminder.Seconds(), n, seconds/5)
	})
}

// amqp091-go may write a frame in any pieces. They leave as a whole, and frames of a Channel leave
// between them.
func TestPiecesOfAFrameLeaveTogether(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	s := newStream(written{out: &out}, "raw")
	c := &Channel{id: 7}
	s.know(c)
	own := wire.AppendAck(nil, 7, 1, false)
	other := append(frame(3, bytes.Repeat([]byte("b"), 100)), frame(8, nil)...)
	all := append([]byte("AMQP\x00\x00\x09\x01"), other...)
	for cut := range all {
		out.Reset()
		want := all
		for _, piece := range [][]byte{all[:cut], all[cut:]} {
			n, err := s.Write(piece)
			require.NoError(t, err)
			require.Equal(t, len(piece), n)
			require.NoError(t, s.send(c, own))
		}
		acks, rest := 0, out.Bytes()
		for len(rest) > 0 {
			whole, behind, _ := amqpframe.Next(rest)
			require.NotNil(t, whole, "cut at %d", cut)
			if rest = behind; bytes.Equal(whole, own) {
				acks++
			} else {
				require.True(t, bytes.HasPrefix(want, whole), "cut at %d", cut)
				want = want[len(whole):]
			}
		}
		require.Equal(t, 2, acks)
		require.Empty(t, want)
	}
}

// written is a connection whose bytes are kept.
type written struct {
	net.Conn
	out *bytes.Buffer
}

func (w written) Write(b []byte) (int, error) { return w.out.Write(b) }

// Deliveries that did not fit into the buffer come before later ones, for which there is room.
func TestDeliveriesKeepTheirOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &Channel{id: 1}
		c.out, c.gone = make(chan amqp.Delivery, 4), make(chan struct{})
		next := uint64(0)
		for tag := range uint64(5000) {
			c.mu.Lock()
			c.put(&amqp.Delivery{DeliveryTag: tag})
			c.mu.Unlock()
			if tag%2 > 0 {
				require.Equal(t, next, (<-c.out).DeliveryTag)
				next++
			}
		}
		c.end()
	})
}
