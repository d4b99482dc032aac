package main

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

func TestMain(m *testing.M) {
	testbroker.Main(m, func() error { return goleak.Find() })
}

// runDemo runs the program and returns its exit status and what it prints.
func runDemo(ctx context.Context, args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = run(ctx, args, &out, &errs)
	return code, out.String(), errs.String()
}

func TestDemoLosesNothing(t *testing.T) {
	t.Parallel()
	for _, strategy := range []string{"quorum", "classic"} {
		t.Run(strategy, func(t *testing.T) {
			t.Parallel()
			code, stdout, stderr := runDemo(t.Context(), "--url", testbroker.URL(t), "--strategy", strategy)
			require.Empty(t, stderr)
			require.Zero(t, code, stdout)
			require.True(t, strings.HasSuffix(stdout, "\npublished 4  handled 2  dead-lettered 2  lost 0\n"), stdout)
			require.Contains(t, stdout, "order-3   permanent, failures 1, error: invalid order\n")
			require.Contains(t, stdout, "order-4   exhausted, failures 4, error: the shop is closed\n")
		})
	}
}

// cutter calls cut when a text is written.
type cutter struct {
	bytes.Buffer
	text string
	cut  func()
}

func (c *cutter) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte(c.text)) {
		c.cut()
	}
	return c.Buffer.Write(p)
}

func TestInterruptedDemoSaysWhatIsUndecided(t *testing.T) {
	t.Parallel()
	url := testbroker.URL(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var stderr bytes.Buffer
	stdout := cutter{text: " 300ms ", cut: cancel} // the first second attempt
	require.Equal(t, 1, run(ctx, []string{"--url", url}, &stdout, &stderr))
	require.Equal(t, "basic: interrupted\n", stderr.String())
	require.Contains(t, stdout.String(), "\npublished 4  handled 1  dead-lettered 1  lost 0  still in a queue 2\n")
}

func TestArguments(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		args []string
		code int
		says string
	}{
		"help":                {[]string{"--help"}, 0, "Usage: basic"},
		"unknown flag":        {[]string{"--urls", "x"}, 2, "flag provided but not defined"},
		"unknown strategy":    {[]string{"--strategy", "stream"}, 2, `unknown strategy "stream": quorum or classic`},
		"argument":            {[]string{"now"}, 2, `unexpected argument "now"`},
		"no URL":              {[]string{"--url", "nowhere"}, 1, "AMQP URL is invalid"},
		"nobody there":        {[]string{"--url", "amqp://guest:secret@127.0.0.1:1/"}, 1, "connect to RabbitMQ at 127.0.0.1:1"},
		"unreadable password": {[]string{"--url", "amqp://guest:secret%zz@127.0.0.1:1/"}, 1, "AMQP URL is invalid"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			code, stdout, stderr := runDemo(t.Context(), test.args...)
			require.Equal(t, test.code, code)
			require.Empty(t, stdout)
			require.Contains(t, stderr, test.says)
			require.NotContains(t, stderr, "secret")
		})
	}
}
