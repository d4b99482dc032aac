package e2e_test

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/internal/testing/frame"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/topology"
)

// recording reads the lines of a file in testdata/foreign.
func recording(t testing.TB, name string) [][]byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "foreign", name))
	require.NoError(t, err)
	var lines [][]byte
	for line := range strings.Lines(string(text)) {
		data, err := hex.DecodeString(strings.TrimSpace(line))
		require.NoError(t, err)
		lines = append(lines, data)
	}
	return lines
}

// plain is a TCP connection that speaks AMQP 0-9-1 by hand, on channel 1. It sends the bytes of
// properties.
type plain struct {
	t    testing.TB
	conn net.Conn
	in   *bufio.Reader
}

func dialTCP(t testing.TB, url string) *plain {
	t.Helper()
	uri, err := amqp.ParseURI(url)
	require.NoError(t, err)
	conn, err := net.DialTCP("tcp4", nil, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: uri.Port})
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(rig.Patience)))
	return &plain{t, conn, bufio.NewReader(conn)}
}

func dialPlain(t testing.TB, url string) *plain {
	t.Helper()
	p := dialTCP(t, url)
	p.send([]byte("AMQP\x00\x00\x09\x01"))
	p.await(frame.ConnectionStart)
	login := "\x00guest\x00guest"
	p.send(frame.NewMethod(0, frame.ConnectionStartOk, []byte{0, 0, 0, 0}, frame.Short("PLAIN"),
		binary.BigEndian.AppendUint32(nil, uint32(len(login))), []byte(login), frame.Short("en_US")))
	tune := p.await(frame.ConnectionTune).Args()
	p.send(frame.NewMethod(0, frame.ConnectionTuneOk, tune[:6], []byte{0, 0})) // no heartbeats
	p.send(frame.NewMethod(0, frame.ConnectionOpen, frame.Short("/"), frame.Short(""), []byte{0}))
	p.await(frame.ConnectionOpenOk)
	p.send(frame.NewMethod(1, frame.ChannelOpen, frame.Short("")))
	p.await(frame.ChannelOpenOk)
	p.send(frame.NewMethod(1, frame.ConfirmSelect, []byte{0}))
	p.await(frame.ConfirmSelectOk)
	return p
}

func (p *plain) send(data []byte) {
	p.t.Helper()
	_, err := p.conn.Write(data)
	require.NoError(p.t, err)
}

func (p *plain) await(want frame.Method) frame.Frame {
	p.t.Helper()
	f, err := frame.Read(p.in)
	require.NoError(p.t, err)
	require.Equal(p.t, want, f.Method(), "%x", []byte(f))
	return f
}

// replay091 publishes recorded messages, confirmed, and returns their number.
func replay091(t testing.TB, url string, lines [][]byte) int {
	t.Helper()
	p := dialPlain(t, url)
	for _, line := range lines {
		p.send(line)
		p.await(frame.BasicAck)
	}
	return len(lines)
}

// replay10 sends a recorded session of AMQP 1.0 and returns the number of its messages. The first
// frames wait for the answers of the broker, as the recorded client did.
func replay10(t testing.TB, url string, lines [][]byte) int {
	t.Helper()
	const outcome, flow, transfer, end = 0x44, 0x13, 0x14, 0x18
	p := dialTCP(t, url)
	protocol := func(line []byte) {
		p.send(line)
		answer := make([]byte, 8)
		_, err := io.ReadFull(p.in, answer)
		require.NoError(t, err)
		require.Equal(t, line, answer)
	}
	await := func(performative byte) {
		for {
			head := make([]byte, 8)
			_, err := io.ReadFull(p.in, head)
			require.NoError(t, err)
			rest := make([]byte, binary.BigEndian.Uint32(head)-8)
			_, err = io.ReadFull(p.in, rest)
			require.NoError(t, err)
			if len(rest) < 3 {
				continue // a heartbeat
			}
			if rest[2] == performative {
				return
			}
			require.NotContains(t, []byte{0x16, 0x17, 0x18}, rest[2], "the end of the session: %q", rest)
		}
	}
	protocol(lines[0])
	p.send(lines[1])
	await(outcome)
	protocol(lines[2])
	p.send(bytes.Join(lines[3:6], nil)) // open, begin, attach
	await(flow)
	n := 0
	for _, line := range lines[6 : len(lines)-1] {
		require.Equal(t, byte(transfer), line[10])
		p.send(line)
		n++
	}
	p.send(lines[len(lines)-1])
	await(end)
	return n
}

