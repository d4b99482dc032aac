//go:build unix

package testbroker_test

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

// occupied is a port that accepts connections and says nothing.
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
			_, _ = io.WriteString(conn, "somebody else's port")
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
	n.Ctl(t, "list_queues") // what this starts must keep to loopback too
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
