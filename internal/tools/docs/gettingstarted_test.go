package docs_test

import (
	"bufio"
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

// walk are the parts of docs/getting-started.md.
type walk struct {
	before string   // the shell's work, with the files, before the program runs
	prints []string // the lines that the program prints
	after  []string // the commands behind it, with their output, each on its own
	shown  []string // the output below each of after, "" for none
}

// forV3 is the kind of the block that is for watermill-amqp v3 alone. The table below it has the
// words of main.go that differ.
const forV3 = "sh with watermill-amqp v3"

var differs = regexp.MustCompile("(?m)^\\| `(.+)` \\| `(.+)` \\|$")

// readWalk reads the page: its files, its commands, and the output below them.
func readWalk(t *testing.T, v3 bool) walk {
	t.Helper()
	var w walk
	ran, main := false, strings.NewReplacer()
	if v3 {
		_, below, _ := strings.Cut(read(t, gettingStarted), "| v2 | v3 |\n")
		below, _, _ = strings.Cut(below, "\n\n")
		var words []string
		for _, row := range differs.FindAllStringSubmatch(below, -1) {
			words = append(words, row[1], row[2])
		}
		require.Len(t, words, 8)
		main = strings.NewReplacer(words...)
	}
	for _, b := range blocks(read(t, gettingStarted)) {
		name := fileAbove.FindStringSubmatch(b.before)
		switch {
		case b.kind == "sh" && b.text == "go run .\n":
			require.False(t, ran, "the page runs the program once")
			ran = true
		case (b.kind == "sh" || v3 && b.kind == forV3) && !ran:
			w.before += b.text
		case b.kind == "sh":
			for _, c := range commandsOf(&page{blocks: []block{b}}) {
				w.after = append(w.after, c.text)
				w.shown = append(w.shown, "")
			}
		case b.language() == "sh" && b.kind != forV3:
			for _, c := range commandsOf(&page{path: gettingStarted, blocks: []block{b}}) {
				_, reason := runner(c)
				require.NotEmpty(t, reason, "%s: no reason why the test does not run it", c)
			}
		case b.language() == "console":
			require.Fail(t, "use sh, and text for its output", "%s:%d", gettingStarted, b.line)
		case b.language() == "go" && strings.HasPrefix(b.text, "package "):
			require.NotNil(t, name, "no name of a file above\n%s", b.text)
			w.before += "cat >" + name[1] + " <<'END OF FILE'\n" + main.Replace(b.text) + "END OF FILE\n"
		case b.language() == "text" && w.prints == nil:
			w.prints = strings.Split(strings.TrimSpace(b.text), "\n")
		case b.language() == "text" && len(w.shown) > 0:
			w.shown[len(w.shown)-1] = b.text
		}
	}
	require.True(t, ran)
	require.NotEmpty(t, w.prints)
	return w
}

// Given the files and the commands of docs/getting-started.md, when a shell runs them, then the
// program prints the lines that the page shows, and the commands behind it do their work.
func TestGettingStarted(t *testing.T) {
	t.Parallel()
	for name, v3 := range map[string]bool{"v2": false, "v3": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			getStarted(t, readWalk(t, v3))
		})
	}
}

func getStarted(t *testing.T, w walk) {
	t.Helper()
	node := testbroker.Private(t)
	folder := t.TempDir()
	clone, err := filepath.Abs(root)
	require.NoError(t, err)
	require.NoError(t, os.Symlink(clone, filepath.Join(folder, "millpond")))
	shell := func(text string) *exec.Cmd {
		cmd := exec.CommandContext(t.Context(), "sh", "-eu", "-c", text)
		cmd.Dir = folder
		cmd.Env = append(os.Environ(), "AMQP_URL="+node.URL(), "GOWORK=")
		// A terminal's interrupt reaches the shell and every process that it has started.
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		return cmd
	}
	said, err := shell(w.before).CombinedOutput()
	require.NoError(t, err, "%s", said)
	made, err := filepath.Glob(filepath.Join(folder, "*", "go.mod"))
	require.NoError(t, err)
	made = slices.DeleteFunc(made, func(path string) bool {
		return filepath.Base(filepath.Dir(path)) == "millpond"
	})
	require.Len(t, made, 1, "the page makes one module")
	folder = filepath.Dir(made[0])

	run := shell("go run .")
	var stderr bytes.Buffer
	run.Stderr = &stderr
	stdout, err := run.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, run.Start())
	signal := func(s syscall.Signal) { _ = syscall.Kill(-run.Process.Pid, s) }
	defer signal(syscall.SIGKILL)
	overdue := time.AfterFunc(5*time.Minute, func() { signal(syscall.SIGKILL) })
	defer overdue.Stop()
	var lines []string
	for output := bufio.NewScanner(stdout); output.Scan(); {
		if lines = append(lines, output.Text()); len(lines) == len(w.prints) {
			signal(syscall.SIGINT)
		}
	}
	err = run.Wait()
	require.Equal(t, w.prints, lines, "%s", stderr.String())
	require.Contains(t, stderr.String(), "All messages processed", "%v", err)
	queues := 0
	for name := range strings.FieldsSeq(node.Ctl(t, "list_queues", "--no-table-headers", "name")) {
		queues++
		if name != "orders.dlq" {
			testbroker.WaitFor(t, name+" to be empty", time.Minute, func() bool {
				return testbroker.Depth(t, node.URL(), name) == 0
			})
		}
	}
	require.Equal(t, 5, queues, "the queue, three wait queues, and the dead-letter queue")

	for i, text := range w.after {
		said, err := shell(text).CombinedOutput()
		require.NoError(t, err, "%s: %s", text, said)
		if w.shown[i] != "" {
			require.True(t, printed(w.shown[i], string(said)), "%s prints %s", text, said)
		}
	}
}
