package rig

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/topology"
)

// OpenLogged opens a client, keeps its log, and closes the client at the end of the test.
func OpenLogged(
	t testing.TB, url string, strategy topology.Strategy, options ...topology.Option,
) (*topology.Client, *Logs) {
	t.Helper()
	logs := &Logs{}
	return OpenClient(t, url, strategy, append(options, topology.WithLogger(logs))...), logs
}

// ShellWords splits a command as a shell does.
func ShellWords(t testing.TB, command string) []string {
	t.Helper()
	out, err := exec.Command("sh", "-c", "printf '%s\\n' "+command).Output()
	require.NoError(t, err)
	return strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
}
