package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/cmd/millpond/internal/auditlog"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/topology/operate"
)

// The tool left no trace of what it did, and the page another one. Given actions of both, then the
// audit says of each who did it, to which messages and how it ended, without payloads.
func TestAuditOfToolAndPage(t *testing.T) {
	t.Parallel()
	s := newService(t, "classic")
	file := filepath.Join(t.TempDir(), "audit.jsonl")
	s.flags = []string{"--audit", file}
	require.Contains(t, s.tool("audit").err, "no action is noted yet")
	s.die()
	group := decoded[[]operate.Group](t, s.tool("dead", "groups", s.queue, "--json").out)[0][0].ID
	require.Zero(t, s.tool("dead", "discard", s.queue, "--all", "--dry-run").code)
	require.NoFileExists(t, file, "nothing was done")

	o := s.tool("dead", "discard", s.queue, "--group", group, "--limit", "1", "--yes", "--by", "anna")
	require.Zero(t, o.code, o.err)
	o = s.tool("dead", "replay", s.queue, "--payload", "order", "--set-header", "secret=x", "--yes")
	require.Zero(t, o.code, o.err)
	o = s.tool("dead", "replay", s.queue, "--all", "--to", "no such queue")
	require.Equal(t, exitFailed, o.code, o.err)
	other := s.queue + "-2"
	rig.DeclareQueue(t, s.url, other, nil)
	rig.DeclareQueue(t, s.url, other+".dlq", nil)
	require.Zero(t, s.tool("dead", "replay", s.queue, "--error", "nothing has it").code)
	o = s.tool("dead", "discard", s.queue, other, "--error", "customer", "--dry-run")
	require.Contains(t, o.out, "would have discarded 0 dead letters of 0")
	require.Zero(t, s.tool("dead", "replay", s.queue, other, "--error", "nothing").code)
	require.Zero(t, s.tool("brake", "stop", "--nobody-up", "--cause", "it moves", s.queue).code)
	log, err := auditlog.Open(file)
	require.NoError(t, err)
	long := "Replay 40 dead letters of queue orders, " + strings.Repeat(`cause="a long text" `, 10)
	require.NoError(t, log.Append(auditlog.Entry{
		Event: "started", Who: "bob", Action: "a page's", What: long, Count: 40,
	}))
	require.NoError(t, log.Close())

	at := regexp.MustCompile(`(?m)^\S{10} \S{9}  `)
	o = s.tool("audit")
	require.Zero(t, o.code, o.err)
	me := editor()
	said := at.ReplaceAllString(o.out, "")
	for _, want := range []string{
		"anna  done: 1 of 1\n    dead discard 'orders' --limit '1', cause=\"dial tcp <address>",
		me + "  done: 1 of 1\n    dead replay 'orders' --set-header …, payload=\"(5 bytes)\"\n",
		me + "  failed: 0 of 1\n    dead replay 'orders' --to 'no such queue'\n    replay dead letters ",
		me + "  done: 0 of 1\n    dead replay 'orders', error=",
		me + "  done\n    brake stop 'orders' --cause 'it moves'\n",
		"bob  no end is noted: 0 of 40\n    Replay 40 dead letters of queue orders, cause=\"a long",
	} {
		require.Contains(t, said, want)
	}
	require.NotContains(t, said, "orders-2", "nothing was chosen of two queues")
	require.Equal(t, "millpond: these are all that was noted in the file "+file+"; --audit names "+
		"another\n", o.err)
	for line := range strings.Lines(o.out) {
		require.LessOrEqual(t, utf8.RuneCountInString(line), 101, line)
	}
	raw, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NotContains(t, string(raw), "secret")
	require.Len(t, decoded[auditlog.Entry](t, s.tool("--json", "audit", "--since", "1h").out), 15)
	require.Empty(t, s.tool("audit", "--since", time.Now().Add(time.Hour).Format(time.RFC3339)).out)

	// A log that was named and cannot be written: nothing is done.
	s.flags = []string{"--audit", filepath.Join(file, "x")}
	o = s.tool("dead", "discard", s.queue, "--all", "--yes")
	require.Equal(t, exitRefused, o.code)
	require.Contains(t, o.err, "nothing was done")
	rig.AwaitDepth(t, s.url, s.queue+".dlq", 1)
}
