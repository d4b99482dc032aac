package topology_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"net"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
)

// forger replaces the properties of what a client publishes with bytes that no
// client would write: everything of a content header behind the body's size.
type forger struct {
	net.Conn
	properties []byte
	begun      bool
	pending    []byte
}

const (
	frameHead   = 7 // type, channel, size
	headerFrame = 2
	// beforeProperties are class, weight and body size.
	beforeProperties = 2 + 2 + 8
)

func (f *forger) Write(p []byte) (int, error) {
	f.pending = append(f.pending, p...)
	var out bytes.Buffer
	if !f.begun && len(f.pending) >= 8 {
		f.begun = true
		out.Write(f.pending[:8]) // "AMQP" 0 0 9 1
		f.pending = f.pending[8:]
	}
	for f.begun && len(f.pending) >= frameHead {
		end := frameHead + int(binary.BigEndian.Uint32(f.pending[3:7])) + 1
		if len(f.pending) < end {
			break
		}
		if f.pending[0] == headerFrame {
			out.Write(f.pending[:3])
			_ = binary.Write(&out, binary.BigEndian, uint32(beforeProperties+len(f.properties)))
			out.Write(f.pending[frameHead : frameHead+beforeProperties])
			out.Write(f.properties)
			out.WriteByte(0xCE)
		} else {
			out.Write(f.pending[:end])
		}
		f.pending = f.pending[end:]
	}
	if _, err := f.Conn.Write(out.Bytes()); err != nil {
		return 0, err
	}
	return len(p), nil
}

// forge publishes a message with forged properties, and returns what the broker
// thinks of it: nil where it has confirmed it.
func forge(t testing.TB, url, queue string, properties []byte) error {
	t.Helper()
	conn, err := amqp.DialConfig(url, amqp.Config{Dial: func(network, addr string) (net.Conn, error) {
		inner, err := amqp.DefaultDial(10*time.Second)(network, addr)
		return &forger{Conn: inner, properties: properties}, err
	}})
	require.NoError(t, err)
	defer func() { _ = conn.CloseDeadline(time.Now().Add(time.Second)) }()
	closed := conn.NotifyClose(make(chan *amqp.Error, 1))
	ch, err := conn.Channel()
	require.NoError(t, err)
	require.NoError(t, ch.Confirm(false))
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	confirm, err := ch.PublishWithDeferredConfirmWithContext(ctx, "", queue, true, false, amqp.Publishing{Body: []byte("forged")})
	require.NoError(t, err)
	ok, err := confirm.WaitContext(ctx)
	require.NoError(t, err)
	if ok {
		return nil
	}
	select {
	case err := <-closed:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// headersOnly are properties with nothing but a header table of these bytes.
func headersOnly(table []byte) []byte {
	out := binary.BigEndian.AppendUint16(nil, 0x2000) // the flag of headers
	out = binary.BigEndian.AppendUint32(out, uint32(len(table)))
	return append(out, table...)
}
