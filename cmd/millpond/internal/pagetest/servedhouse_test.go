package pagetest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

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

// maxBinary is the most bytes of the tool as it is released.
const maxBinary = 25 << 20

// binary is the tool, built once.
var binary struct {
	sync.Once
	path string
	err  error
}

// builtTool builds the tool as a release does and returns its path.
func builtTool(t *testing.T) string {
	t.Helper()
	binary.Do(func() {
		if binary.path = os.Getenv("MILLPOND_TOOL"); binary.path != "" {
			return
		}
		var folder string
		if folder, binary.err = os.MkdirTemp("", "millpond-page-"); binary.err != nil {
			return
		}
		binary.path = filepath.Join(folder, "millpond")
		build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", binary.path, ".")
		build.Dir = "../.."
		if out, err := build.CombinedOutput(); err != nil {
			binary.err = fmt.Errorf("%w: %s", err, out)
		}
	})
	require.NoError(t, binary.err)
	return binary.path
}

// removeTool removes what builtTool has built.
func removeTool() error {
	if binary.path == "" || os.Getenv("MILLPOND_TOOL") != "" {
		return nil
	}
	return os.RemoveAll(filepath.Dir(binary.path))
}

func TestReleasedToolIsSmall(t *testing.T) {
	t.Parallel()
	if os.Getenv("MILLPOND_NO_BROKER") != "" {
		t.Skip("needs the built tool, and MILLPOND_NO_BROKER is set: make test-page")
	}
	info, err := os.Stat(builtTool(t))
	require.NoError(t, err)
	t.Logf("the tool has %.1f MB", float64(info.Size())/1e6)
	require.LessOrEqual(t, info.Size(), int64(maxBinary))
}

// yard is a RabbitMQ with a Chromium beside it. Each of its houses is a virtual host.
type yard struct {
	node     *testbroker.Node
	api      string
	chromium context.Context
	houses   atomic.Int64
}

func newYard(t *testing.T) *yard {
	t.Helper()
	chromium := startChromium(t)
	node, api := testbroker.Managed(t, "{collect_statistics_interval, 1000}")
	return &yard{node: node, api: api, chromium: chromium}
}

// house is a virtual host with services, and the page that shows it.
type house struct {
	*yard
	t          *testing.T
	vhost, url string
	services   map[string]*rig.Service
	server     *server
	state      string
	api        string
}

// newHouse makes a virtual host.
func (y *yard) newHouse(t *testing.T) *house {
	t.Helper()
	name := fmt.Sprint("shop-", y.houses.Add(1))
	testbroker.Put(t, y.api, map[string]any{}, "vhosts", name)
	testbroker.Put(t, y.api, map[string]any{"configure": ".*", "write": ".*", "read": ".*"},
		"permissions", name, "guest")
	return &house{
		yard: y, t: t, vhost: name, api: y.api, state: t.TempDir(), services: map[string]*rig.Service{},
		url: strings.TrimSuffix(y.node.URL(), "/") + "/" + url.PathEscape(name),
	}
}

// furnish starts three services: orders with PerQueue, invoices with Shared wait queues of the
// prefix shop, and mail with Levels. It makes dead letters of several causes, and waiting messages.
func (h *house) furnish() {
	h.t.Helper()
	rig.DeclareExchange(h.t, h.url, "events", "topic")
	list := backoff.List{200 * time.Millisecond, time.Hour}
	for queue, c := range map[string]rig.Config{
		"orders": {Strategy: topology.PerQueue{}, Configure: rig.QuorumQueue},
		"invoices": {
			Strategy:  topology.Shared{Type: topology.Classic, Prefix: "shop", Via: []string{"events"}},
			Configure: rig.OnTopic("events", "invoice.*"),
		},
		"mail": {Strategy: topology.Levels{Max: 2 * time.Hour}, Configure: rig.QuorumQueue},
	} {
		c.Queue, c.Policy, c.Handle = queue, list, handle
		h.serve(c)
	}
	for _, queue := range []string{"orders", "invoices", "mail"} {
		h.send(queue, "is permanent 1", "is permanent 2", "waits")
	}
	at := time.Now().Add(-50 * time.Minute)
	for n := range 12 {
		order := []byte(`{"order":17000,"lines":[{"sku":"A-1","n":2}]}`)
		h.letter("orders", fmt.Sprintf("order-%d", 17000+n),
			fmt.Sprintf("dial tcp 10.0.0.%d:443: connection refused", n),
			at.Add(time.Duration(n*n)*20*time.Second), order)
	}
	h.letter("mail", "", "unexpected end of JSON input", at, []byte{0, 1, 2, 0xff})
	for queue, n := range map[string]int{"orders": 14, "invoices": 2, "mail": 3} {
		rig.AwaitDepth(h.t, h.url, queue+".dlq", n)
	}
}

// serve starts a service.
func (h *house) serve(c rig.Config) {
	h.t.Helper()
	c.URL, c.Keep = h.url, true
	h.services[c.Queue] = rig.Start(h.t, c)
}

