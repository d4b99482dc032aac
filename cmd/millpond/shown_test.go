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
	serving = regexp.MustCompile("(?m)^```sh not run: [^\n]*\nmillpond ([a-z]+)")
	console = regexp.MustCompile("(?m)^\\$ (millpond [^\n]+)")
	inline  = regexp.MustCompile("`(millpond [^`]+)`")
)

// argumentsOf splits a command as a shell does; 'in quotes' is one argument.
func argumentsOf(command string) (args []string) {
	for _, word := range regexp.MustCompile(`'[^']*'|\S+`).FindAllString(command, -1)[1:] {
		args = append(args, strings.Trim(word, "'"))
	}
	return args
}

// Every command of the tool that a page shows in a line of text has flags that the tool knows, and
// every command of the tool is shown in a block of operations.md, security.md or compatibility.md.
// TestToolCommandsOfPages runs the blocks against a broker.
func TestPagesShowCommandsThatTheToolKnows(t *testing.T) {
	t.Parallel()
	shown := map[string]bool{}
	pages, err := filepath.Glob("../../docs/*.md")
	require.NoError(t, err)
	for _, page := range pages {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		for _, command := range inline.FindAllStringSubmatch(string(text), -1) {
			o := toClosedPort(t, argumentsOf(command[1])) // or a part of one, without arguments
			assert.NotRegexp(t, "there is no command|not defined", o.err, "%s: %s", page, command[1])
		}
		switch filepath.Base(page) {
		case "operations.md", "security.md", "compatibility.md":
		default:
			continue
		}
		for _, command := range serving.FindAllStringSubmatch(string(text), -1) {
			shown[command[1]] = true
		}
		for _, command := range console.FindAllStringSubmatch(string(text), -1) {
			args := argumentsOf(command[1])
			shown[strings.Join(args[:min(2, len(args))], " ")], shown[args[0]] = true, true
		}
	}
	for _, command := range newApp(stdio{}).Commands {
		require.True(t, shown[command.Name], "no page shows %s", command.Name)
		for _, sub := range command.Commands {
			require.True(t, shown[command.Name+" "+sub.Name], "no page shows %s %s", command.Name, sub.Name)
		}
	}
}
