package rig

import (
	"context"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/operate"
)

// OpenOperator opens an operator and closes it at the end of the test.
func OpenOperator(t testing.TB, url string, options ...operate.Option) *operate.Operator {
	t.Helper()
	o, err := operate.Open(context.Background(), url, options...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, o.Close()) })
	return o
}

// PlanFor returns the plan of a queue.
func PlanFor(
	t testing.TB, queue string, strategy topology.Strategy, policy backoff.Policy,
) topology.Plan {
	t.Helper()
	plan, err := topology.PlanFor(strategy, queue, policy)
	require.NoError(t, err)
	return plan
}

// Findings returns the findings of Verify as "severity problem kind name". It logs them, and
// requires the same at a second look.
func Findings(t testing.TB, o *operate.Operator, plan topology.Plan) []string {
	t.Helper()
	findings, err := o.Verify(t.Context(), plan)
	require.NoError(t, err)
	again, err := o.Verify(t.Context(), plan)
	require.NoError(t, err)
	require.Equal(t, findings, again)
	names := []string{}
	for _, f := range findings {
		t.Log(f)
		names = append(names, string(f.Severity)+" "+string(f.Problem)+" "+f.Kind+" "+f.Name)
	}
	return names
}

// BlindFindings is Findings of an operator without a management API. It requires that the last
// finding says so, and leaves it out.
func BlindFindings(t testing.TB, o *operate.Operator, plan topology.Plan) []string {
	t.Helper()
	names := Findings(t, o, plan)
	require.NotEmpty(t, names)
	require.Equal(t, "warning unchecked broker ", names[len(names)-1])
	return names[:len(names)-1]
}

// ShellWords splits a command as a shell does.
func ShellWords(t testing.TB, command string) []string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "sh", "-c", "printf '%s\\n' "+command).Output()
	require.NoError(t, err)
	return strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
}
