package main

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/cmd/millpond/internal/shop"
	"github.com/millpond-go/millpond/topology/operate"
)

// Given a service that handles a queue in order, when a dead letter blocks a key, then the tool
// shows it; a person releases one key and replays another.
func TestOrderByHand(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	var mended atomic.Bool
	o := h.Orders(shop.InOrder(), shop.Bad(mended.Load))
	ask := h.askNarrow
	shows := func(want string, args ...string) {
		t.Helper()
		require.EventuallyWithT(t, func(c *assert.CollectT) {
			require.Equal(c, outcome{out: want}, ask(args...))
		}, patience, 10*time.Millisecond)
	}
	shows("orders: <leader>, 0\nno key waits\n", "order", "list")
	const hostile = "order \x1b[2J 18"
	o.Keyed("order 17", "bad 1", "2", "3")
	o.Keyed(hostile, "bad 4", "5")
	const table = "orders: <leader>, 5\n" +
		"key  state  waiting  dead letter  mark\n" +
		"order 17  blocked since <time>  2  id-bad-1  <mark>\n" +
		"order \\x1b[2J 18  blocked since <time>  1  id-bad-4  <mark>\n"
	shows(table, "order", "list")
	shows(table, "order", "list", "orders", "--blocked")
	shows(strings.Join(strings.SplitAfter(table, "\n")[:3], "")+"… and 1 more\n",
		"order", "list", "--limit", "1")
	out := tool(t, h.url, "", "--url", h.url, "--json", "order", "list")
	lines := decoded[[]orderJSON](t, out.out)[0]
	require.Len(t, lines, 1)
	require.Equal(t, "orders", lines[0].Queue)
	second, _ := lines[0].Find(hostile)
	require.NotEmpty(t, second.Mark)

	status := ask("status", "orders")
	require.Zero(t, status.code, status.err)
	require.Contains(t, status.out, "orders.line  line  -  0 (amqp)  1 (amqp)")
	require.NotContains(t, status.out, "stranded")
	require.NotContains(t, ask("status").out, "orders.line")
	verify := ask("verify")
	require.NotContains(t, verify.out, "critical", "orders.line is no stray")
	require.NotContains(t, verify.out, "orders.line")
	require.Zero(t, ask("verify", "orders", "--strategy", "inorder", "--policy", "1s").code)
	require.Equal(t, exitUsage, ask("verify", "orders", "--strategy", "shared").code)
	require.NotContains(t, ask("dead", "list").out, "is not known")

	// A release asks first, names its letter, and holds for that one alone.
	out = ask("order", "release", "orders", "order 17")
	require.Equal(t, exitUsage, out.code)
	require.Contains(t, out.err, "there is no terminal to ask on")
	require.Equal(t, outcome{out: "would have released key order 17: 2 messages wait; dead letter " +
		"id-bad-1 stays in orders.dlq\n"}, ask("order", "release", "orders", "order 17", "--dry-run"))
	require.Empty(t, o.Handled())
	require.Equal(t, outcome{out: "released key order 17: 2 messages wait; dead letter id-bad-1 " +
		"stays in orders.dlq\n"}, ask("order", "release", "orders", "order 17", "--yes"))
	for _, again := range [][]string{{"order 17"}, {"no such key"}} {
		out = ask(append([]string{"order", "release", "orders", "--yes"}, again...)...)
		require.Equal(t, exitFound, out.code)
		require.Contains(t, out.err, "is not blocked")
	}
	o.AwaitHandled(2)

	out = ask("dead", "replay", "orders", "--id", "id-bad-4")
	require.Equal(t, exitFailed, out.code, out)
	require.Contains(t, out.err, "millpond order replay")
	require.Equal(t, outcome{out: "would have replayed 1 dead letter of 2; nothing was changed\n"},
		ask("order", "replay", "orders", "--mark", second.Mark, "--dry-run"))
	mended.Store(true)
	require.Equal(t, outcome{out: "replayed 1 dead letter of 2\n"},
		ask("order", "replay", "orders", hostile))
	o.AwaitHandled(4)
	out = ask("order", "replay", "orders", hostile)
	require.Equal(t, exitFound, out.code, out)
	require.Contains(t, out.err, "has no dead letter of key")
	out = ask("--json", "order", "replay", "orders", "order 17")
	done := decoded[doneJSON](t, out.out)[0]
	require.Equal(t, "orders", done.Queue)
	require.Equal(t, operate.Progress{Total: 1, Seen: 1, Chosen: 1, Done: 1}, done.Progress)
	o.AwaitHandled(5)
	require.Equal(t, []string{"2", "3", "bad 4", "5", "bad 1"}, o.Handled())
}

// Every wrong use is refused before anything is done.
func TestOrderRefuses(t *testing.T) {
	t.Parallel()
	s := newService(t, "quorum")
	for want, args := range map[string][]string{
		"takes a queue and a key, or a queue and --mark, not 0": {"release"},
		"takes a queue and a key, or a queue and --mark, not 1": {"replay", s.queue},
		"takes a queue and a key, or a queue and --mark, not 2": {
			"replay", s.queue, "a", "--mark", "1-1",
		},
		"the key is empty":                {"release", s.queue, ""},
		"pass --strategy inorder":         {"release", s.queue, "a"},
		"the flags say how messages wait": {"list", s.queue},
		"name the queues":                 {"list"},
	} {
		o := s.tool(append([]string{"order"}, args...)...)
		require.Equal(t, exitUsage, o.code, want)
		require.Contains(t, o.err, want)
	}
	o := s.tool("--strategy", "inorder", "order", "list", s.queue)
	require.Equal(t, exitFailed, o.code, o)
	require.Contains(t, o.err, "NOT_FOUND")
}
