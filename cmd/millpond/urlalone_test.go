package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"regexp"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/cmd/millpond/internal/shop"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/topology/operate"
)

// hosts counts the loopback addresses that tests have taken.
var hosts atomic.Int64

// onOneHost returns the AMQP URL of a host that has the management API on its usual port, too.
// Another process may have taken an address.
func onOneHost(t *testing.T, amqpURL, api string) string {
	t.Helper()
	to, err := url.Parse(api)
	require.NoError(t, err)
	var host string
	var l net.Listener
	for busy := true; busy; busy = errors.Is(err, syscall.EADDRINUSE) {
		n := 2 + hosts.Add(1)
		host = fmt.Sprintf("127.83.%d.%d", n/200, n%200+1)
		l, err = net.Listen("tcp4", host+":15672")
	}
	require.NoError(t, err)
	relay(t, l, to.Host)
	from, err := url.Parse(amqpURL)
	require.NoError(t, err)
	l, err = net.Listen("tcp4", host+":0")
	require.NoError(t, err)
	from.Host = relay(t, l, from.Host)
	return from.String()
}

// relay passes connections on, and returns the address at which it listens.
func relay(t *testing.T, l net.Listener, to string) string {
	t.Helper()
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

// ask runs the tool with the URL alone.
func (h *house) ask(args ...string) outcome {
	h.T.Helper()
	o := tool(h.T, h.url, "", append([]string{"--url", h.url}, args...)...)
	o.out, o.err = h.stable(o.out), h.stable(o.err)
	return o
}

// askNarrow is ask with two spaces between the columns of a table.
func (h *house) askNarrow(args ...string) outcome {
	h.T.Helper()
	o := h.ask(args...)
	o.out = narrow(o.out)
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
	{regexp.MustCompile(`\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+)?Z`), "<time>"},
	{regexp.MustCompile(`, and more come now|,? [+-]\d+ in [^,]*`), ""},
	{regexp.MustCompile(`127\.\d+\.\d+\.\d+(:\d+)?`), "host"},
	{regexp.MustCompile(`\S+ leads since <time>, epoch \d+; (\d+) of at most 10000 in the line, ` +
		`\d+ kB`), "<leader>, $1"},
	{regexp.MustCompile(`(?m)  \d+-\d+$`), "  <mark>"}, // the last column of order list
}

// Given 200 services, and one with a name of 200 bytes, then status fits one screen of 100 columns,
// and the incident is first.
func TestManyQueuesFitOneScreen(t *testing.T) {
	t.Parallel()
	var view operate.View
	counted := func(n int) operate.Count { return operate.Count{N: n, Source: operate.SourceAMQP} }
	for n := range 200 {
		main := operate.Main{Dead: make([]operate.Dead, 1)}
		main.Name, main.Ready, main.Consumers = fmt.Sprintf("service-%03d", n), counted(0), counted(1)
		if n == 117 {
			main.Name = "service-" + strings.Repeat("long", 46) + "-of-117"
			main.DeadLetters, main.Consumers, main.Ready = counted(1), counted(0), counted(1_234_567)
			main.Waiting, main.WaitingShared = counted(5), true
		}
		view.Mains = append(view.Mains, main)
	}
	view.Gone = []operate.Gone{{
		Queue: "gone", Messages: 3, Fate: operate.FateStranded, First: time.Now().Add(time.Hour),
	}}
	var out bytes.Buffer
	a := app{stdio: stdio{
		out: &out, err: &out, terminal: func(any) bool { return false },
	}}
	s := &session{app: a, c: newApp(a.stdio), vhost: &view}
	require.NoError(t, s.overview())
	lines := strings.Split(out.String(), "\n")
	require.Less(t, len(lines), 45)
	for _, line := range lines {
		require.LessOrEqual(t, utf8.RuneCountInString(line), 100, line)
	}
	const name = `service-longlonglo…nglonglong-of-117 +`
	require.Regexp(t, `^gone +3 messages wait for it, and it is gone[:;] `, lines[0])
	require.Regexp(t, `\n`+name+`no consumer for 1234567 ready messages, since \?\n`+
		name+`1 dead letter, since \?\n\nqueue +ready .*\n`+name+`1234567 +\? +≤5 +1 +0\n`, out.String())
	require.Contains(t, out.String(), "199 queues without incidents")
}

// Given a management API of another broker on the same host, then no command believes it. Its
// queues and policies are others. A look under a policy that was not seen could delete messages.
func TestAPIOfAnotherBrokerIsNotBelieved(t *testing.T) {
	t.Parallel()
	node, api := testbroker.Managed(t, "")
	to, err := url.Parse(api)
	require.NoError(t, err)
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: to.Scheme, Host: to.Host})
	another := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/cluster-name") {
			_, _ = io.WriteString(w, `{"name":"another"}`)
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(another.Close)
	address := onOneHost(t, node.URL(), another.URL)
	api = strings.Replace(another.URL, "http://", "http://"+to.User.String()+"@", 1)
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
