package main

import (
	"fmt"
	"io"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/cmd/millpond/internal/shop"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
)

// hosts counts the loopback addresses that tests have taken.
var hosts atomic.Int64

// onOneHost returns the AMQP URL of a host that has the management API on its usual port, too.
func onOneHost(t *testing.T, amqpURL, api string) string {
	t.Helper()
	n := 2 + hosts.Add(1)
	host := fmt.Sprintf("127.83.%d.%d", n/200, n%200+1)
	to, err := url.Parse(api)
	require.NoError(t, err)
	relay(t, host+":15672", to.Host)
	from, err := url.Parse(amqpURL)
	require.NoError(t, err)
	from.Host = relay(t, host+":0", from.Host)
	return from.String()
}

// relay passes connections on, and returns the address at which it listens.
func relay(t *testing.T, address, to string) string {
	t.Helper()
	l, err := net.Listen("tcp4", address)
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer near.Close()
				far, err := net.Dial("tcp4", to)
				if err != nil {
					return
				}
				defer far.Close()
				go func() {
					_, _ = io.Copy(far, near)
					_ = far.(*net.TCPConn).CloseWrite()
				}()
				_, _ = io.Copy(near, far)
			}()
		}
	}()
	return l.Addr().String()
}

// house is a house of the shop, and an engineer who has the broker's URL and nothing else.
type house struct {
	*shop.House
	url string // of the engineer
}

func newHouse(t *testing.T) *house {
	t.Helper()
	h := shop.Open(t)
	return &house{House: h, url: onOneHost(t, h.URL, h.API)}
}

// others are the reasons that need a crash, an hour or a broken broker: their letters are made here
// as the library writes them.
var others = []header.Reason{
	header.ReasonExhausted, header.ReasonMaxAge, header.ReasonDeadline, header.ReasonOverBudget,
	header.ReasonCrashLoop, header.ReasonOversized, header.ReasonMisdirected, header.ReasonCancelled,
}

// fill makes dead letters of every reason, waiting messages and stranded ones.
func (h *house) fill() {
	h.T.Helper()
	h.Furnish()
	for _, queue := range shop.Queues {
		h.Send(queue, "is permanent 1000", "refuse", "waits")
	}
	for i, reason := range others {
		queue := shop.Queues[i%len(shop.Queues)]
		h.Post(queue+".dlq", shop.Dead(queue, header.RetryState{
			Failures: i + 1, Reason: reason, Class: header.ClassRetryable, Handler: "handler",
			Error:  fmt.Sprintf("dial tcp 10.0.0.%d:443: connection refused", i),
			DeadAt: time.Now(), OriginRoutingKey: queue,
		}, amqp.Publishing{MessageId: fmt.Sprintf("%s-%s", queue, reason), Body: []byte(`{"n":1}`)}))
	}
	h.Strand(rig.Config{
		Queue: "old", Strategy: topology.Levels{Max: 2 * time.Hour}, Configure: rig.QuorumQueue,
	}, "millpond.stranded", 1)
	for queue, n := range map[string]int{"orders": 5, "invoices": 5, "mail": 4} {
		rig.AwaitDepth(h.T, h.URL, queue+".dlq", n)
	}
}

// ask runs the tool with the URL alone.
func (h *house) ask(args ...string) outcome {
	h.T.Helper()
	o := tool(h.T, h.url, "", append([]string{"--url", h.url}, args...)...)
	o.out, o.err = h.stable(o.out), h.stable(o.err)
	return o
}

// stable replaces everything that differs from run to run.
func (h *house) stable(text string) string {
	for _, r := range unstable {
		text = r.pattern.ReplaceAllString(text, r.by)
	}
	return text
}

var unstable = []struct {
	pattern *regexp.Regexp
	by      string
}{
	{regexp.MustCompile(`\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+)?Z`), "2026-03-01 12:00:00Z"},
	{regexp.MustCompile(`127\.\d+\.\d+\.\d+(:\d+)?`), "host"},
}

// awaitCounts waits until the broker has counted all that fill has made.
func (h *house) awaitCounts() {
	h.T.Helper()
	testbroker.WaitFor(h.T, "the management API to count", patience, func() bool {
		o := h.ask("status")
		require.Zero(h.T, o.code, o.err)
		return !strings.Contains(o.out, "  ?") && strings.Count(o.out, "  1        4  ")+
			strings.Count(o.out, "  1        5  ") == len(shop.Queues)
	})
}

