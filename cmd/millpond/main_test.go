package main

import (
	"bytes"
	"encoding/hex"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/millpond-go/millpond/cmd/millpond/internal/overview"
	"github.com/millpond-go/millpond/cmd/millpond/internal/shop"
	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology/operate"
)

var update = flag.Bool("update", false, "write the golden files anew")

func TestMain(m *testing.M) {
	if os.Getenv("MILLPOND_TEST_TOOL") != "" { // be the tool
		main()
	}
	testbroker.Main(m, func() error { return goleak.Find() })
}

const patience = 60 * time.Second

// outcome is the result of a run of the tool.
type outcome struct {
	out, err string
	code     int
}

// tool runs the program in this process, without a terminal.
func tool(t testing.TB, url, in string, args ...string) outcome {
	t.Helper()
	var out, errs bytes.Buffer
	code := run(t.Context(), append([]string{"millpond"}, args...), stdio{
		in: strings.NewReader(in), out: &out, err: &errs, terminal: func(any) bool { return false },
		environment: func(string) string { return "" },
	})
	return outcome{out.String(), errs.String(), code}
}

// service is a queue with its plan on the broker, named as the golden files name it.
type service struct {
	t          testing.TB
	url, queue string
	kind       string   // of all its queues
	flags      []string // of every command
}

// eachKind runs a test with quorum and with classic queues.
func eachKind(t *testing.T, test func(t *testing.T, s *service)) {
	t.Helper()
	t.Parallel()
	for _, kind := range []string{"quorum", "classic"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			test(t, newService(t, kind))
		})
	}
}

func newService(t testing.TB, kind string) *service {
	t.Helper()
	s := &service{t: t, url: testbroker.URL(t), queue: testbroker.Queue(t), kind: kind}
	args := amqp.Table{"x-queue-type": kind}
	if kind == "quorum" {
		args["x-delivery-limit"] = int32(1 << 30)
	}
	rig.DeclareQueue(t, s.url, s.queue, args)
	require.Zero(t, s.tool("declare", s.queue, "--policy", "1s,10s").code)
	return s
}

// tool runs the program against the service's broker.
func (s *service) tool(args ...string) outcome {
	s.t.Helper()
	return s.toolWith("", args...)
}

func (s *service) toolWith(in string, args ...string) outcome {
	s.t.Helper()
	// The node has no management API, and no test sets a policy.
	flags := append([]string{"--url", s.url, "--type", s.kind, "--no-policies"}, s.flags...)
	if !slices.Contains(append(flags, args...), "--management") {
		flags = append(flags, "--no-management")
	}
	o := tool(s.t, s.url, in, append(flags, args...)...)
	o.out = brokerCounts.ReplaceAllString(strings.ReplaceAll(o.out, s.queue, "orders"), "")
	o.err = strings.ReplaceAll(assumed.ReplaceAllString(o.err, ""), s.queue, "orders")
	return o
}

// assumed are the lines that name the queues by the flags, which each command prints.
var assumed = regexp.MustCompile(`(?m)^millpond: without the management API .*\n`)

// brokerCounts differ between versions.
var brokerCounts = regexp.MustCompile(`(?m)^ +x-(delivery|acquired)-count.*\n`)

// die publishes three dead letters.
func (s *service) die() {
	s.t.Helper()
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	var letters []amqp.Publishing
	for i := range 3 {
		n := strconv.Itoa(i)
		notes := header.RetryState{
			Failures: i + 1, Reason: header.ReasonExhausted, Class: header.ClassRetryable,
			Error:   "dial tcp 10.0.0." + n + ":443: connection refused",
			Handler: "ship", DeadAt: at.Add(time.Duration(i) * time.Minute),
			OriginExchange: "shop", OriginRoutingKey: "order.placed",
			History: []header.AttemptError{{
				Attempt: i + 1, At: at, Handler: "ship", Error: "connection refused",
				Class: header.ClassRetryable, Reason: header.ReasonExhausted,
			}},
		}
		m := amqp.Publishing{
			MessageId: "order-" + n, CorrelationId: "c-1", ContentType: "application/json",
			Timestamp: at, Body: []byte(`{"order":` + n + `}`),
			Headers: amqp.Table{"tenant": int32(i), "escape": "\x1b[31mred"},
		}
		if i == 2 {
			notes.Reason, notes.Error = header.ReasonPermanent, "no such customer"
			m.Body = []byte{0, 1, 2, 0xff}
		}
		letters = append(letters, shop.Dead(s.queue, notes, m))
	}
	s.publish(s.queue+".dlq", letters...)
	rig.AwaitDepth(s.t, s.url, s.queue+".dlq", 3)
}

