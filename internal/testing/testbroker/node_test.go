package testbroker_test

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

func TestMain(m *testing.M) {
	if os.Getenv("MILLPOND_HOLD") != "" {
		hold() // as the child of TestNodeDiesWithAKilledProcess
		return
	}
	testbroker.Main(m, func() error { return goleak.Find() })
}

const limit = 10 * time.Second

func alive(pid int) bool { return syscall.Kill(pid, 0) == nil }

// publish sends one persistent message and returns its confirm.
func publish(t *testing.T, ch *amqp.Channel, queue, body string) *amqp.DeferredConfirmation {
	t.Helper()
	confirm, err := ch.PublishWithDeferredConfirm("", queue, false, false,
		amqp.Publishing{Body: []byte(body), DeliveryMode: amqp.Persistent})
	require.NoError(t, err)
	return confirm
}

// durable declares a durable queue on a new channel in confirm mode.
func durable(t *testing.T, url, queue string) *amqp.Channel {
	t.Helper()
	ch := testbroker.Channel(t, url)
	_, err := ch.QueueDeclare(queue, true, false, false, false, nil)
	require.NoError(t, err)
	require.NoError(t, ch.Confirm(false))
	return ch
}

func confirmed(t *testing.T, confirm *amqp.DeferredConfirmation) {
	t.Helper()
	select {
	case <-confirm.Done():
		require.True(t, confirm.Acked())
	case <-time.After(30 * time.Second):
		t.Fatal("no confirm in 30s")
	}
}

// The steps share one node, because a start takes seconds of processor time.
func TestPrivateNode(t *testing.T) {
	t.Parallel()
	n := testbroker.Private(t)
	before := n.URL()
	for _, step := range []struct {
		name string
		test func(t *testing.T, n *testbroker.Node)
	}{
		{"answers", nodeAnswers},
		{"is asked by rabbitmqctl", nodeIsAsked},
		{"listens on loopback only", nodeListensOnLoopbackOnly},
		{"is stopped", nodeIsStopped},
		{"is killed", nodeIsKilled},
		{"leaves nothing", nodeLeavesNothing},
	} {
		if !t.Run(step.name, func(t *testing.T) { step.test(t, n) }) {
			return
		}
		assert.Equal(t, before, n.URL())
	}
}

func nodeAnswers(t *testing.T, n *testbroker.Node) {
	assert.True(t, strings.HasPrefix(n.Version(), os.Getenv("MILLPOND_BROKER")), "version %s",
		n.Version())
	assert.NotEmpty(t, n.Version())
	assert.Equal(t, -1, testbroker.Depth(t, n.URL(), "missing"))
	ch := durable(t, n.URL(), "q")
	assert.Equal(t, 0, testbroker.Depth(t, n.URL(), "q"))
	confirmed(t, publish(t, ch, "q", "a"))
	assert.Equal(t, 1, testbroker.Depth(t, n.URL(), "q"))
	t.Log("RabbitMQ", n.Version())
}

func nodeIsAsked(t *testing.T, n *testbroker.Node) {
	assert.Equal(t, "q", strings.Fields(n.Ctl(t, "list_queues", "--no-table-headers", "name"))[0])

	assert.Equal(t, "a{b,\"ä\"}\n", n.Ctl(t, "eval", `io:format("a"), {b, "ä"}.`))
	for _, wrong := range []string{"no:such().", "1 = 2.", "1 +"} {
		_, err := n.RunCtl(t.Context(), "eval", wrong)
		require.Error(t, err, wrong)
	}
}

func nodeIsStopped(t *testing.T, n *testbroker.Node) {
	pid := n.Pids()[0]
	n.Stop(t)
	assert.False(t, alive(pid))
	_, err := amqp.Dial(n.URL())
	require.Error(t, err)
	n.Start(t)
	testbroker.WaitFor(t, "the messages", limit,
		func() bool { return testbroker.Depth(t, n.URL(), "q") == 1 })
}

func nodeIsKilled(t *testing.T, n *testbroker.Node) {
	confirmed(t, publish(t, durable(t, n.URL(), "q"), "q", "c"))
	pid := n.Pids()[0]
	n.Kill(t)
	assert.False(t, alive(pid))
	n.Start(t)
	testbroker.WaitFor(t, "all messages", limit,
		func() bool { return testbroker.Depth(t, n.URL(), "q") == 2 })
}

func nodeLeavesNothing(t *testing.T, n *testbroker.Node) {
	n.Freeze(t) // Close ends a frozen node too
	pids := n.Pids()
	for _, pid := range pids {
		require.True(t, alive(pid))
	}
	require.DirExists(t, n.Folder())
	require.NoError(t, n.Close())
	for _, pid := range pids {
		assert.False(t, alive(pid), "process %d", pid)
	}
	assert.NoDirExists(t, n.Folder())
	assert.NoError(t, n.Close(), "again")
}

func TestNodeWithABadConfigurationSaysWhy(t *testing.T) {
	t.Parallel()
	testbroker.RequireNode(t)
	_, err := testbroker.Start(t.Context(), testbroker.WithConfig("no.such.key = 1"))
	require.Error(t, err)
	assert.Contains(t, err.Error(), "no.such.key")
	assert.Equal(t, 1, strings.Count(err.Error(), "ended while starting"), "tried again in vain:\n%v",
		err)
}

// occupied returns a port of another program, which accepts connections.
func occupied(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, "another program's port")
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
	})
	return l.Addr().(*net.TCPAddr).Port
}

func TestNodeTakesOtherPortsWhenItsOwnAreTaken(t *testing.T) {
	t.Parallel()
	for name, option := range map[string]func(int) testbroker.NodeOption{
		"amqp": testbroker.AMQPPort,
		"epmd": testbroker.EpmdPort,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			port := occupied(t)
			n := testbroker.Private(t, option(port))
			assert.NotContains(t, n.URL(), fmt.Sprint(port))
			assert.NotEmpty(t, n.Version())
		})
	}
}

func nodeListensOnLoopbackOnly(t *testing.T, n *testbroker.Node) {
	if _, err := os.Stat("/proc/net/tcp"); err != nil {
		t.Skip("needs /proc/net/tcp")
	}
	n.Ctl(t, "list_queues") // its Erlang must keep to loopback, too
	sockets := map[string]bool{}
	for _, pid := range n.Pids() {
		links, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
		require.NoError(t, err)
		for _, link := range links {
			if target, err := os.Readlink(link); err == nil && strings.HasPrefix(target, "socket:[") {
				sockets[strings.TrimSuffix(strings.TrimPrefix(target, "socket:["), "]")] = true
			}
		}
	}
	listening := 0
	for _, file := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		table, err := os.ReadFile(file)
		if err != nil {
			continue // no IPv6 here
		}
		for _, line := range strings.Split(string(table), "\n")[1:] {
			f := strings.Fields(line)
			if len(f) < 10 || f[3] != "0A" || !sockets[f[9]] { // 0A: LISTEN
				continue
			}
			listening++
			address, _, _ := strings.Cut(f[1], ":")
			assert.Contains(t, []string{"0100007F", "00000000000000000000000001000000"}, address,
				"listens on %s", f[1])
		}
	}
	assert.GreaterOrEqual(t, listening, 3, "AMQP, distribution, epmd")
}