// Given three services with three strategies, dead letters of every reason, waiting and
// stranded messages, then every command shows all of it to a person who knows only the URL.
func TestURLAloneIsEnough(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.fill()
	h.awaitCounts()
	for _, c := range []struct {
		name string
		args []string
		code int
	}{
		{"url-status", []string{"status"}, exitDone},
		{"url-status-orders", []string{"status", "orders"}, exitDone},
		{"url-verify", []string{"verify"}, exitFound},
		{"url-waiting", []string{"waiting", "list"}, exitDone},
		{"url-dead", []string{"dead", "list"}, exitDone},
		{"url-groups", []string{"dead", "groups"}, exitDone},
		{"url-stranded", []string{"stranded", "list"}, exitDone},
		{"url-not-there", []string{"dead", "list", "nowhere"}, exitUsage},
		{"blind-status", []string{"--no-management", "status", "orders"}, exitDone},
		{"blind-none", []string{"--no-management", "verify"}, exitUsage},
		{
			"blind-waiting",
			[]string{"--no-management", "--no-policies", "waiting", "list", "orders"},
			exitFailed,
		},
		{"blind-dead", []string{"--no-management", "dead", "list", "mail"}, exitRefused},
	} {
		o := h.ask(c.args...)
		require.Equal(t, c.code, o.code, "%s: %s%s", c.name, o.out, o.err)
		golden(t, c.name, o.out+o.err)
	}
}

// Given a policy, a strategy, a prefix or another flag that is wrong, then no command says that
// nothing is there: the error names the flag and the queues that the broker has.
func TestWrongFlagsHideNothing(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.fill()
	nothing := regexp.MustCompile(`nothing waits|no dead letters|nothing found|0 dead letters` +
		`|of 0|without trouble|nothing is stranded`)
	commands := [][]string{
		{"status"},
		{"verify"},
		{"waiting", "list"},
		{"waiting", "release", "--id", "x"},
		{"waiting", "cancel", "--id", "x"},
		{"dead", "list"},
		{"dead", "show", "#1"},
		{"dead", "replay", "--dry-run"},
		{"dead", "discard", "--dry-run"},
		{"dead", "export", "--all"},
		{"dead", "groups"},
		{"stranded", "list"},
	}
	for queue, wrong := range map[string][][]string{
		"orders": {
			{"--policy", "7s"},
			{"--policy", "200ms,7s,1h"},
			{"--strategy", "levels"},
			{"--strategy", "shared"},
			{"--type", "classic"},
			{"--prefix", "wrong"},
			{"--return-to", "wrong"},
			{"--dlq", "wrong"},
		},
		"invoices": {
			{"--policy", "7s"},
			{"--strategy", "perqueue"},
			{"--type", "quorum"},
			{"--strategy", "shared", "--prefix", "wrong"},
			{"--return-to", "wrong"},
		},
		"mail": {{"--strategy", "perattempt"}, {"--type", "classic"}, {"--prefix", "wrong"}},
	} {
		for _, flags := range wrong {
			for _, command := range commands {
				args := slices.Clone(flags)
				switch command[len(command)-1] {
				case "#1":
					args = append(args, "dead", "show", queue, "#1")
				default:
					args = append(append(args, command...), queue)
				}
				o := h.ask(args...)
				if command[0] == "stranded" { // of these queues nothing is
					require.NotContains(t, o.out, "no stranded queue", args)
					continue
				}
				if o.code == exitDone { // then the flag does not matter for this command
					require.NotRegexp(t, nothing, o.out, args)
					require.Contains(t, o.out, queue, args)
					continue
				}
				require.NotRegexp(t, nothing, o.out+o.err, args)
				if o.code == exitFound && command[0] == "waiting" { // no message has the ID x
					continue
				}
				require.Contains(t, o.out+o.err, queue, args)
				if flags[0] != "--dlq" && command[0] != "verify" {
					require.Contains(t, o.err, flags[len(flags)-2]+" "+flags[len(flags)-1], args)
				}
			}
		}
	}
	for queue, n := range map[string]int{"orders": 5, "invoices": 5, "mail": 4} {
		require.Equal(t, n, testbroker.Depth(t, h.URL, queue+".dlq"), "nothing has moved")
	}
}