func (s *service) publish(queue string, messages ...amqp.Publishing) {
	s.t.Helper()
	rig.Post(s.t, s.url, queue, messages...)
}

// golden compares with a file in testdata. Classic wait queues have longer names: without the end
// of their names and the width of columns the output is that of quorum queues.
func (s *service) golden(name, got string) {
	s.t.Helper()
	if s.kind != "classic" {
		golden(s.t, name, got)
		return
	}
	if !*update { // a quorum queue writes it
		s.alike(name, got)
	}
}

// alike compares with a file in testdata, whatever the width of its columns.
func (s *service) alike(name, got string) {
	s.t.Helper()
	want, err := os.ReadFile(goldenFile(name))
	require.NoError(s.t, err)
	require.Equal(s.t, narrow(string(want)), narrow(strings.ReplaceAll(got, ".classic", "")))
}

// golden compares with a file in testdata.
func golden(t testing.TB, name, got string) {
	t.Helper()
	file := goldenFile(name)
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err, "go test -update writes it")
	require.Equal(t, string(want), got)
}

func goldenFile(name string) string { return filepath.Join("testdata", name+".golden") }

// narrow leaves two spaces between the columns of a table.
func narrow(text string) string { return columnGap.ReplaceAllString(text, "$1  ") }

var columnGap = regexp.MustCompile(`(?m)(\S) {3,}`)

// The output of the plan commands, without a broker, and the strategy of each flag.
func TestPlanIsPrinted(t *testing.T) {
	t.Parallel()
	for name, args := range map[string]string{
		"plan":             "plan orders --policy 1s,10s,100s",
		"plan-permissions": "plan --permissions orders --policy 1s,2s,3s,4s,5s,6s,7s,8s,9s",
	} {
		o := tool(t, "", "", strings.Fields(args)...)
		require.Zero(t, o.code, o.err)
		require.Empty(t, o.err)
		golden(t, name, o.out)
	}
	for _, c := range [][]string{
		{"--json plan", `"delay": "5s",\n[^}]*"name": "orders\.wait\.5s"`},
		{"plan --definitions --vhost shop", `"name": "orders\.wait\.12s",\n *"vhost": "shop"`},
		{"--strategy shared --type classic --prefix mill plan", `\nmill\.wait\.5s\.classic +5s `},
		{"--strategy delayed plan", `\n33. delays .* in exchange millpond\.delayed\n`},
		{"--strategy levels plan", `any delay in steps of 100ms`},
		{"--strategy native plan", ` x-delayed-retry-min=5000 x-delayed-retry-max=12000`},
		{"--strategy inorder plan", `\norders\.line +- `},
		{"--strategy perattempt plan", `\norders\.retry\.2\.10s +10s `},
		{"--return-to events --return-to logs plan", `millpond-return=through events orders ` +
			`[^z]* millpond-return=through logs orders `},
		{"--dlq graveyard plan", `\ngraveyard +- `},
	} {
		o := tool(t, "", "", strings.Fields(c[0]+" orders --policy 5s,10s,12s")...)
		require.Zero(t, o.code, o.err)
		require.Regexp(t, c[1], o.out, c[0])
	}
}

