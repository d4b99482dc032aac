package main

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/fleet"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware/header"
)

// Given a virtual host, when an operator stops a brake for a planned downtime, then list and status
// show it until it is started.
func TestBrakeByHand(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	ask := h.askNarrow
	done := func(out string) outcome { return outcome{out: out} }
	require.Equal(t, done("virtual host \"/\" has no brake\n"), ask("brake", "list"))
	require.Equal(t, done("[]\n"), ask("--json", "brake", "list"))

	// A second stop replaced the first one without a word.
	const anna = "it was stopped by anna since <time> until <time>: it \\x1b[2Jmoves\n"
	for _, before := range []string{"", anna} {
		require.Equal(t, done("brake payments is stopped until <time> at most; start it before with: "+
			"millpond brake start 'payments'\n"+before+
			"no process shares this brake now: the processes that start later stop\n"),
			ask("brake", "stop", "payments", "--for", "2h", "--by", "anna", "--cause",
				"it \x1b[2Jmoves", "--nobody-up"))
	}
	ch := testbroker.Channel(t, h.URL)
	require.NoError(t, fleet.Declare(ch, "mail of the shop"))
	table := done("brake  state  since  by  cause  probes\n" +
		"payments  stopped by hand  <time>  anna  it \\x1b[2Jmoves  from <time>\n" +
		"mail of the shop  open  -  -  -  -\n")
	require.Equal(t, table, ask("brake", "list"))
	require.Equal(t, table, ask("brake", "list", "mail of the shop", "payments"))
	require.Contains(t, strings.Join(strings.Fields(ask("status").out), " "), "brake payments "+
		"stopped by hand by anna, ends at <time>: it \\x1b[2Jmoves, since <time>; millpond brake start ")

	o := tool(t, h.url, "", "--url", h.url, "--json", "brake", "list")
	states := decoded[[]header.BrakeState](t, o.out)[0]
	require.Len(t, states, 2)
	require.Equal(t, 2*time.Hour, states[0].Until.Sub(states[0].Since))
	o = tool(t, h.url, "", "--url", h.url, "--json", "status")
	status := decoded[struct{ Stopped []header.BrakeState }](t, o.out)[0]
	require.Equal(t, states[:1], status.Stopped)

	file := filepath.Join(t.TempDir(), "audit.jsonl")
	require.Equal(t, done("brake payments is open: the processes start\n"+anna),
		ask("brake", "start", "payments", "--audit", file))
	require.Equal(t, done("brake payments was not stopped\n"),
		ask("brake", "start", "payments", "--audit", file))
	noted := ask("audit", "--audit", file).out
	require.Contains(t, noted, "done\n    brake start 'payments'; it was stopped by anna since <time>")
	require.Contains(t, noted, "done\n    brake start 'payments'; it was not stopped\n")
	require.NotContains(t, noted, "failed")
	require.NotContains(t, ask("status").out, "stopped")

	const shop = "mail of the shop"
	for _, queue := range []string{"orders", "mail"} { // of two processes
		rig.StartBraked(t, rig.Braked{URL: h.URL, Queue: queue, Name: shop, Handle: rig.Succeed})
	}
	// A misspelled stop succeeded, and stood first on all pages.
	require.Equal(t, outcome{code: exitFound, err: `millpond: no process shares a brake "mial", so ` +
		"nothing was stopped; other brakes: mail of the shop, payments; for processes that start " +
		"later pass --nobody-up\n"}, ask("brake", "stop", "mial"))
	require.NotContains(t, ask("brake", "list").out, "mial")
	require.Contains(t, ask("brake", "stop", shop).out, "brake "+shop+" is stopped")
	rig.WaitFor(t, "the names of the queues", func() bool {
		out := strings.Join(strings.Fields(ask("status").out), " ")
		return strings.HasPrefix(out, "brake "+shop+" stopped by hand by ") &&
			strings.Contains(out, ", since <time>; not consumed: mail, orders; millpond brake start")
	})
}

// Given a broker without the management API, then a brake is shown by its name.
func TestBrakeWithoutManagement(t *testing.T) {
	t.Parallel()
	s := newService(t, "quorum")
	testbroker.Delete(t, fleet.Prefix+s.queue)
	o := s.tool("brake", "list")
	require.Equal(t, exitUsage, o.code)
	require.Contains(t, o.err, "name the brakes, or the management API with --management, ")
	o = s.tool("brake", "list", s.queue)
	require.Equal(t, exitFound, o.code)
	require.Contains(t, o.err, `there is no brake "orders"`)
	o = s.tool("brake", "start", s.queue)
	require.Equal(t, exitFound, o.code)
	require.Contains(t, o.err, `there is no brake "orders"`)

	o = s.tool("brake", "stop", s.queue)
	require.Equal(t, exitFound, o.code)
	require.Contains(t, o.err, "only the management API shows which there are (--management)")
	require.Zero(t, s.tool("brake", "stop", s.queue, "--by", "anna", "--nobody-up").code)
	o = s.tool("brake", "list", s.queue)
	require.Zero(t, o.code)
	require.Contains(t, o.out, "stopped by hand")
	o = s.tool("--json", "brake", "start", s.queue)
	require.Zero(t, o.code)
	started := decoded[struct {
		Stopped bool
		Open    bool `json:"was_open"`
		Before  header.BrakeState
	}](t, o.out)[0]
	require.False(t, started.Stopped || started.Open, o.out)
	require.Equal(t, "anna", started.Before.By)
}

// Every wrong use is refused before anything is stopped.
func TestBrakeRefuses(t *testing.T) {
	t.Parallel()
	s := &service{t: t, url: testbroker.URL(t), queue: testbroker.Queue(t), kind: "quorum"}
	for want, args := range map[string][]string{
		"takes the name of one brake, not 0":    {"stop"},
		"takes the name of one brake, not 2":    {"start", "a", "b"},
		"the limit is 0s: it must be 1s to 24h": {"stop", s.queue, "--nobody-up", "--for", "0s"},
		"the limit is 25h0m0s: it must be":      {"stop", s.queue, "--nobody-up", "--for", "25h"},
		"U+000A is not printable":               {"stop", "a\nb"},
		"it has 201 bytes, 200 are allowed":     {"list", strings.Repeat("a", 201)},
	} {
		o := s.tool(append([]string{"brake"}, args...)...)
		require.Equal(t, exitUsage, o.code, want)
		require.Contains(t, o.err, want)
	}
	require.Equal(t, exitFound, s.tool("brake", "list", s.queue).code, "it was declared")
}
