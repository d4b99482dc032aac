package main

import (
	"errors"
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

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
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

// house is a broker with three services: orders with PerQueue, invoices with Shared wait queues of
// the prefix shop, and mail with Levels. An engineer has the broker's URL and nothing else.
type house struct {
	t        *testing.T
	url      string // of the engineer
	node     *testbroker.Node
	services map[string]*rig.Service
	handled  atomic.Int64
}

var houseQueues = []string{"orders", "invoices", "mail"}

func newHouse(t *testing.T) *house {
	t.Helper()
	node, api := testbroker.Managed(t, "")
	h := &house{
		t: t, node: node, url: onOneHost(t, node.URL(), api), services: map[string]*rig.Service{},
	}
	rig.DeclareExchange(t, node.URL(), "events", "topic")
	for queue, c := range map[string]rig.Config{
		"orders": {Strategy: topology.PerQueue{}, Configure: unlimited},
		"invoices": {
			Strategy:  topology.Shared{Type: topology.Classic, Prefix: "shop", Via: []string{"events"}},
			Configure: rig.OnTopic("events", "invoice.*"),
		},
		"mail": {Strategy: topology.Levels{Max: 2 * time.Hour}, Configure: unlimited},
	} {
		h.services[queue] = h.start(queue, c)
	}
	return h
}

func (h *house) start(queue string, c rig.Config) *rig.Service {
	h.t.Helper()
	c.URL, c.Queue, c.Keep, c.Handle = h.node.URL(), queue, true, h.handle
	c.Policy = backoff.List{200 * time.Millisecond, time.Hour}
	c.Configure = andPicky(c.Configure)
	return rig.Start(h.t, c)
}

// strand lets a message wait for a queue that is deleted meanwhile.
func (h *house) strand() {
	h.t.Helper()
	old := h.start("old", rig.Config{
		Strategy: topology.Levels{Max: 2 * time.Hour}, Configure: rig.QuorumQueue,
	})
	h.send("old", "is stranded")
	rig.WaitFor(h.t, "the message to wait", func() bool {
		return old.Logs.Said("Message will be retried") == 1
	})
	old.Stop()
	rig.DeleteQueue(h.t, h.node.URL(), "old")
	rig.DeleteQueue(h.t, h.node.URL(), "old.dlq")
	rig.AwaitDepth(h.t, h.node.URL(), "millpond.stranded", 1)
}

// unlimited makes the main queue a quorum queue that drops nothing, on RabbitMQ 4, too (F2).
func unlimited(cfg *wamqp.Config) {
	cfg.Queue.Arguments = amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": int32(1 << 30)}
}

// andPicky sets a marshaler, too, that cannot decode the body "refuse".
func andPicky(configure func(*wamqp.Config)) func(*wamqp.Config) {
	return func(cfg *wamqp.Config) {
		configure(cfg)
		rig.Picky(cfg)
	}
}

// handle fails as the body of the message says.
func (h *house) handle(msg *message.Message) error {
	switch string(msg.Payload) {
	case "waits":
		return middleware.RetryAfter(errClosed, time.Hour)
	case "is stranded":
		return middleware.RetryAfter(errClosed, 2*time.Second)
	case "is permanent":
		return middleware.Permanent(fmt.Errorf("no customer %d", h.handled.Load()+1000))
	}
	h.handled.Add(1)
	return nil
}

var errClosed = errors.New("the shop is closed")

// send publishes messages to a queue of the house.
func (h *house) send(queue string, bodies ...string) {
	h.t.Helper()
	exchange, key := "", queue
	if queue == "invoices" {
		exchange, key = "events", "invoice.new"
	}
	for _, body := range bodies {
		rig.Publish(h.t, h.node.URL(), exchange, key, amqp.Publishing{
			MessageId: queue + "-" + strings.ReplaceAll(body, " ", "-"), Body: []byte(body),
			DeliveryMode: amqp.Persistent,
		})
	}
}

// others are the reasons that need a crash, an hour or a broken broker: their letters are made here
// as the library writes them.
var others = []header.Reason{
	header.ReasonExhausted, header.ReasonMaxAge, header.ReasonDeadline, header.ReasonOverBudget,
	header.ReasonCrashLoop, header.ReasonOversized, header.ReasonMisdirected, header.ReasonCancelled,
}

// fill makes dead letters of every reason, waiting messages and stranded ones.
func (h *house) fill() {
	h.t.Helper()
	for _, queue := range houseQueues {
		h.send(queue, "is permanent", "refuse", "waits")
	}
	for i, reason := range others {
		queue := houseQueues[i%len(houseQueues)]
		state := header.RetryState{
			Failures: i + 1, Reason: reason, Class: header.ClassRetryable, Handler: "handler",
			Error:  fmt.Sprintf("dial tcp 10.0.0.%d:443: connection refused", i),
			DeadAt: time.Now(), OriginRoutingKey: queue,
		}
		letter := amqp.Publishing{
			MessageId: fmt.Sprintf("%s-%s", queue, reason), DeliveryMode: amqp.Persistent,
			Body: []byte(`{"n":1}`), Headers: amqp.Table{},
		}
		for key, value := range state.DeadHeaders(queue) {
			letter.Headers[key] = value
		}
		rig.Publish(h.t, h.node.URL(), "", queue+".dlq", letter)
	}
	h.strand()
	for queue, n := range map[string]int{"orders": 5, "invoices": 5, "mail": 4} {
		rig.AwaitDepth(h.t, h.node.URL(), queue+".dlq", n)
	}
}

// ask runs the tool with the URL alone.
func (h *house) ask(args ...string) outcome {
	h.t.Helper()
	o := tool(h.t, h.url, "", append([]string{"--url", h.url}, args...)...)
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
	h.t.Helper()
	testbroker.WaitFor(h.t, "the management API to count", patience, func() bool {
		o := h.ask("status")
		require.Zero(h.t, o.code, o.err)
		return !strings.Contains(o.out, "  ?") && strings.Count(o.out, "  1        4  ")+
			strings.Count(o.out, "  1        5  ") == len(houseQueues)
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
		require.Equal(t, n, testbroker.Depth(t, h.node.URL(), queue+".dlq"), "nothing has moved")
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
		{"stranded", "show", "old-is-stranded"},
	} {
		o := h.ask(args...)
		require.Equal(t, exitDone, o.code, "%v: %s%s", args, o.out, o.err)
	}
	require.Equal(t, exitFound, h.ask("waiting", "cancel", "--id", "none").code)
	o := h.ask("--json", "dead", "discard", "--reason", "undecodable", "--yes")
	require.Equal(t, exitDone, o.code, o.err)
	for _, queue := range houseQueues {
		require.Contains(t, o.out, `"queue": "`+queue+`"`)
	}
	rig.AwaitDepth(t, h.node.URL(), "orders.dlq", 4)
	rig.DeclareQueue(t, h.node.URL(), "letters", amqp.Table{
		"x-queue-type": "quorum", "x-delivery-limit": int64(1<<31 - 1),
	})
	o = h.ask("--dlq", "letters", "verify", "orders")
	require.Equal(t, exitDone, o.code, "%s%s", o.out, o.err)
	o = h.ask("--dlq", "nowhere", "verify", "orders")
	require.Equal(t, exitUsage, o.code, "%s%s", o.out, o.err)
	require.Contains(t, h.ask("--json", "status").out, `"unclaimed"`)
	rig.DeleteQueue(t, h.node.URL(), "mail.dlq")
	o = h.ask("dead", "list", "orders", "mail")
	require.NotEqual(t, exitDone, o.code, "%s%s", o.out, o.err)
	require.Contains(t, o.out, "orders-exhausted")
	require.Contains(t, o.err, "mail")
}