// The name of a queue reaches no terminal as it is.
func TestPlanOfAHostileNameIsHarmless(t *testing.T) {
	t.Parallel()
	for _, form := range []string{"--definitions", "--permissions", "--json", "--no-policies"} {
		o := tool(t, "", "", "plan", "a\x1b[2J\u202eb", "--policy", "1s", form)
		require.Zero(t, o.code, o.err)
		require.NotContains(t, o.out, "\x1b", form)
		require.NotContains(t, o.out, "\u202e", form)
	}
}

// Every command on three dead letters, as tables and as JSON.
func TestCommandsPrintWhatTheyDo(t *testing.T) { eachKind(t, commandsPrintWhatTheyDo) }

func commandsPrintWhatTheyDo(t *testing.T, s *service) {
	s.die()
	sameInJSON(t, s)
	steps := []struct {
		name string
		args string
		code int
	}{
		{"status", "status orders --policy 1s,10s", 0},
		{"verify", "verify orders --policy 1s,10s", 0},
		{"verify", "verify orders --policy 1s,10s --strict", 1},
		{"verify-missing", "verify orders --policy 1s,30s", 1},
		{"dead-list", "dead list orders", 0},
		{"dead-list-json", "dead list orders --json", 0},
		{"dead-list-none", "dead list orders --handler none", 0},
		{
			"dead-list-time",
			"dead list orders --since 2026-03-01T12:01:00Z --until 2026-03-01T12:02:00Z --header tenant=1",
			0,
		},
		{"dead-groups", "dead groups orders", 0},
		{"dead-list-none", "dead groups orders --handler none", 0},
		{"dead-show", "dead show orders order-0", 0},
		{"dead-show-none", "dead show orders order-9", 1},
		{"dead-replay-dry", "dead replay orders --dry-run", 1}, // no consumer
		{"dead-replay-ramp-none", "dead replay orders --policy 1s,10s --canary 3 --reason none", 0},
		{"dead-replay", "dead replay orders --id #1 --rate 100/s", 0},
		{"dead-replay-json", "dead replay orders --reason exhausted --json", 0},
		{"dead-discard-dry", "dead discard orders --dry-run", 0},
		{"waiting-none", "waiting list orders --policy 1s,10s", 0},
		{"prune-refused", "prune orders --policy 1s --old-policy 1s,10s", 4},
	}
	for _, step := range steps {
		o := s.tool(strings.Fields(strings.ReplaceAll(step.args, "orders", s.queue))...)
		require.Equal(t, step.code, o.code, "%s: %s%s", step.name, o.out, o.err)
		s.golden(step.name, o.out+o.err)
	}
	require.Equal(t, 1, testbroker.Depth(t, s.url, s.queue+".dlq"))
}

// sameInJSON requires of JSON that it says of queues, findings and causes what the tables say.
func sameInJSON(t *testing.T, s *service) {
	t.Helper()
	text := s.tool("status", s.queue, "--policy", "1s,10s", "--json").out
	require.Equal(t, "consumers delay findings held kind missing n name problem queue queues ready "+
		"role severity source text total unacked", keysOf(text))
	status := decoded[[]struct {
		operate.Report
		Queues []struct {
			operate.Queue
			Delay string
		}
	}](t, text)[0][0]
	for _, q := range status.Queues {
		var err error
		q.Queue.Delay, err = time.ParseDuration(q.Delay)
		require.NoError(t, err)
		require.False(t, q.Unacked.Known())
		status.Report.Queues = append(status.Report.Queues, q.Queue)
	}
	s.alike("status", status.Report.String()+status.Findings[0].String()+"\n")

	text = s.tool("verify", s.queue, "--policy", "1s,30s", "--json").out
	require.Equal(t, "kind name problem severity text", keysOf(text))
	findings := decoded[[]operate.Finding](t, text)[0]
	require.Equal(t, operate.Missing, findings[0].Problem)
	s.alike("verify-missing", fmt.Sprintln(findings[0])+fmt.Sprintln(findings[1]))

	text = s.tool("dead", "groups", s.queue, "--json").out
	require.Equal(t, "count error exhausted first group handlers id last orders permanent position "+
		"queues reasons sample ship", keysOf(text))
	groups := decoded[[]operate.Group](t, text)[0]
	require.Equal(t, map[string]int{"orders": 2}, groups[0].Queues)
	require.Equal(t, operate.Sample{
		ID: "order-0", Position: 1, Error: "dial tcp 10.0.0.0:443: connection refused",
	}, groups[0].Sample)
	var table strings.Builder
	a := app{stdio: stdio{out: &table}}
	require.NoError(t, a.groups(newApp(a.stdio), "orders", groups))
	s.alike("dead-groups", table.String())
}

