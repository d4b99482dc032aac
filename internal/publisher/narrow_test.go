package publisher_test

import (
	"bufio"
	"encoding/binary"
	"net"
	"net/url"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/frame"
)

// narrow stands between a client and the broker and can stop reading from the
// clients that are connected, so that their buffers fill; what the broker sends
// goes on to them. It can also hold back what the broker confirms.
type narrow struct {
	listener net.Listener
	target   string

	mu      sync.Mutex
	gate    *gate // of the clients that are connected now
	holding bool
	held    []confirm
	conns   []net.Conn
	accepts int
	ended   chan struct{}
	wait    sync.WaitGroup
}

type gate struct{ closed, reopened chan struct{} }

func newGate() *gate { return &gate{make(chan struct{}), make(chan struct{})} }

func startNarrow(t *testing.T, target string) (n *narrow, address string) {
	t.Helper()
	broker, err := url.Parse(target)
	require.NoError(t, err)
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	n = &narrow{listener: l, target: broker.Host, gate: newGate(), ended: make(chan struct{})}
	n.wait.Go(n.accept)
	t.Cleanup(func() {
		_ = l.Close()
		close(n.ended)
		n.mu.Lock()
		for _, conn := range n.conns {
			_ = conn.Close()
		}
		n.mu.Unlock()
		n.wait.Wait()
	})
	broker.Host = l.Addr().String()
	return n, broker.String()
}

func (n *narrow) accept() {
	for {
		client, err := n.listener.Accept()
		if err != nil {
			return
		}
		_ = client.(*net.TCPConn).SetReadBuffer(64 << 10)
		broker, err := net.Dial("tcp4", n.target)
		if err != nil {
			_ = client.Close()
			continue
		}
		n.mu.Lock()
		n.accepts++
		n.conns = append(n.conns, client, broker)
		gate := n.gate
		n.mu.Unlock()
		n.wait.Go(func() {
			defer client.Close()
			n.answer(client, broker)
		})
		n.wait.Go(func() {
			defer broker.Close()
			n.pass(client, broker, gate)
		})
	}
}

func (n *narrow) pass(client, broker net.Conn, gate *gate) {
	buffer := make([]byte, 4096)
	for {
		size, err := client.Read(buffer)
		if err != nil {
			return
		}
		select {
		case <-gate.closed:
			select {
			case <-gate.reopened:
			case <-n.ended:
				return
			}
		default:
		}
		if _, err := broker.Write(buffer[:size]); err != nil {
			return
		}
	}
}

// answer passes on what the broker sends, in an order that a broker keeps: no
// confirm in the middle of a returned message, none after its channel's end.
func (n *narrow) answer(client, broker net.Conn) {
	from := bufio.NewReader(broker)
	for {
		first, err := frame.Read(from)
		if err != nil {
			return
		}
		method, sent := first.Method(), []byte(first)
		if method == frame.BasicReturn {
			header, err := frame.Read(from)
			if err != nil {
				return
			}
			sent = append(sent, header...)
			for left := int(binary.BigEndian.Uint64(header.Payload()[4:])); left > 0; {
				body, err := frame.Read(from)
				if err != nil {
					return
				}
				sent = append(sent, body...)
				left -= len(body.Payload())
			}
		}
		n.mu.Lock()
		switch channel := first.Channel(); {
		case n.holding && (method == frame.BasicAck || method == frame.BasicNack):
			n.held = append(n.held, confirm{client, channel, sent})
		default:
			if method == frame.ChannelCloseOk {
				n.held = slices.DeleteFunc(n.held, func(c confirm) bool { return c.client == client && c.channel == channel })
			}
			_, _ = client.Write(sent)
		}
		n.mu.Unlock()
	}
}

// confirm is an ack or a nack that is held back.
type confirm struct {
	client  net.Conn
	channel uint16
	frame   []byte
}

// holdConfirms holds back all acks and nacks.
func (n *narrow) holdConfirms() (release func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.holding = true
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		for _, c := range n.held {
			_, _ = c.client.Write(c.frame)
		}
		n.holding, n.held = false, nil
	}
}

// stall stops reading from the clients that are connected now.
func (n *narrow) stall() (resume func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	stalled := n.gate
	close(stalled.closed)
	n.gate = newGate()
	return func() { close(stalled.reopened) }
}

func (n *narrow) accepted() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.accepts
}
