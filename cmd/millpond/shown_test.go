package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var (
	console = regexp.MustCompile("(?ms)^```console\n(.*?)^```$")
	inline  = regexp.MustCompile("`(millpond [^`]+)`")
	serving = regexp.MustCompile("(?m)^```sh not run: [^\n]*\nmillpond ([a-z]+)")
)

// Every command of the tool that a page shows has flags that the tool knows. operations.md,
// security.md and compatibility.md show whole commands in their blocks. A page shows the real
// output of plan, which asks no broker; "…" at its end stands for the lines that are left out.
func TestPagesShowCommandsThatTheToolKnows(t *testing.T) {
	t.Parallel()
	shown := map[string]bool{}
	for _, page := range []string{"operations.md", "security.md", "compatibility.md"} {
		text, err := os.ReadFile("../../docs/" + page)
		require.NoError(t, err)
		for _, command := range serving.FindAllStringSubmatch(string(text), -1) {
			shown[command[1]] = true
		}
		for _, block := range console.FindAllStringSubmatch(string(text), -1) {
			for _, part := range strings.Split("\n"+block[1], "\n$ ")[1:] {
				command, output, _ := strings.Cut(part, "\n")
				args := argumentsOf(command)
				shown[strings.Join(args[:min(2, len(args))], " ")], shown[args[0]] = true, true
				o := toClosedPort(t, args)
				if args[0] != "plan" {
					require.Equal(t, exitFailed, o.code, "%s: %s%s", command, o.out, o.err)
					continue
				}
				require.Equal(t, exitDone, o.code, "%s: %s", command, o.err)
				output = strings.TrimSpace(output)
				if start, cut := strings.CutSuffix(output, "…"); cut {
					require.True(t, strings.HasPrefix(o.out, start), "%s prints\n%s", command, o.out)
					continue
				}
				require.Equal(t, strings.TrimSpace(o.out), output, command)
			}
		}
	}
	pages, err := filepath.Glob("../../docs/*.md")
	require.NoError(t, err)
	for _, page := range pages {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		for _, command := range inline.FindAllStringSubmatch(string(text), -1) {
			o := toClosedPort(t, argumentsOf(command[1])) // or a part of one, without arguments
			assert.NotRegexp(t, "there is no command|not defined", o.err, "%s: %s", page, command[1])
		}
	}
	for _, command := range newApp(stdio{}).Commands {
		require.True(t, shown[command.Name], "no page shows %s", command.Name)
		for _, sub := range command.Commands {
			require.True(t, shown[command.Name+" "+sub.Name], "no page shows %s %s", command.Name, sub.Name)
		}
	}
}

// toClosedPort runs a command. A command without a mistake fails to connect.
func toClosedPort(t *testing.T, args []string) outcome {
	t.Helper()
	return tool(t, "", "", append([]string{"--url", "amqp://guest:guest@127.0.0.1:1/"}, args...)...)
}