// keysOf are the keys in JSON, each once.
func keysOf(text string) string {
	keys := map[string]bool{}
	for _, found := range regexp.MustCompile(`"(\w+)":`).FindAllStringSubmatch(text, -1) {
		keys[found[1]] = true
	}
	return strings.Join(slices.Sorted(maps.Keys(keys)), " ")
}

// Given letters whose IDs are numbers, then #1 is a position and 1 an ID. Only show, which changes
// nothing, takes a number that is the ID of no letter for a position.
func TestANumberIsAnIDAndWithAHashAPosition(t *testing.T) {
	t.Parallel()
	s := newService(t, "classic")
	for _, id := range []string{"order-0", "1", "700", "3", "4"} {
		s.publish(s.queue+".dlq", amqp.Publishing{MessageId: id})
	}
	for id, want := range map[string]string{
		"#1": "order-0", "1": "1", "2": "1", "700": "700", "#3": "700", "#5": "4", "5": "4",
		"order-0": "order-0",
	} {
		o := s.tool("dead", "show", s.queue, id)
		require.Equal(t, exitDone, o.code, o.err)
		require.Regexp(t, `(?m)^id +`+want+`$`, o.out, id)
	}
	for _, command := range []string{
		"show Q #6", "show Q #0", "replay Q --id #1 --id #6", "discard Q --yes --id #0", "list Q --id #6",
		"export Q --id #0",
	} {
		o := s.tool(strings.Fields("dead " + strings.ReplaceAll(command, "Q", s.queue))...)
		require.Equal(t, exitFound, o.code, "%s: %s", command, o.err)
		says := "there is no letter " + command[len(command)-2:] + ` in queue "orders.dlq", which holds 5`
		require.Contains(t, o.err, says, command)
		require.Empty(t, o.out, command)
	}
	o := s.tool("dead", "discard", s.queue, "--id", "2", "--id", "5", "--yes")
	require.NotContains(t, o.out, "discarded 1", "a number is not a position here")
	require.Equal(t, 5, testbroker.Depth(t, s.url, s.queue+".dlq"))
	o = s.tool("dead", "discard", s.queue, "--id", "#2", "--id", "order-0", "--yes")
	require.Equal(t, "discarded 2 dead letters of 5\n", o.out, o.err)
	o = s.tool("dead", "list", s.queue, "--json")
	require.Equal(t, 3, strings.Count(o.out, "\n"))
	require.NotContains(t, o.out, `"order-0"`)
}

// What could not be looked at is said, once for all queues, and fails --strict alone.
func TestVerifySaysWhatItDidNotLookAt(t *testing.T) {
	t.Parallel()
	s := newService(t, "classic")
	const (
		verify = "verify Q --policy 1s,10s"
		away   = " --management http://guest:hush@127.0.0.1:1"
		none   = "only the management API shows them"
		failed = "were not looked at, or not all: management API: "
	)
	for _, c := range []struct {
		args string
		code int
		says string
	}{
		{verify + away, exitDone, failed},
		{verify + away + " --strict", exitFound, failed},
		{"status Q Q --policy 1s,10s", exitDone, none},
	} {
		o := s.tool(strings.Fields(strings.ReplaceAll(c.args, "Q", s.queue))...)
		require.Equal(t, c.code, o.code, "%s: %s%s", c.args, o.out, o.err)
		require.Equal(t, 1, strings.Count(o.out, c.says), "%s: %s", c.args, o.out)
		require.NotContains(t, o.out, "nothing found", c.args)
		require.NotContains(t, o.out+o.err, "hush", c.args)
	}
}

