package main

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

const limit = 30 * time.Second

func TestMain(m *testing.M) {
	if os.Getenv("MILLPOND_AS_WITHBROKER") != "" {
		main()
		return
	}
	testbroker.Main(m)
}

// withbroker runs this binary as the program, with sh -c script as its command.
func withbroker(t *testing.T, env []string, script string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), exe, "--", "sh", "-c", script)
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "AMQP_URL=") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Env = append(cmd.Env, "MILLPOND_AS_WITHBROKER=1")
	cmd.Env = append(cmd.Env, env...)
	return cmd
}

func answers(t *testing.T, address string) bool {
	t.Helper()
	u, err := url.Parse(address)
	require.NoError(t, err)
	conn, err := net.Dial("tcp4", u.Host)
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}

// firstLine starts cmd and returns the first line that its command prints, and a reader of the
// rest.
func firstLine(t *testing.T, cmd *exec.Cmd) (string, *bufio.Reader) {
	t.Helper()
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	require.NoError(t, cmd.Start())
	out := bufio.NewReader(stdout)
	line, err := out.ReadString('\n')
	require.NoError(t, err, "%s", &stderr)
	return strings.TrimSpace(line), out
}

func TestCommandGetsABrokerAndItsExitCodeComesBack(t *testing.T) {
	t.Parallel()
	testbroker.RequireNode(t)
	cmd := withbroker(t, nil, `echo "$AMQP_URL"; exit 3`)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	var exit *exec.ExitError
	require.ErrorAs(t, cmd.Run(), &exit)
	assert.Equal(t, 3, exit.ExitCode(), "%s", &stderr)
	address := strings.TrimSpace(stdout.String())
	require.True(t, strings.HasPrefix(address, "amqp://guest:guest@127.0.0.1:"), address)
	assert.False(t, answers(t, address), "the broker is still there")
	assert.Regexp(t, `RabbitMQ \d+\.\d+\.\d+ answers on amqp://guest:xxxxx@127\.0\.0\.1:\d+/ after`,
		stderr.String())
}

func TestSignalsReachTheCommandAndTheBrokerEnds(t *testing.T) {
	t.Parallel()
	testbroker.RequireNode(t)
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(s.String(), func(t *testing.T) {
			t.Parallel()
			cmd := withbroker(t, nil,
				`trap 'echo got it; exit 7' TERM INT; echo "$AMQP_URL"; while :; do sleep 0.1; done`)
			address, out := firstLine(t, cmd)
			require.True(t, answers(t, address))
			require.NoError(t, cmd.Process.Signal(s))
			line, err := out.ReadString('\n')
			require.NoError(t, err)
			assert.Equal(t, "got it\n", line)
			var exit *exec.ExitError
			require.ErrorAs(t, cmd.Wait(), &exit)
			assert.Equal(t, 7, exit.ExitCode())
			assert.False(t, answers(t, address), "the broker is still there")
		})
	}
}

// `go run` dies of a SIGTERM without passing it on.
func TestEverythingEndsWhenTheParentDies(t *testing.T) {
	t.Parallel()
	testbroker.RequireNode(t)
	inner := withbroker(t, nil, `echo "$AMQP_URL $$"; while :; do sleep 0.1; done`)
	outer := exec.CommandContext(t.Context(), "sh",
		append([]string{"-c", `"$@" & wait`, "sh"}, inner.Args...)...)
	outer.Env = inner.Env
	line, _ := firstLine(t, outer)
	var address string
	var pid int
	_, err := fmt.Sscan(line, &address, &pid)
	require.NoError(t, err)
	require.True(t, answers(t, address))
	require.NoError(t, outer.Process.Kill())
	_ = outer.Wait()
	testbroker.WaitFor(t, "the end of the broker", limit, func() bool { return !answers(t, address) })
	testbroker.WaitFor(t, "the end of the command", limit,
		func() bool { return syscall.Kill(pid, 0) != nil })
}

func TestAddressThatIsSetIsUsedAsItIs(t *testing.T) {
	t.Parallel()
	cmd := withbroker(t, []string{"AMQP_URL=amqp://user:secret@somewhere/vhost"}, `echo "$AMQP_URL"`)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err)
	assert.Equal(t, "amqp://user:secret@somewhere/vhost\n", string(out))
	assert.Contains(t, stderr.String(), "starting nothing")
	assert.NotContains(t, stderr.String(), "secret")
}

// nowhere asks for a version that is not installed.
func nowhere(t *testing.T) []string {
	t.Helper()
	return []string{"MILLPOND_BROKER=4.0", "XDG_CACHE_HOME=" + t.TempDir()}
}

func TestNoBrokerIsOneClearLine(t *testing.T) {
	t.Parallel()
	cmd := withbroker(t, append(nowhere(t), "PATH="+t.TempDir()), "true")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	require.Error(t, cmd.Run())
	lines := strings.Split(strings.TrimSpace(stderr.String()), "\n")
	assert.Contains(t, lines[len(lines)-1], "make test BROKER=4.0")
	assert.Contains(t, lines[len(lines)-1], "or set AMQP_URL")
}
