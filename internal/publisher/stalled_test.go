package publisher_test

import (
	"context"
	"io"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/publisher"
	"github.com/millpond-go/millpond/internal/testbench"
)

// narrow stands between a client and the broker and can stop reading from the
// clients that are connected, so that their buffers fill; what the broker sends
// goes on to them.
type narrow struct {
	listener net.Listener
	target   string

	mu      sync.Mutex
	gate    *gate // of the clients that are connected now
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
			_, _ = io.Copy(client, broker)
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

// The peer lives, sends heartbeats, and takes no byte more: without a limit of
// its own a write would hold the channel for as long as that lasts.
func TestWriteThatGetsNowhereEndsTheConnection(t *testing.T) {
	t.Parallel()
	broker := testbench.URL(t)
	queue := declare(t, broker, nil)
	n, address := startNarrow(t, broker)
	const timeout = time.Second
	p := open(t, address, timeout) // a single write may take much longer
	require.NoError(t, p.say(t.Context(), queue, "before"))

	n.stall()
	body := strings.Repeat("x", 16<<20)
	within(t, timeout, "Publish", func() {
		assert.ErrorIs(t, p.say(t.Context(), queue, body), publisher.ErrUnknown)
	})
	testbench.WaitFor(t, "the connection to be given up", timeout+slack, func() bool { return n.accepted() == 2 })
	require.NoError(t, p.say(t.Context(), queue, "after"))
	assert.Equal(t, map[string]int{"before": 1, "after": 1}, bodies(t, broker, queue))
}

// A caller that gives up ends its own wait, not the write: others are behind it.
func TestContextEndsTheWaitForAWrite(t *testing.T) {
	t.Parallel()
	broker := testbench.URL(t)
	queue := declare(t, broker, nil)
	n, address := startNarrow(t, broker)
	p := open(t, address, long)
	require.NoError(t, p.say(t.Context(), queue, "before"))

	n.stall()
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() { result <- p.say(ctx, queue, strings.Repeat("x", 16<<20)) }()
	testbench.WaitFor(t, "the publish", patience, func() bool { return len(p.recorder.published()) == 2 })
	cancel()
	within(t, 0, "Publish", func() { assert.ErrorIs(t, <-result, publisher.ErrUnknown) })
	within(t, goodbye, "Close", p.Close)
}

// The write that its caller has left is neither cut off nor is its channel
// closed in the middle of the message, which would end the connection.
func TestWriteGoesOnWithoutItsCaller(t *testing.T) {
	t.Parallel()
	broker := testbench.URL(t)
	queue := declare(t, broker, nil)
	n, address := startNarrow(t, broker)
	p := open(t, address, long)
	require.NoError(t, p.say(t.Context(), queue, "before"))

	resume := n.stall()
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	body := strings.Repeat("x", 12<<20)
	go func() { result <- p.say(ctx, queue, body) }()
	testbench.WaitFor(t, "the publish", patience, func() bool { return len(p.recorder.published()) == 2 })
	cancel()
	assert.ErrorIs(t, <-result, publisher.ErrUnknown)
	resume()

	require.NoError(t, p.say(t.Context(), queue, "after"))
	testbench.WaitFor(t, "the whole message", patience, func() bool { return testbench.Depth(t, broker, queue) == 3 })
	assert.Equal(t, map[string]int{"before": 1, body: 1, "after": 1}, bodies(t, broker, queue))
	assert.Equal(t, 1, n.accepted(), "the connection was ended")
}