// An engineer sees the end of a message, and the time that its expiration was counted from.
func TestShowSaysWhatADeadlineIsCountedFrom(t *testing.T) {
	t.Parallel()
	s := newService(t, "classic")
	end := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	s.publish(s.queue+".dlq", shop.Dead(s.queue, header.RetryState{
		Reason: header.ReasonDeadline, DeadAt: end, Deadline: end, DeadlineFrom: keys.FromArrival,
	}, amqp.Publishing{MessageId: "late"}))
	require.Regexp(t,
		`(?m)^deadline +2026-03-01 12:00:00Z, its expiration counted from its first arrival$`,
		s.tool("dead", "show", s.queue, "late").out)
}

// A payload is shown to its first 4 KiB, with the number of bytes left, and as a whole with
// --full. A body of 12 MB was printed as 59 MB.
func TestShowOfALargeBodyIsCut(t *testing.T) {
	t.Parallel()
	s := newService(t, "classic")
	bodies := map[string][]byte{
		"text":   []byte(strings.Repeat("äöü ", 200_000)),
		"binary": bytes.Repeat([]byte{0, 1, 0xfe, 0xff}, 300_000),
		"json":   []byte(`{"list":[` + strings.Repeat("1,", 200_000) + `2]}`),
		"nested": []byte(strings.Repeat("[", 2000) + strings.Repeat("]", 2000)),
		"escape": bytes.Repeat([]byte{1, '<'}, 300_000),
	}
	for _, id := range slices.Sorted(maps.Keys(bodies)) {
		s.publish(s.queue+".dlq",
			amqp.Publishing{MessageId: id, Body: bodies[id]})
	}
	for id, body := range bodies {
		shown := s.tool("dead", "show", s.queue, id)
		require.Zero(t, shown.code, shown.err)
		require.Less(t, len(shown.out), 24<<10, id)
		require.True(t, utf8.ValidString(shown.out), id)
		require.Equal(t, len(body) > 4096, strings.Contains(shown.out, " more; --full prints all\n"), id)
		asJSON := s.tool("--json", "dead", "show", s.queue, id)
		require.Less(t, len(asJSON.out), 2*len(body)+2048, id)
	}
	full := s.tool("dead", "show", s.queue, "binary", "--full")
	require.Contains(t, full.out, hex.Dump(bodies["binary"]))
	require.Contains(t, s.tool("dead", "show", s.queue, "binary").out, "\npayload, 1200000 bytes\n"+
		hex.Dump(bodies["binary"][:4096])+"… 1195904 bytes more; --full prints all\n")
}

// Letters are exported, discarded with an export, and imported.
func TestExportDiscardImportByHand(t *testing.T) { eachKind(t, exportDiscardImportByHand) }

func exportDiscardImportByHand(t *testing.T, s *service) {
	s.die()
	all := s.tool("dead", "export", s.queue, "--all")
	require.Zero(t, all.code, all.err)
	require.Equal(t, 3, strings.Count(all.out, "\n"))
	file := filepath.Join(t.TempDir(), "letters.jsonl")
	require.Zero(t, s.tool("dead", "export", s.queue, "--all", "--file", file).code)
	require.Equal(t, exitFailed, s.tool("dead", "export", s.queue, "--all", "--file", file).code,
		"it is not overwritten")

	kept := filepath.Join(t.TempDir(), "kept.jsonl")
	o := s.tool("dead", "discard", s.queue, "--all", "--yes", "--export", kept)
	require.Zero(t, o.code, o.err)
	require.Equal(t, "discarded 3 dead letters of 3, kept in "+kept+"\n", o.out)
	data, err := os.ReadFile(kept)
	require.NoError(t, err)
	require.Equal(t, 3, bytes.Count(data, []byte("\n")))
	first, _, _ := bytes.Cut(data, []byte("\n"))
	d, err := operate.Decode(first)
	require.NoError(t, err)
	require.Equal(t, "order-0", d.MessageId)

	o = s.toolWith(string(data), "dead", "import", s.queue)
	require.Equal(t, "3 lines confirmed\n", o.out, o.err)
	rig.AwaitDepth(t, s.url, s.queue+".dlq", 3)
	o = s.toolWith("nonsense\n", "dead", "import", s.queue, "--json")
	require.Equal(t, exitFailed, o.code)
	require.Len(t, decoded[struct{ Lines int }](t, o.out), 1)
}

