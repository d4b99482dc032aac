package main

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

// Given a wait queue that does not exist, or a service whose policy is not named, then no command
// says that nothing waits. The missing queues are named, and none of a guessed plan is critical.
func TestMissingWaitQueuesAreNoProofThatNothingWaits(t *testing.T) {
	t.Parallel()
	s := newService(t, "classic")
	const hint = "millpond: without --policy the tool assumes the default wait steps; " +
		"name the delays of the service's policy\n"
	o := s.tool("waiting", "list", s.queue, "--policy", "1s,3s,10s,30s")
	require.Equal(t, exitFailed, o.code)
	require.Empty(t, o.out)
	require.Contains(t, o.err, `could not look at wait queues "orders.wait.3s.classic", `+
		`"orders.wait.30s.classic": use the plan of the service's policy, with millpond --policy: `)
	s.publish(s.queue+".wait.10s.classic", amqp.Publishing{MessageId: "a"})
	o = s.tool("waiting", "list", s.queue, "--policy", "1s,3s,10s")
	require.Equal(t, exitFailed, o.code)
	require.Regexp(t, `(?m)^10s +a `, o.out)
	require.Contains(t, o.err, `"orders.wait.3s.classic"`)

	for _, args := range [][]string{{"status", s.queue, s.queue}, {"verify", s.queue}} {
		o := s.tool(args...)
		require.Equal(t, exitDone, o.code, o.out)
		require.Equal(t, hint, o.err)
		require.Contains(t, o.out, `warning: queue "orders.wait.5s.classic": does not exist or cannot `+
			"be reached: without --policy the tool does not know whether the service uses it\n")
		require.NotContains(t, o.out, "critical")
		o = s.tool(append(args, "--strategy", "levels")...) // knows any delay
		require.NotContains(t, o.err, hint)
		o = s.tool(append(args, "--policy", "1s,5s")...)
		require.Contains(t, o.out, `critical: queue "orders.wait.5s.classic": does not exist`)
		require.Empty(t, o.err)
	}
	rig.DeleteQueue(t, s.url, s.queue+".dlq")
	o = s.tool("verify", s.queue)
	require.Equal(t, exitFound, o.code)
	require.True(t, strings.HasPrefix(o.out, `critical: queue "orders.dlq": does not exist`), o.out)
}

// A script sees by the exit code that no message has the ID.
func TestIDThatNoMessageHasIsAnExitCode(t *testing.T) {
	t.Parallel()
	s := newService(t, "classic")
	s.die()
	wait := []string{"--policy", "1s,10s"}
	for _, args := range [][]string{
		{"dead", "replay", s.queue, "--id", "none"},
		{"dead", "replay", s.queue, "--id", "none", "--dry-run"},
		{"dead", "replay", s.queue, "--id", "order-0", "--reason", "permanent"},
		{"dead", "discard", s.queue, "--id", "none", "--yes"},
		{"dead", "discard", s.queue, "--id", "none", "--yes", "--json"},
		append([]string{"waiting", "release", s.queue, "--id", "none"}, wait...),
		append([]string{"waiting", "cancel", s.queue, "--id", "none", "--json"}, wait...),
	} {
		o := s.tool(args...)
		require.Equal(t, exitFound, o.code, "%v: %s%s", args, o.out, o.err)
		require.Contains(t, o.err, "millpond: there is no message with the ID ", args)
	}
	for _, args := range [][]string{
		{"dead", "replay", s.queue, "--reason", "unknown"}, // a filter may find nothing
		{"dead", "discard", s.queue, "--id", "none", "--id", "order-0", "--yes"},
	} {
		o := s.tool(args...)
		require.Equal(t, exitDone, o.code, "%v: %s%s", args, o.out, o.err)
		require.Empty(t, o.err, args)
	}
	require.Equal(t, 2, testbroker.Depth(t, s.url, s.queue+".dlq"))
}

// A quorum queue whose policies cannot be seen is not read. Given a reader that goes away, as head
// does, then the tool ends with an error in place of the signal, and the letters are in their order
// as before.
func TestClosedPipeMixesUpNoLetters(t *testing.T) {
	t.Parallel()
	s := newService(t, "quorum")
	s.die()
	before := s.tool("dead", "list", s.queue)
	require.Zero(t, before.code, before.err)
	o := tool(t, s.url, "", "--url", s.url, "--no-management", "dead", "list", s.queue)
	require.Equal(t, exitRefused, o.code, o.err)
	golden(t, "refused-unseen",
		strings.ReplaceAll(assumed.ReplaceAllString(o.err, ""), s.queue, "orders"))
	reader, writer, err := os.Pipe()
	require.NoError(t, err)
	require.NoError(t, reader.Close())
	child := exec.Command(os.Args[0], "--url", s.url, "--no-policies", "dead", "list", s.queue)
	child.Env = append(os.Environ(), "MILLPOND_TEST_TOOL=1", "HOME=")
	var errs bytes.Buffer
	child.Stdout, child.Stderr = writer, &errs
	_ = child.Run()
	require.NoError(t, writer.Close())
	rig.AwaitDepth(t, s.url, s.queue+".dlq", 3)
	require.Equal(t, before.out, s.tool("dead", "list", s.queue).out)
	require.Equal(t, exitFailed, child.ProcessState.ExitCode(), errs.String())
	require.Contains(t, errs.String(), "write /dev/stdout: broken pipe")
}