// handle fails as the body of the message says.
func handle(msg *message.Message) error {
	switch body := string(msg.Payload); {
	case body == "waits":
		return middleware.RetryAfter(errors.New("the shop is closed"), time.Hour)
	case strings.HasPrefix(body, "is permanent"):
		return middleware.Permanent(errors.New("no customer " + strings.TrimPrefix(body, "is permanent")))
	}
	return nil
}

// send publishes messages to a queue.
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

// letter publishes a dead letter as the library writes it.
func (h *house) letter(queue, id, text string, at time.Time, body []byte) {
	h.t.Helper()
	rig.Publish(h.t, h.url, "", queue+".dlq", deadLetter(queue, id, text, at, body))
}

func deadLetter(queue, id, text string, at time.Time, body []byte) amqp.Publishing {
	state := header.RetryState{
		Failures: 2, Reason: header.ReasonExhausted, Class: header.ClassRetryable, Handler: "handler",
		Error: text, DeadAt: at, OriginRoutingKey: queue,
		History: []header.AttemptError{
			{Attempt: 1, At: at.Add(-time.Minute), Handler: "handler", Error: "first " + text},
			{Attempt: 2, At: at, Handler: "handler", Error: text},
		},
	}
	msg := amqp.Publishing{
		MessageId: id, DeliveryMode: amqp.Persistent, Body: body, ContentType: "application/json",
		Headers: amqp.Table{"tenant": "north", "tries": int32(3)},
	}
	for key, value := range state.DeadHeaders(queue) {
		msg.Headers[key] = value
	}
	return msg
}

// strand makes n stranded messages for the queue parcels: their wait ended while it was gone. It
// returns once they are counted.
func (h *house) strand(n int) {
	h.t.Helper()
	var failed atomic.Int64
	h.parcels(func(*message.Message) error {
		failed.Add(1)
		return errors.New("no courier")
	})
	for i := range n {
		h.send("parcels", fmt.Sprint("parcel ", i))
	}
	testbroker.WaitFor(h.t, "the parcels to wait", patience, func() bool {
		return failed.Load() == int64(n)
	})
	h.services["parcels"].Stop()
	rig.DeleteQueue(h.t, h.url, "parcels")
	rig.AwaitDepth(h.t, h.url, "far.stranded", n)
}

// parcels starts the service of the queue parcels.
func (h *house) parcels(handle func(*message.Message) error) {
	h.t.Helper()
	h.serve(rig.Config{
		Queue: "parcels", Strategy: topology.Levels{Prefix: "far"}, Configure: rig.QuorumQueue,
		Policy: backoff.List{5 * time.Second, 5 * time.Second}, Handle: handle,
	})
}

// server is a process of millpond serve.
type server struct {
	t       *testing.T
	process *exec.Cmd
	site    string
}

// open starts millpond serve for the house. The process ends with the test.
func (h *house) open(args ...string) *server {
	h.t.Helper()
	return h.openAt("127.0.0.1:0", args...)
}

var pageAt = regexp.MustCompile(`the page is at (\S+)/\n`)

func (h *house) openAt(address string, args ...string) *server {
	h.t.Helper()
	args = append([]string{
		"--url", h.url, "--management", h.api, "serve", "--listen", address,
	}, args...)
	s := &server{t: h.t, process: exec.Command(builtTool(h.t), args...)}
	errs, err := s.process.StderrPipe()
	require.NoError(h.t, err)
	require.NoError(h.t, s.process.Start())
	h.t.Cleanup(s.kill)
	lines := bufio.NewReader(errs)
	var said strings.Builder
	for s.site == "" {
		line, err := lines.ReadString('\n')
		said.WriteString(line)
		require.NoError(h.t, err, said.String())
		if found := pageAt.FindStringSubmatch(line); found != nil {
			s.site = found[1]
		}
	}
	go func() { _, _ = io.Copy(io.Discard, lines) }()
	h.server = s
	return s
}

// act starts millpond serve so that it may change queues.
func (h *house) act() *server {
	h.t.Helper()
	return h.open("--allow-actions", "--state", h.state)
}

// kill ends the process with signal 9, and returns when it has ended.
func (s *server) kill() {
	if s.process.ProcessState == nil {
		_ = s.process.Process.Kill()
		_ = s.process.Wait()
	}
}

// memory returns the resident memory of the process, and its peak, in MiB.
func (s *server) memory() (now, peak int) {
	s.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.process.Process.Pid))
	require.NoError(s.t, err)
	for line := range strings.Lines(string(text)) {
		_, _ = fmt.Sscanf(line, "VmRSS: %d", &now)
		_, _ = fmt.Sscanf(line, "VmHWM: %d", &peak)
	}
	return now >> 10, peak >> 10
}

// tab opens the page in a new tab.
func (h *house) tab() *tab {
	h.t.Helper()
	return openTab(h.t, h.chromium, h.server.site)
}