// caseOf returns the name of a recorded message.
func caseOf(d *amqp.Delivery) string {
	if name, ok := d.Headers["case"].(string); ok {
		return name
	}
	// On 3.10 the application properties of AMQP 1.0 are one header, as they were sent.
	if properties, ok := d.Headers["x-amqp-1.0-app-properties"].(string); ok {
		if _, name, ok := strings.Cut(properties, "\xa1\x04case\xa1"); ok {
			return name[1 : 1+name[0]]
		}
	}
	return d.MessageId
}

// own returns the headers of the producer, without the headers of millpond and of the broker.
func own(headers amqp.Table) amqp.Table {
	left := amqp.Table{}
	for key, value := range headers {
		switch {
		case strings.HasPrefix(key, "millpond-"), strings.HasSuffix(key, "_poisoned"),
			strings.HasPrefix(key, "x-death"), strings.HasPrefix(key, "x-first-death"),
			strings.HasPrefix(key, "x-last-death"), key == "x-delivery-count", key == "x-acquired-count",
			key == "CC", key == "BCC":
		default:
			left[key] = value
		}
	}
	return left
}

// kept are the properties that every copy has.
func kept(d *amqp.Delivery) []any {
	return []any{
		d.ContentType, d.ContentEncoding, d.Priority, d.CorrelationId, d.ReplyTo, d.MessageId,
		d.Timestamp, d.Type, d.AppId, string(d.Body), own(d.Headers),
	}
}

// letter is a message as it arrived first, as its handler got it, and as it was dead-lettered.
type letter struct {
	arrived, dead amqp.Delivery
	attempts      []amqp.Delivery
	deaths        int
}

// foreignRig is a service. Its queue and a witness are bound to the exchange of the recordings.
// Every message fails on each attempt.
type foreignRig struct {
	*rig.Service
	node    *testbroker.Node
	mu      sync.Mutex
	letters map[string]*letter // by name
}

func newForeignRig(t *testing.T) *foreignRig {
	t.Helper()
	node := testbroker.Private(t)
	if strings.HasPrefix(node.Version(), "3.") {
		node.Enable(t, "rabbitmq_amqp1_0")
	}
	f := &foreignRig{node: node}
	f.Service = rig.Start(t, rig.Config{
		URL: node.URL(), Configure: rig.QuorumQueue,
		Policy: backoff.Constant{Interval: 50 * time.Millisecond, Retries: 2},
		Handle: func(msg *message.Message) error {
			raw, _ := topology.Received(msg.Context())
			f.mu.Lock()
			defer f.mu.Unlock()
			l := f.letter(&raw)
			l.attempts = append(l.attempts, raw)
			return rig.ErrFailed
		},
	})
	rig.DeclareExchange(t, f.URL, "recorded", "fanout")
	rig.BindQueue(t, f.URL, "witness", "recorded", "")
	require.NoError(t, testbroker.Channel(t, f.URL).QueueBind(f.Queue, "", "recorded", false, nil))
	return f
}

// letter returns the letter with the name of a delivery. f.mu is held.
func (f *foreignRig) letter(d *amqp.Delivery) *letter {
	name := caseOf(d)
	if f.letters[name] == nil {
		f.letters[name] = &letter{}
	}
	return f.letters[name]
}

// replayed replays a recording and returns the letters by their names.
func (f *foreignRig) replayed(
	t *testing.T, replay func(testing.TB, string, [][]byte) int, file string,
) map[string]*letter {
	t.Helper()
	f.mu.Lock()
	f.letters = map[string]*letter{}
	f.mu.Unlock()
	n := replay(t, f.URL, recording(t, file))
	witnessed, dead := rig.Drain(t, f.URL, "witness", n), rig.Drain(t, f.URL, f.Queue+".dlq", n)
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, d := range witnessed {
		f.letter(&d).arrived = d
	}
	for _, d := range dead {
		l := f.letter(&d)
		l.dead = d
		l.deaths++
	}
	require.Equal(t, []int{n, n}, []int{len(witnessed), len(f.letters)})
	return f.letters
}

