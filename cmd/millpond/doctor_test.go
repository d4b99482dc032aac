package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

// On a default broker nothing differs, in text and in JSON.
func TestDoctorOnADefaultBroker(t *testing.T) {
	t.Parallel()
	url := testbroker.URL(t)
	quick := []string{"--url", url, "doctor", "--patience", "2s"}
	o := tool(t, url, "", append(quick, testbroker.Queue(t))...)
	require.Equal(t, exitDone, o.code, "%s%s", o.out, o.err)
	require.Contains(t, o.out, ": 0 differ, ")
	require.Contains(t, o.out, "\nok       at-least-once       the wait queue holds them")
	require.Contains(t, o.out, "\nok       rights of ")
	require.Less(t, strings.Index(o.out, "\nunknown"), strings.Index(o.out, "\nok"), "trouble first")
	require.NotContains(t, o.out, "expected")
	for line := range strings.Lines(o.out) {
		require.LessOrEqual(t, utf8.RuneCountInString(line), reportWidth+1, line)
	}
	o = tool(t, url, "", append([]string{"--json"}, quick...)...)
	require.Equal(t, exitDone, o.code, "%s%s", o.out, o.err)
	var report struct {
		Product, Took string
		Checks        []struct{ Name, Expected, Seen, Meaning, Status, Fact string }
	}
	require.NoError(t, json.Unmarshal([]byte(o.out), &report))
	require.Equal(t, "RabbitMQ", report.Product)
	require.Regexp(t, `^\d+\.\d+s$`, report.Took)
	require.Greater(t, len(report.Checks), 15)
}

// A difference that the guarantee needs is at the top, with its meaning, and the exit code is 1.
func TestDoctorNamesADifference(t *testing.T) {
	t.Parallel()
	node, api := testbroker.Managed(t, "")
	testbroker.SetPolicy(t, api, "policies", "/", "short", ".*", map[string]any{"max-length": 3})
	o := tool(t, node.URL(), "",
		"--url", node.URL(), "--management", api, "doctor", "--patience", "1s")
	require.Equal(t, exitFound, o.code, "%s%s", o.out, o.err)
	t.Logf("\n%s", o.out)
	text := strings.Join(strings.Fields(o.out), " ")
	require.Regexp(t, `^RabbitMQ \S+ at .*: \d+ differ, .*? differs kept, quorum expected `, text)
	require.Contains(t, text, "3 of 20 messages were there")
	require.Contains(t, text, `policy "short" sets max-length to 3`)
	require.Contains(t, text, "[F39 of docs/broker-facts.md]")
}

func TestDoctorRefusesFlags(t *testing.T) {
	t.Parallel()
	o := tool(t, "", "", "doctor", "--patience", "1ms")
	require.Equal(t, exitUsage, o.code)
	require.Contains(t, o.err, "--patience 1ms is not from 1s to 24h")
	o = tool(t, "", "", "doctor", "orders", "--strategy", "none")
	require.Equal(t, exitUsage, o.code)
	o = tool(t, "", "", "--url", "amqp://guest:secret@127.0.0.1:1/", "doctor")
	require.Equal(t, exitFailed, o.code)
	require.NotContains(t, o.err, "secret")
}

// After Ctrl-C nothing is left.
func TestDoctorInterrupted(t *testing.T) {
	t.Parallel()
	node, _ := testbroker.Managed(t, "")
	names := func() string { // an eval is quick: the doctor must not end meanwhile
		return node.Ctl(t, "eval", `
			{lists:sort([Q || {resource, _, _, Q} <- rabbit_amqqueue:list_names()]),
			lists:sort([E || {resource, _, _, E} <- rabbit_exchange:list_names()])}.`)
	}
	before := names()
	child := exec.CommandContext(t.Context(), os.Args[0], "--url", node.URL(), "doctor")
	child.Env = append(os.Environ(), "MILLPOND_TEST_TOOL=1")
	require.NoError(t, child.Start())
	testbroker.WaitFor(t, "scratch queues", patience, func() bool {
		return strings.Contains(names(), "millpond.doctor.")
	})
	require.NoError(t, child.Process.Signal(os.Interrupt))
	_ = child.Wait()
	require.Equal(t, exitInterrupted, child.ProcessState.ExitCode())
	require.Equal(t, before, names())
}

func TestLongTextsOfAReportAreWrapped(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	a := app{stdio{out: &b}}
	a.wrapped(70, "one two\nthree \x1b[31m four "+strings.Repeat("x", 20)+" y\n")
	indent := strings.Repeat(" ", 70)
	require.Equal(t, strings.Join([]string{
		"one two", indent + "three [31m", indent + "four", indent + strings.Repeat("x", 20),
		indent + "y", "",
	}, "\n"), b.String())
}