// Given 200 services, then status fits one screen, the queue in trouble is first, and a shell
// completes the names of queues.
func TestManyQueuesFitOneScreen(t *testing.T) {
	t.Parallel()
	node, api := testbroker.Managed(t, "")
	address := onOneHost(t, node.URL(), api)
	ch := testbroker.Channel(t, node.URL())
	for n := range 200 {
		queue := fmt.Sprintf("service-%03d", n)
		_, err := ch.QueueDeclare(queue, true, false, false, false, nil)
		require.NoError(t, err)
		_, err = ch.QueueDeclare(queue+".wait.1s", true, false, false, false, amqp.Table{
			"x-message-ttl": 1000, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue,
			"x-queue-type": "classic", "x-queue-mode": "lazy",
		})
		require.NoError(t, err)
		_, err = ch.QueueDeclare(queue+".dlq", true, false, false, false, amqp.Table{
			"x-queue-type": "classic", "x-queue-mode": "lazy",
		})
		require.NoError(t, err)
		_, err = ch.Consume(queue, "", false, false, false, false, nil)
		require.NoError(t, err)
	}
	rig.Publish(t, node.URL(), "", "service-117.dlq", rig.Message("x"))
	var o outcome
	testbroker.WaitFor(t, "the letter to be counted", patience, func() bool {
		o = tool(t, address, "", "--url", address, "status")
		require.Zero(t, o.code, o.err)
		return strings.Contains(o.out, "1 dead letter") &&
			strings.Contains(o.out, "199 queues without trouble")
	})
	lines := strings.Split(o.out, "\n")
	require.Less(t, len(lines), 45, o.out)
	require.Regexp(t, `^queue +ready `, lines[0])
	require.Regexp(t, `^service-117 .* 1 dead letter`, lines[1])
	o = tool(t, address, "", "--url", address, "dead", "list", "--generate-shell-completion")
	require.Contains(t, o.out, "service-042\n", o.err)
}

// Given a management API of another broker on the same host, then no command believes it. Its
// queues and policies are others. A look under a policy that was not seen could delete messages.
func TestAPIOfAnotherBrokerIsNotBelieved(t *testing.T) {
	t.Parallel()
	node := testbroker.Private(t)
	_, api := testbroker.Managed(t, "")
	address := onOneHost(t, node.URL(), api)
	rig.DeclareQueue(t, node.URL(), "orders.dlq", amqp.Table{"x-queue-type": "quorum"})
	for _, args := range [][]string{
		{"status"}, {"dead", "list", "orders"}, {"--management", api, "dead", "list", "orders"},
	} {
		o := tool(t, address, "", append([]string{"--url", address}, args...)...)
		require.NotEqual(t, exitDone, o.code, args)
		require.Contains(t, o.err, "belongs to cluster", args)
		require.NotContains(t, o.out+o.err, "no dead letters", args)
	}
}

// Given several queues, and a position, a limit or a message that is in one of them, then no
// command acts on more messages than it says, and each finding has one exit code.
func TestSeveralQueues(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.fill()
	for _, args := range [][]string{
		{"dead", "discard", "--limit", "1", "--yes"},
		{"dead", "replay", "--id", "#1"},
		{"dead", "discard", "--id", "#1", "--yes"},
		{"dead", "replay", "--edit", "#1"},
		{"dead", "replay", "--all", "--every", "1m"},
	} {
		o := h.ask(args...)
		require.Equal(t, exitUsage, o.code, "%v: %s", args, o.err)
		require.Contains(t, o.err, "name", args)
	}
	for _, args := range [][]string{
		{"waiting", "list", "orders", "orders"},
		{"waiting", "cancel", "--id", "mail-waits"},
		{"dead", "show", "orders-refuse"},
		{"stranded", "show", "old-is-stranded-0"},
	} {
		o := h.ask(args...)
		require.Equal(t, exitDone, o.code, "%v: %s%s", args, o.out, o.err)
	}
	require.Equal(t, exitFound, h.ask("waiting", "cancel", "--id", "none").code)
	o := h.ask("--json", "dead", "discard", "--reason", "undecodable", "--yes")
	require.Equal(t, exitDone, o.code, o.err)
	for _, queue := range shop.Queues {
		require.Contains(t, o.out, `"queue": "`+queue+`"`)
	}
	rig.AwaitDepth(t, h.URL, "orders.dlq", 4)
	rig.DeclareQueue(t, h.URL, "letters", amqp.Table{
		"x-queue-type": "quorum", "x-delivery-limit": int64(1<<31 - 1),
	})
	o = h.ask("--dlq", "letters", "verify", "orders")
	require.Equal(t, exitDone, o.code, "%s%s", o.out, o.err)
	o = h.ask("--dlq", "nowhere", "verify", "orders")
	require.Equal(t, exitUsage, o.code, "%s%s", o.out, o.err)
	require.Contains(t, h.ask("--json", "status").out, `"unclaimed"`)
	rig.DeleteQueue(t, h.URL, "mail.dlq")
	o = h.ask("dead", "list", "orders", "mail")
	require.NotEqual(t, exitDone, o.code, "%s%s", o.out, o.err)
	require.Contains(t, o.out, "orders-exhausted")
	require.Contains(t, o.err, "mail")
}