func TestWaitingByHand(t *testing.T) { eachKind(t, waitingByHand) }

func waitingByHand(t *testing.T, s *service) {
	require.Zero(t, s.tool("declare", s.queue, "--policy", "1h").code)
	wait, aside := s.queue+".wait.1h", s.queue+".wait.1s"
	if s.kind == "classic" {
		wait, aside = wait+".classic", aside+".classic"
	}
	testbroker.Delete(t, wait, aside)
	for _, id := range []string{"a", "b", "c"} {
		s.publish(wait, amqp.Publishing{MessageId: id})
	}
	o := s.tool("waiting", "list", s.queue, "--policy", "1h", "--limit", "2")
	require.Zero(t, o.code, o.err)
	s.golden("waiting-list", o.out)
	o = s.tool("waiting", "list", s.queue, "--policy", "1h", "--json")
	s.golden("waiting-list-json", o.out)
	require.Equal(t, 3, strings.Count(o.out, "\n"), "one object a line")
	require.Equal(t, exitUsage, s.tool("waiting", "release", s.queue, "--policy", "1h").code)
	o = s.tool("waiting", "release", s.queue, "--policy", "1h", "--id", "b")
	require.Equal(t, "released 1 waiting message of 3\n", o.out, o.err)
	o = s.tool("waiting", "cancel", s.queue, "--policy", "1h", "--all")
	require.Equal(t, "cancelled 2 waiting messages of 2\n", o.out, o.err)
	o = s.tool("dead", "list", s.queue, "--reason", "cancelled")
	require.Equal(t, 3, strings.Count(o.out, "\n"), o.out)
}

// Wrong use is said before the broker is asked. Everything needs --all.
func TestWrongUse(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ args, says string }{
		{"nonsense", `there is no command "nonsense"`},
		{"dead nonsense", `there is no command "nonsense"`},
		{"dead import", "the name of one queue"},
		{"dead list q --nonsense", "nonsense"},
		{"doctor --patience 1ms", "--patience 1ms is not from 1s to 24h"},
		{"plan q --policy soon", `"soon" is no delay`},
		{"plan q --policy 2s,0s", `"0s" is no delay`},
		{"plan q --strategy magic", "delayed, inorder, levels, native"},
		{"plan q --strategy native", "name the delays of the queue"},
		{"plan q --strategy levels --return-to x", "only with perqueue, shared, delayed"},
		{
			"plan q --strategy native --policy 5s,30s,1m",
			"delay 2 is 30s, but a queue that holds messages for 5s to 1m0s holds them for 10s then",
		},
		{"prune q --policy 1s --old-policy 9999999h", "--old-policy: "},
		{"plan q --type stream", "stream"},
		{"dead replay q --rate fast", "50/s"},
		{"dead replay q --rate -1", "50/s"},
		{"dead list q --since yesterday", "is no time"},
		{"dead list q --error /(/", "--error"},
		{"dead list q --header x", "name=value"},
		{"dead list q --limit -1", "must be positive"},
		{"stranded return", "or pass --all for every stranded message"},
		{"stranded discard --yes", "or pass --all for every stranded message"},
		{"stranded return --all --error x", "--all and --error contradict"},
		{"stranded return --id #1", "no positions"},
		{"stranded show", "takes the ID of one message"},
		{"stranded return --all --rate x", "--rate"},
		{"dead replay q", "or pass --all for every dead letter"},
		{"dead discard q --yes", "or pass --all for every dead letter"},
		{"dead export q", "or pass --all for every dead letter"},
		{"dead replay q --all --reason x", "--all and --reason contradict"},
		{"dead replay q --error=", "--error is empty"},
		{"dead replay q --id=", "--id is empty"},
		{"dead discard q --payload=", "--payload is empty"},
		{"dead list q --payload=/(/", "--payload"},
		{"dead list q --limit 0", "--limit 0"},
		{"dead list q --group", "group"},
		{"dead replay q --edit x --limit 1", "leave out --limit"},
		{"dead replay q --edit x --patch []", "leave out --patch"},
		{"dead replay q --all --patch []", "has no operation"},
		{"dead replay q --all --patch [{\"op\":\"add\"}]", "it is no JSON patch"},
		{"dead replay q --all --patch /none", "no such file"},
		{"dead replay q --all --set-header x", "write name=value"},
		{"dead replay q --all --set-header x:int64=y", "no value of type int64"},
		{"dead replay q --all --set-header millpond-replays=1", "belongs to the library"},
		{"dead replay q --all --set-header CC=x", "belongs to the library or to the broker"},
		{"dead replay q --all --unset-header x-death", "belongs to the library or to the broker"},
		{"dead replay q --all --set-header x=1 --unset-header x", "named twice"},
	} {
		o := toClosedPort(t, strings.Fields(c.args))
		require.Equal(t, exitUsage, o.code, "%s: %s", c.args, o.err)
		require.Contains(t, o.out+o.err, c.says, c.args)
	}
}

