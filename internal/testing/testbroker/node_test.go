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
	n := testbroker.Private(t, testbroker.WithConfig("heartbeat = 7"),
		testbroker.WithAdvancedConfig("[{rabbit, [{frame_max, 65536}]}]."))
	before := n.URL()
	for _, step := range []struct {
		name string
		test func(t *testing.T, n *testbroker.Node)
	}{
		{"answers", nodeAnswers},
		{"is configured", nodeIsConfigured},
		{"is asked and told by rabbitmqctl", nodeIsAskedAndTold},
		{"has users", nodeHasUsers},
		{"listens on loopback only", nodeListensOnLoopbackOnly},
		{"is frozen and thawed", nodeIsFrozenAndThawed},
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

func nodeIsConfigured(t *testing.T, n *testbroker.Node) {
	conn := testbroker.Dial(t, n.URL())
	assert.Equal(t, 7*time.Second, conn.Config.Heartbeat)
	assert.Equal(t, 65536, conn.Config.FrameSize)
}

func nodeIsAskedAndTold(t *testing.T, n *testbroker.Node) {
	assert.Equal(t, "q", strings.Fields(n.Ctl(t, "list_queues", "--no-table-headers", "name"))[0])

	assert.Equal(t, "a{b,\"ä\"}\n", n.Ctl(t, "eval", `io:format("a"), {b, "ä"}.`))
	for _, wrong := range []string{"no:such().", "1 = 2.", "1 +"} {
		_, err := n.RunCtl(t.Context(), "eval", wrong)
		require.Error(t, err, wrong)
	}

	conn := testbroker.Dial(t, n.URL())
	blocked := conn.NotifyBlocked(make(chan amqp.Blocking, 2))
	n.Ctl(t, "set_vm_memory_high_watermark", "0.00001")
	alarmed, err := conn.Channel()
	require.NoError(t, err)
	require.NoError(t, alarmed.Publish("", "nowhere", false, false, amqp.Publishing{}))
	assert.True(t, nextBlocking(t, blocked).Active,
		"publishing under a memory alarm blocks the connection")
	n.Ctl(t, "set_vm_memory_high_watermark", "0.4")
	assert.False(t, nextBlocking(t, blocked).Active)
}

func nodeHasUsers(t *testing.T, n *testbroker.Node) {
	n.Grant(t, testbroker.Everything("a vhost", "guest"),
		testbroker.Grant{VHost: "a vhost", User: "reader", Read: ".*"})
	durable(t, n.URL()+"a%20vhost", "r")
	reader := testbroker.Channel(t, n.URLOf("reader")+"a%20vhost")
	_, _, err := reader.Get("r", true)
	require.NoError(t, err)
	_, err = reader.QueueDeclare("of the reader", true, false, false, false, nil)
	var refused *amqp.Error
	require.ErrorAs(t, err, &refused)
	assert.Equal(t, amqp.AccessRefused, refused.Code)

	n.Grant(t, testbroker.Everything("a vhost", "reader"))
	durable(t, n.URLOf("reader")+"a%20vhost", "of the reader")
}

func nodeIsFrozenAndThawed(t *testing.T, n *testbroker.Node) {
	ch := durable(t, n.URL(), "q")
	n.Freeze(t)
	confirm := publish(t, ch, "q", "b")
	select {
	case <-confirm.Done():
		t.Error("confirmed by a frozen broker")
	case <-time.After(200 * time.Millisecond):
	}
	n.Thaw(t)
	confirmed(t, confirm)
}

func nodeIsStopped(t *testing.T, n *testbroker.Node) {
	pid := n.Pids()[0]
	n.Stop(t)
	assert.False(t, alive(pid))
	_, err := amqp.Dial(n.URL())
	require.Error(t, err)
	n.Start(t)
	testbroker.WaitFor(t, "the messages", limit,
		func() bool { return testbroker.Depth(t, n.URL(), "q") == 2 })
}

func nodeIsKilled(t *testing.T, n *testbroker.Node) {
	confirmed(t, publish(t, durable(t, n.URL(), "q"), "q", "c"))
	pid := n.Pids()[0]
	n.Kill(t)
	assert.False(t, alive(pid))
	n.Start(t)
	testbroker.WaitFor(t, "all messages", limit,
		func() bool { return testbroker.Depth(t, n.URL(), "q") == 3 })
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

func nextBlocking(t *testing.T, blocked <-chan amqp.Blocking) (b amqp.Blocking) {
	t.Helper()
	select {
	case b = <-blocked:
	case <-time.After(limit):
		t.Fatal("nothing about a memory alarm")
	}
	return b
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

// members returns the number of the queue's replicas that one node sees online.
func members(t *testing.T, n *testbroker.Node, queue string) int {
	t.Helper()
	for line := range strings.Lines(n.Ctl(t, "list_queues", "--no-table-headers", "name", "online")) {
		if name, online, _ := strings.Cut(strings.TrimSpace(line), "\t"); name == queue {
			return strings.Count(online, "@")
		}
	}
	return -1
}

// Given a cluster of three, then a quorum queue has three members. It works without one of them,
// stops without two, and gets them back. An alarm of one node blocks publishing. Close leaves no
// process and no file, also of a node that is frozen.
func TestCluster(t *testing.T) {
	t.Parallel()
	c := testbroker.PrivateCluster(t, 3)
	ch := testbroker.Channel(t, c.Node(0).URL())
	_, err := ch.QueueDeclare("q", true, false, false, false, amqp.Table{"x-queue-type": "quorum"})
	require.NoError(t, err)
	require.NoError(t, ch.Confirm(false))
	testbroker.WaitFor(t, "three members", limit,
		func() bool { return members(t, c.Node(0), "q") == 3 })
	for i, url := range c.URLs() {
		sent := testbroker.Channel(t, url)
		require.NoError(t, sent.Confirm(false))
		confirmed(t, publish(t, sent, "q", fmt.Sprint("through node ", i)))
	}

	require.NoError(t, c.Kill(2))
	assert.False(t, c.Running(2))
	confirmed(t, publish(t, ch, "q", "without one"))
	require.NoError(t, c.Freeze(1))
	stuck := publish(t, ch, "q", "without a majority")
	select {
	case <-stuck.Done():
		t.Error("confirmed by one node of three")
	default:
	}
	require.NoError(t, c.Thaw(1))
	confirmed(t, stuck)
	require.NoError(t, c.Start(t.Context(), 2))
	assert.True(t, c.Running(2))
	testbroker.WaitFor(t, "all three members again", limit,
		func() bool { return members(t, c.Node(2), "q") == 3 })
	testbroker.WaitFor(t, "the messages, through the node that was dead", limit, func() bool {
		return testbroker.Depth(t, c.Node(2).URL(), "q") == 5
	})

	conn := testbroker.Dial(t, c.Node(0).URL())
	blocked := conn.NotifyBlocked(make(chan amqp.Blocking, 2))
	alarmed, err := conn.Channel()
	require.NoError(t, err)
	require.NoError(t, c.Alarm(t.Context(), 0, true))
	require.NoError(t, alarmed.Publish("", "nowhere", false, false, amqp.Publishing{}))
	assert.True(t, nextBlocking(t, blocked).Active)
	require.NoError(t, c.Alarm(t.Context(), 0, false))
	assert.False(t, nextBlocking(t, blocked).Active)

	pids := append(c.Node(0).Pids(), c.Node(1).Pids()...)
	for _, pid := range pids {
		require.True(t, alive(pid))
	}
	require.NoError(t, c.Freeze(1))
	require.NoError(t, c.Close())
	for _, pid := range pids {
		assert.False(t, alive(pid), "process %d", pid)
	}
	assert.NoDirExists(t, c.Node(0).Folder())
	assert.NoError(t, c.Close(), "again")
}
