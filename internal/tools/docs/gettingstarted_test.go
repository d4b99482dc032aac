//go:build unix

package docs_test

import (
	"bufio"
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

// Given the files and the commands of docs/getting-started.md, when a shell runs them, then the
// program prints the lines that the page shows, and the tool shows the dead letter.
func TestGettingStarted(t *testing.T) {
	t.Parallel()
	url := testbroker.Private(t).URL()
	folder := t.TempDir()
	clone, err := filepath.Abs(root)
	require.NoError(t, err)
	require.NoError(t, os.Symlink(clone, filepath.Join(folder, "millpond")))

	page, look, found := strings.Cut(read(t, "docs/getting-started.md"), "\n## 5. ")
	require.True(t, found)
	var script strings.Builder
	var prints []string
	file := regexp.MustCompile("`([a-z_]+\\.go)`:$")
	for _, b := range blocks(page) {
		switch b.kind {
		case "sh":
			script.WriteString(b.text)
		case "go":
			name := file.FindStringSubmatch(b.before)
			require.NotNil(t, name, "no name of a file above\n%s", b.text)
			script.WriteString("cat >" + name[1] + " <<'END OF FILE'\n" + b.text + "END OF FILE\n")
		case "text":
			prints = strings.Split(strings.TrimSpace(b.text), "\n")
		}
	}
	require.Len(t, prints, 7)

	cmd := exec.CommandContext(t.Context(), "sh", "-eu")
	cmd.Dir, cmd.Stdin = folder, strings.NewReader(script.String())
	cmd.Env = append(os.Environ(), "AMQP_URL="+url, "GOFLAGS=", "GOWORK=")
	// A terminal's interrupt reaches the shell and every process that it has started.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	signal := func(s syscall.Signal) { _ = syscall.Kill(-cmd.Process.Pid, s) }
	defer signal(syscall.SIGKILL)
	overdue := time.AfterFunc(5*time.Minute, func() { signal(syscall.SIGKILL) })
	defer overdue.Stop()

	var printed []string
	for lines := bufio.NewScanner(stdout); lines.Scan(); {
		if strings.HasPrefix(lines.Text(), "order ") {
			printed = append(printed, lines.Text())
		}
		if len(printed) == len(prints) {
			signal(syscall.SIGINT)
		}
	}
	err = cmd.Wait()
	require.Equal(t, prints, printed, "%s", stderr.String())
	require.Contains(t, stderr.String(), "All messages processed", "%v", err)
	for _, queue := range []string{
		"orders", "orders.wait.1s", "orders.wait.2s", "orders.wait.4s",
	} {
		require.Equal(t, 0, testbroker.Depth(t, url, queue), queue)
	}

	script.Reset()
	for _, b := range blocks(look) {
		if b.kind == "sh" {
			script.WriteString(b.text)
		}
	}
	tool := exec.CommandContext(t.Context(), "sh", "-eu", "-c", script.String())
	tool.Dir, tool.Env = filepath.Join(folder, "shop"), cmd.Env
	out, err := tool.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Equal(t, 1, strings.Count(string(out), "\nhistory\n"), "%s", out)
	require.Contains(t, string(out), "order 13")
	require.Contains(t, string(out), "the shop is closed")
	require.Contains(t, string(out), `plan for queue "orders"`)
}