// A broker that is away is told apart from wrong use; no password is ever shown.
func TestExitCodes(t *testing.T) {
	t.Parallel()
	for args, says := range map[string]string{
		"--url amqp://me:hush@127.0.0.1:1/ status q":                                  "127.0.0.1:1",
		"--url amqp://me:hu%zzsh@127.0.0.1:1/ status q":                               "cannot be parsed",
		"--management http://me:hush@127.0.0.1:1/? --url amqp://127.0.0.1:1 status q": "",
	} {
		o := tool(t, "", "", strings.Fields(args)...)
		require.Equal(t, exitFailed, o.code, "%v: %s", args, o.err)
		require.Contains(t, o.out+o.err, says, args)
		require.NotContains(t, o.out+o.err, "hush")
		require.NotContains(t, o.out+o.err, "sh@")
	}
}

func TestRates(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]float64{
		"": 0, "50": 50, "50/s": 50, "90/m": 1.5, "7200/h": 2, "0.5/s": 0.5,
	} {
		got, err := overview.Rate(text)
		require.NoError(t, err, text)
		require.InDelta(t, want, got, 1e-9, text)
	}
}

// A bar, painted findings and answers to questions are for terminals.
func TestTerminal(t *testing.T) {
	t.Parallel()
	require.Equal(t, "replaying [===============               ]  50%  "+
		"50/100 seen, 40 done, 20/s, 2s left",
		barText("replaying", operate.Progress{Total: 100, Seen: 50, Done: 40}, 2*time.Second))
	var out bytes.Buffer
	s := stdio{
		out: &out, err: &out, terminal: func(any) bool { return true },
		environment: func(string) string { return "" },
	}
	require.Equal(t, "\x1b[31mbad\x1b[0m", s.colour(red, "bad"))
	s.environment = func(name string) string { return map[string]string{"NO_COLOR": "1"}[name] }
	require.Equal(t, "bad", s.colour(red, "bad"))
	null, err := os.Open(os.DevNull)
	require.NoError(t, err)
	defer func() { _ = null.Close() }()
	require.False(t, isTerminal(null))
	require.Equal(t, `a\n\x1b[31mred …`, oneLine("a\n\x1b[31mred …"))
}

// toClosedPort runs a command. A command without a mistake fails to connect.
func toClosedPort(t *testing.T, args []string) outcome {
	t.Helper()
	return tool(t, "", "", append([]string{"--url", "amqp://guest:guest@127.0.0.1:1/"}, args...)...)
}
