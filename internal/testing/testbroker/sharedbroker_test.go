package testbroker_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

func TestSharedBroker(t *testing.T) {
	url := testbroker.URL(t)
	assert.Equal(t, url, testbroker.URL(t))
	conn := testbroker.Dial(t, url)
	t.Log("RabbitMQ", conn.Properties["version"])
}

func TestAddressFromTheEnvironment(t *testing.T) {
	t.Setenv("AMQP_URL", "amqp://elsewhere/")
	t.Setenv("MILLPOND_NO_BROKER", "")
	assert.Equal(t, "amqp://elsewhere/", testbroker.URL(t))
}

func TestQueueIsDeletedWithTheTest(t *testing.T) {
	t.Parallel()
	url := testbroker.URL(t)
	var names []string
	t.Run("inner test", func(t *testing.T) {
		queue := testbroker.Queue(t)
		require.NotEqual(t, queue, testbroker.Queue(t))
		require.True(t, strings.HasPrefix(queue, "millpond-test-QueueIsDeletedWithTheTest-inner-test-"),
			queue)
		extra := queue + ".wait.42s"
		testbroker.Delete(t, extra)
		names = []string{queue, queue + ".dlq", queue + ".wait.5s", extra}
		ch := testbroker.Channel(t, url)
		for _, name := range names {
			_, err := ch.QueueDeclare(name, true, false, false, false,
				amqp.Table{amqp.QueueTypeArg: amqp.QueueTypeQuorum})
			require.NoError(t, err)
		}
		require.NoError(t, ch.Publish("", queue, false, false, amqp.Publishing{}))
	})
	for _, name := range names {
		assert.Equal(t, -1, testbroker.Depth(t, url, name), name)
	}
}

func TestShortName(t *testing.T) {
	t.Parallel()
	assert.Equal(t, "Outbox-on-quorum", testbroker.ShortName("TestOutbox/on_quorum"))
	assert.Equal(t, "a-b", testbroker.ShortName("a/b§$ "))
	assert.Len(t, testbroker.ShortName("Test"+strings.Repeat("x", 300)), 60)
}

// child runs tests of this binary in another process, without the broker of this one.
func child(t *testing.T, run string, env ...string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), exe, "-test.run="+run, "-test.v")
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "AMQP_URL=") && !strings.HasPrefix(v, "MILLPOND_REQUIRE_BROKER=") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Env = append(cmd.Env, env...)
	return cmd
}

func TestWithoutABroker(t *testing.T) {
	t.Parallel()
	const both = "^(TestSharedBroker|TestPrivateNode)$"
	nowhere := []string{"MILLPOND_BROKER=4.0", "XDG_CACHE_HOME=" + t.TempDir(), "MILLPOND_NO_BROKER="}
	for name, tc := range map[string]struct {
		env    []string
		passes bool
		want   []string
	}{
		"skips and says what is missing": {
			env: nowhere, passes: true,
			want: []string{
				"--- SKIP: TestSharedBroker", "needs a broker, in AMQP_URL or by make test",
				"--- SKIP: TestPrivateNode", "needs a broker to start, AMQP_URL is not enough",
				"make test BROKER=4.0",
			},
		},
		"fails where one is required": {
			env:  append([]string{"MILLPOND_REQUIRE_BROKER=1"}, nowhere...),
			want: []string{"--- FAIL: TestSharedBroker", "--- FAIL: TestPrivateNode"},
		},
		"fails where an address is required": {
			env:  append([]string{"MILLPOND_REQUIRE_BROKER=url"}, nowhere...),
			want: []string{"--- FAIL: TestSharedBroker", "--- SKIP: TestPrivateNode"},
		},
		"skips when none is wanted": {
			env: []string{"MILLPOND_NO_BROKER=1"}, passes: true,
			want: []string{
				"--- SKIP: TestSharedBroker", "--- SKIP: TestPrivateNode", "MILLPOND_NO_BROKER is set",
			},
		},
		"fails for a version it does not know": {
			env:  []string{"MILLPOND_BROKER=2.8", "MILLPOND_NO_BROKER="},
			want: []string{`MILLPOND_BROKER is "2.8": want 4.0, 4.3 or nothing`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, err := child(t, both, tc.env...).CombinedOutput()
			assert.Equal(t, tc.passes, err == nil, "%v\n%s", err, out)
			for _, want := range tc.want {
				assert.Contains(t, string(out), want)
			}
		})
	}
}

// hold starts a node, prints its processes and its folder, and waits to be killed.
func hold() {
	n, err := testbroker.Start(context.Background())
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("node", n.Pids()[0], n.Pids()[1], n.Pids()[2], n.Folder())
	_, _ = io.Copy(io.Discard, os.Stdin)
}

func TestNodeDiesWithAKilledProcess(t *testing.T) {
	t.Parallel()
	testbroker.RequireNode(t)
	cmd := child(t, "^$", "MILLPOND_HOLD=1")
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	defer stdin.Close()
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())

	var pids [3]int
	var folder string
	lines := bufio.NewScanner(stdout)
	for lines.Scan() {
		if n, _ := fmt.Sscanf(lines.Text(), "node %d %d %d %s", &pids[0], &pids[1], &pids[2],
			&folder); n == 4 {
			break
		}
	}
	require.NotEmpty(t, folder, "the child did not start a node: %v", lines.Err())
	for _, pid := range pids {
		require.True(t, alive(pid))
	}

	require.NoError(t, cmd.Process.Kill())
	require.Error(t, cmd.Wait())
	for _, pid := range pids {
		testbroker.WaitFor(t, fmt.Sprintf("the end of process %d", pid), limit,
			func() bool { return !alive(pid) })
	}
	assert.NoDirExists(t, folder)
}