// requireAsArrived requires that attempts and dead letter are equal to the message as it arrived,
// except for the differences that docs/compatibility.md names.
func requireAsArrived(t *testing.T, name string, l *letter) {
	t.Helper()
	require.Len(t, l.attempts, 3, name)
	for i := range l.attempts {
		require.Equal(t, kept(&l.arrived), kept(&l.attempts[i]), "%q, delivery %d", name, i+1)
	}
	require.Equal(t, 1, l.deaths, "%q: deaths", name)
	require.Equal(t, kept(&l.arrived), kept(&l.dead), name)
	require.Equal(t, []any{amqp.Persistent, "", ""},
		[]any{l.dead.DeliveryMode, l.dead.Expiration, l.dead.UserId}, name)
}

// Given recorded messages of pika, amqplib and an AMQP 1.0 client, when they fail, then each is
// retried and dead-lettered as it arrived.
func TestForeignMessagesAsRecorded(t *testing.T) {
	t.Parallel()
	f := newForeignRig(t)
	for _, file := range []string{"pika.hex", "amqplib.hex"} {
		for name, l := range f.replayed(t, replay091, file) {
			requireAsArrived(t, file+" "+name, l)
		}
	}
	old := strings.HasPrefix(f.node.Version(), "3.")
	file := map[bool]string{true: "rhea-v1.hex", false: "rhea-v2.hex"}[old]
	letters := f.replayed(t, replay10, file)
	for name, l := range letters {
		requireAsArrived(t, file+" "+name, l)
	}
	requireConverted(t, letters, old)
}

// requireConverted requires the facts of docs/compatibility.md about AMQP 1.0.
func requireConverted(t *testing.T, letters map[string]*letter, old bool) {
	t.Helper()
	dead := func(name string) amqp.Delivery { return letters[name].dead }
	require.Equal(t, `{"order": 3}`, string(dead("data").Body))
	require.Equal(t, "\x00Sw\xa1\x06gr\u00fc\u00df", string(dead("value text").Body))
	require.Equal(t, "amqp-1.0", dead("value text").Type)
	require.Equal(t, "amqp-1.0", dead("sequences").Type)
	require.NotEmpty(t, dead("ttl").Headers[keys.OriginExchange])
	require.Empty(t, dead("ttl").Expiration)
	p := dead("properties")
	require.Equal(t, []any{"id-1", "corr", "application/json", "utf-8", uint8(7)},
		[]any{p.MessageId, p.CorrelationId, p.ContentType, p.ContentEncoding, p.Priority})
	require.Empty(t, p.UserId)
	if old {
		several := "\x00Su\xa0\x05three\x00Su\xa0\x04two,\x00Su\xa0\x04one,"
		require.Equal(t, several, string(dead("several data").Body))
		require.Equal(t, "binary", dead("data").Type)
		require.Equal(t, int64(1790000000123), p.Timestamp.Unix())
		for _, text := range []string{"somewhere", "order.created", "group", "answers"} {
			require.Contains(t, p.Headers["x-amqp-1.0-properties"], text)
		}
		require.Contains(t, dead("annotations").Headers["x-amqp-1.0-message-annotations"], "x-opt-mine")
		return
	}
	require.Equal(t, "one,two,three", string(dead("several data").Body))
	require.Equal(t, []any{"group", int64(1790000000)}, []any{p.AppId, p.Timestamp.Unix()})
	require.Equal(t, amqp.Table{"case": "properties"}, own(p.Headers),
		"to, subject, absolute expiry and group sequence are gone")
	require.Equal(t, "urn:uuid:00112233-4455-6677-8899-aabbccddeeff", dead("id of uuid").MessageId)
	require.Equal(t, []byte{0, 255}, dead("id of binary").Headers["x-message-id"])
	require.Equal(t, amqp.Table{
		"case": "annotations", "x-opt-mine": "kept", "x-own": int32(7), "x-list": []any{int32(1), "two"},
	}, own(dead("annotations").Headers))
	require.Equal(t, amqp.Table{
		"case": "application properties", "boolean": true, "ubyte": uint8(200), "ushort": uint16(60000),
		"uint": uint32(4000000000), "ulong": int64(1 << 40), "byte": int8(-7), "short": int16(-300),
		"int": int32(-70000), "long": int64(-1 << 40), "float": float32(0.25), "double": 0.1,
		"timestamp": time.Unix(1772368245, 0), "binary": "\x00\xff", "string": "text", "empty": "",
		"symbol": "word", "null": nil,
	}, own(dead("application properties").Headers))
}
