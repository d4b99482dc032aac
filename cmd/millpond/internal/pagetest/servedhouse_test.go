package pagetest

import (
	"bufio"
	"context"
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

	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/cmd/millpond/internal/shop"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
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
	*shop.House
	*yard
	t      *testing.T
	server *server
	state  string
}

// newHouse makes a virtual host.
func (y *yard) newHouse(t *testing.T) *house {
	t.Helper()
	name := fmt.Sprint("shop-", y.houses.Add(1))
	testbroker.Put(t, y.api, map[string]any{}, "vhosts", name)
	testbroker.Put(t, y.api, map[string]any{"configure": ".*", "write": ".*", "read": ".*"},
		"permissions", name, "guest")
	return &house{yard: y, t: t, state: t.TempDir(), House: &shop.House{
		T: t, Node: y.node, API: y.api, Services: map[string]*rig.Service{},
		URL: strings.TrimSuffix(y.node.URL(), "/") + "/" + url.PathEscape(name),
	}}
}

// strand makes n stranded messages for the queue parcels.
func (h *house) strand(n int) { h.t.Helper(); h.Strand(parcels(), "far.stranded", n) }

func parcels() rig.Config {
	return rig.Config{Queue: "parcels", Strategy: topology.Levels{Prefix: "far"}}
}

// server is a process of millpond serve.
type server struct {
	t       *testing.T
	process *exec.Cmd
	site    string
	token   string // of one login, where the server may change queues
}

var (
	pageAt = regexp.MustCompile(`the page is at (\S+)/\n`)
	once   = regexp.MustCompile(`the token (\S+), which is good once`)
)

// open starts millpond serve for the house. The process ends with the test.
func (h *house) open(args ...string) *server {
	h.t.Helper()
	args = append([]string{
		"--url", h.URL, "--management", h.API, "serve", "--listen", "127.0.0.1:0",
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
		if found := once.FindStringSubmatch(line); found != nil {
			s.token = found[1]
		}
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

// tab opens the page in a new tab, and logs in where the server has printed a token.
func (h *house) tab() *tab {
	h.t.Helper()
	b := openTab(h.t, h.chromium, h.server.site)
	if token := h.server.token; token != "" {
		b.tolerate("status of 401")
		b.visit("/")
		mouse{b}.fill("Token or password", token)
		mouse{b}.press("Log in")
		b.see("Log out")
	}
	return b
}
