package page_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/cmd/millpond/page"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
)

// house is a broker with three services: orders with PerQueue, invoices with Shared wait queues of
// the prefix shop, and mail with Levels.
type house struct {
	t        testing.TB
	url, api string
	services map[string]*rig.Service
}

func newHouse(t testing.TB) *house {
	t.Helper()
	node, api := testbroker.Managed(t, "")
	h := &house{t: t, url: node.URL(), api: api, services: map[string]*rig.Service{}}
	rig.DeclareExchange(t, h.url, "events", "topic")
	list := backoff.List{200 * time.Millisecond, time.Hour}
	for queue, c := range map[string]rig.Config{
		"orders": {Strategy: topology.PerQueue{}, Configure: rig.QuorumQueue},
		"invoices": {
			Strategy:  topology.Shared{Type: topology.Classic, Prefix: "shop", Via: []string{"events"}},
			Configure: rig.OnTopic("events", "invoice.*"),
		},
		"mail": {Strategy: topology.Levels{Max: 2 * time.Hour}, Configure: rig.QuorumQueue},
	} {
		c.URL, c.Queue, c.Keep, c.Policy, c.Handle = h.url, queue, true, list, handle
		h.services[queue] = rig.Start(t, c)
	}
	return h
}

var errClosed = errors.New("the shop is closed")

// handle fails as the body of the message says.
func handle(msg *message.Message) error {
	switch body := string(msg.Payload); {
	case body == "waits":
		return middleware.RetryAfter(errClosed, time.Hour)
	case strings.HasPrefix(body, "is permanent"):
		number := strings.TrimPrefix(body, "is permanent")
		return middleware.Permanent(fmt.Errorf("no customer %s", number))
	}
	return nil
}

// send publishes messages to a queue of the house.
func (h *house) send(queue string, bodies ...string) {
	h.t.Helper()
	exchange, key := "", queue
	if queue == "invoices" {
		exchange, key = "events", "invoice.new"
	}
	for _, body := range bodies {
		rig.Publish(h.t, h.url, exchange, key, amqp.Publishing{
			MessageId: queue + "-" + strings.ReplaceAll(body, " ", "-"), Body: []byte(body),
			DeliveryMode: amqp.Persistent,
		})
	}
}

// letter is a dead letter as the library writes it.
func letter(queue, id, text string, at time.Time, body []byte, more amqp.Table) amqp.Publishing {
	state := header.RetryState{
		Failures: 2, Reason: header.ReasonExhausted, Class: header.ClassRetryable, Handler: "handler",
		Error: text, DeadAt: at, OriginRoutingKey: queue,
		History: []header.AttemptError{
			{Attempt: 1, At: at.Add(-time.Minute), Handler: "handler", Error: "first " + text},
			{Attempt: 2, At: at, Handler: "handler", Error: text},
		},
	}
	msg := amqp.Publishing{
		MessageId: id, DeliveryMode: amqp.Persistent, Body: body, Headers: amqp.Table{},
	}
	for key, value := range state.DeadHeaders(queue) {
		msg.Headers[key] = value
	}
	for key, value := range more {
		msg.Headers[key] = value
	}
	return msg
}

// visitor is a browser without a script.
type visitor struct {
	t      testing.TB
	server *httptest.Server
	client *http.Client
}

// open serves a page of the house and visits it.
func (h *house) open(change func(*page.Config)) *visitor {
	h.t.Helper()
	config := page.Config{URL: h.url, Management: h.api, Interval: 50 * time.Millisecond}
	if change != nil {
		change(&config)
	}
	return visit(h.t, config)
}

func visit(t testing.TB, config page.Config) *visitor {
	t.Helper()
	handler, err := page.New(config)
	require.NoError(t, err)
	server := httptest.NewServer(handler)
	t.Cleanup(func() {
		server.CloseClientConnections()
		require.NoError(t, handler.Close())
		server.Close()
	})
	return &visitor{t: t, server: server, client: newBrowser(t)}
}

// answer is a response with its body.
type answer struct {
	*http.Response
	body string
}

func (v *visitor) do(req *http.Request) answer {
	v.t.Helper()
	resp, err := v.client.Do(req)
	require.NoError(v.t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(v.t, err)
	return answer{resp, string(body)}
}

func (v *visitor) get(path string) answer {
	v.t.Helper()
	req, err := http.NewRequestWithContext(v.t.Context(), http.MethodGet, v.server.URL+path, nil)
	require.NoError(v.t, err)
	return v.do(req)
}

// post sends a form as a browser does, with the token of a page that it loads before.
func (v *visitor) post(path string, form url.Values) answer {
	v.t.Helper()
	if form.Get("form") == "" {
		form.Set("form", tokenIn(v.get("/dead").body))
	}
	req, err := http.NewRequestWithContext(v.t.Context(), http.MethodPost, v.server.URL+path,
		strings.NewReader(form.Encode()))
	require.NoError(v.t, err)
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	got := v.do(req)
	if strings.Contains(got.body, looking) { // a busy machine
		rig.WaitFor(v.t, "the look", func() bool {
			got = v.get(got.Request.URL.RequestURI())
			return !strings.Contains(got.body, looking)
		})
	}
	return got
}

// looking is on a page while a look runs.
const looking = "Looking at the broker: "

// tokenIn returns the token of the forms of a page.
func tokenIn(body string) string {
	_, rest, _ := strings.Cut(body, `name="form" value="`)
	token, _, _ := strings.Cut(rest, `"`)
	return token
}

func newBrowser(t testing.TB) *http.Client {
	t.Helper()
	jar, err := cookiejar.New(nil)
	require.NoError(t, err)
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Jar: jar, Transport: transport, Timeout: 2 * time.Minute}
}

// stream is an open page.
type stream struct {
	t    testing.TB
	resp *http.Response
	read *bufio.Reader
	end  context.CancelFunc
}

func (v *visitor) stream() *stream {
	v.t.Helper()
	ctx, cancel := context.WithCancel(v.t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, v.server.URL+"/events", nil)
	require.NoError(v.t, err)
	client := *v.client
	client.Timeout = 0
	resp, err := client.Do(req)
	require.NoError(v.t, err)
	require.Equal(v.t, http.StatusOK, resp.StatusCode)
	return &stream{v.t, resp, bufio.NewReader(resp.Body), cancel}
}

// await reads until a line begins so.
func (s *stream) await(beginning string) {
	s.t.Helper()
	for {
		line, err := s.read.ReadString('\n')
		require.NoError(s.t, err, "before %q", beginning)
		if strings.HasPrefix(line, beginning) {
			return
		}
	}
}

func (s *stream) close() {
	s.end()
	_ = s.resp.Body.Close()
}

// has reports whether a reader sees the text.
func (a answer) has(text string) bool { return strings.Contains(a.text(), text) }
