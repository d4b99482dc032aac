package main

import (
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
	report := decoded[struct {
		Product, Took string
		Checks        []struct{ Name, Expected, Seen, Meaning, Status, Fact string }
	}](t, o.out)[0]
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
	require.Contains(t, text, "[F39 of docs/notes/broker-facts.md]")
}

func TestLongTextsOfAReportAreWrapped(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	a := app{stdio: stdio{out: &b}}
	a.wrapped(70, "one two\nthree \x1b[31m four "+strings.Repeat("x", 20)+" y\n")
	indent := strings.Repeat(" ", 70)
	require.Equal(t, strings.Join([]string{
		"one two", indent + "three", indent + `\x1b[31m`, indent + "four",
		indent + strings.Repeat("x", 20), indent + "y", "",
	}, "\n"), b.String())
}
