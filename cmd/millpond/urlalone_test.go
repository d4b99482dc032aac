package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"regexp"
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
	list := backoff.List{200 * time.Millisecond, time.Hour}
	for queue, c := range map[string]rig.Config{
		"orders": {Strategy: topology.PerQueue{}, Configure: rig.QuorumQueue},
		"invoices": {
			Strategy:  topology.Shared{Type: topology.Classic, Prefix: "shop", Via: "events"},
			Configure: rig.OnTopic("events", "invoice.*"),
		},
		"mail": {Strategy: topology.Levels{Max: 2 * time.Hour}, Configure: rig.QuorumQueue},
	} {
		c.URL, c.Queue, c.Keep, c.Policy, c.Handle = node.URL(), queue, true, list, h.handle
		c.Configure = andPicky(c.Configure)
		h.services[queue] = rig.Start(t, c)
	}
	return h
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

// Given three services with three strategies, dead letters of every reason, and waiting and
// stranded messages, then every command shows all of it to a person who knows only the URL.
func TestURLAloneIsEnough(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.fill()
	time.Sleep(6 * time.Second)
	for _, c := range []struct {
		name string
		args []string
	}{
		{"url-status", []string{"status"}},
		{"url-verify", []string{"verify"}},
		{"url-waiting", []string{"waiting", "list"}},
		{"blind", []string{"--no-management", "status"}},
		{"blind", []string{"--no-management", "status", "orders"}},
		{"blind", []string{"--no-management", "waiting", "list", "orders"}},
		{"blind", []string{"--no-management", "--policy", "200ms,1h", "waiting", "list", "orders"}},
		{"blind", []string{"--no-management", "dead", "list", "orders"}},
		{"wrong", []string{"--policy", "7s", "waiting", "list", "orders"}},
		{"wrong", []string{"--strategy", "levels", "waiting", "list", "orders"}},
		{"wrong", []string{"--strategy", "shared", "--prefix", "wrong", "waiting", "list", "invoices"}},
		{"wrong", []string{"--return-to", "wrong", "waiting", "list", "orders"}},
		{"wrong", []string{"--type", "classic", "waiting", "list", "orders"}},
		{"wrong", []string{"--dlq", "wrong", "dead", "list", "orders"}},
		{"wrong", []string{"dead", "list", "nowhere"}},
		{"wrong", []string{"--policy", "7s", "verify", "orders"}},
	} {
		o := h.ask(c.args...)
		t.Log(c.name, o.code, "\n"+o.out+o.err)
	}
}
