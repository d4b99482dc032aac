package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware/metrics"
	"github.com/millpond-go/millpond/topology"
)

const patience = 90 * time.Second

func TestMain(m *testing.M) { testbroker.Main(m, func() error { return goleak.Find() }) }

// buffer may be read while it is written.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// lines returns the JSON objects that were written, one a line.
func (b *buffer) lines(t *testing.T) []map[string]any {
	t.Helper()
	var all []map[string]any
	for scanner := bufio.NewScanner(strings.NewReader(b.String())); scanner.Scan(); {
		var line map[string]any
		require.NoError(t, json.Unmarshal(scanner.Bytes(), &line), "%s", scanner.Text())
		all = append(all, line)
	}
	return all
}

// running is the program. It runs until the test ends.
type running struct {
	queue, address string
	stdout, stderr buffer
	stop           func()
}

func start(t *testing.T, url string, args ...string) *running {
	t.Helper()
	r := &running{queue: testbroker.Queue(t)}
	for _, wait := range []string{"250ms", "500ms", "1s", "2s", "3s", "4s"} {
		testbroker.Delete(t, r.queue+".wait."+wait)
	}
	ctx, cancel := context.WithCancel(context.Background())
	code := make(chan int, 1)
	go func() {
		code <- run(ctx, append([]string{
			"--url", url, "--queue", r.queue, "--listen", "127.0.0.1:0", "--pace", "50ms",
		}, args...), &r.stdout, &r.stderr)
	}()
	r.stop = sync.OnceFunc(func() {
		cancel()
		require.Zero(t, <-code, r.stderr.String())
	})
	t.Cleanup(r.stop)
	testbroker.WaitFor(t, "the address of /metrics", patience, func() bool {
		for _, line := range r.stderr.lines(t) {
			if line["msg"] == "Serving" {
				r.address, _ = line["address"].(string)
			}
		}
		return r.address != ""
	})
	return r
}

func get(t *testing.T, address string) string {
	t.Helper()
	client := &http.Client{
		Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 30 * time.Second,
	}
	resp, err := client.Get(address)
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, resp.StatusCode, "%s", body)
	return string(body)
}

func TestServiceIsSeen(t *testing.T) {
	t.Parallel()
	r := start(t, testbroker.URL(t))
	testbroker.WaitFor(t, "a dead letter, a retry, and one that came back later", patience,
		func() bool {
			text := get(t, "http://"+r.address+"/metrics")
			dead, retried, aside := false, false, false
			for line := range strings.Lines(text) {
				zero := strings.HasSuffix(line, " 0\n")
				dead = dead || !zero && strings.HasPrefix(line, "millpond_dead_letters_total{") &&
					strings.Contains(line, `reason="permanent"`)
				retried = retried || !zero && strings.HasPrefix(line,
					"millpond_time_until_success_seconds_count{")
				aside = aside || !zero && strings.HasPrefix(line, "millpond_set_aside_total{")
			}
			return dead && retried && aside && strings.Contains(text,
				`millpond_queue_messages_ready{name="`+r.queue+`.dlq"`)
		})
	get(t, "http://"+r.address+"/healthz")
	r.stop()

	messages := map[any]bool{}
	for _, line := range r.stderr.lines(t) {
		messages[line["msg"]] = true
		if line["msg"] == "Message will be retried" {
			for _, key := range []string{
				"message_id", "message_uuid", "correlation_id", "attempt",
				"handler", "queue", "topic", "class", "delay", "error",
			} {
				require.Contains(t, line, key)
			}
		}
	}
	require.True(t, messages["Message will be retried"] && messages["Message dead-lettered"] &&
		messages["Message snoozed"], messages)
	linked := 0
	for _, span := range r.stdout.lines(t) {
		require.Contains(t, []any{"publish " + r.queue, "process " + r.queue}, span["Name"])
		if links, _ := span["Links"].([]any); len(links) > 0 {
			linked++
		}
	}
	require.Positive(t, linked, "spans that link to the attempt before")
}

func TestArguments(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		args []string
		code int
		says string
	}{
		"help":    {[]string{"--help"}, 0, "Usage: monitored"},
		"no pace": {[]string{"--pace", "0s"}, 2, "--pace 0s is not positive"},
		"no broker": {
			[]string{"--url", "amqp://guest:secret@127.0.0.1:1/"}, 1, "connect to RabbitMQ at 127.0.0.1:1",
		},
		"no such API": {
			[]string{"--url", "amqp://guest:guest@127.0.0.1:1/", "--management", "secret"},
			1, "WithManagement: ",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var stdout, stderr bytes.Buffer
			require.Equal(t, test.code, run(t.Context(), test.args, &stdout, &stderr))
			require.Empty(t, stdout.String())
			require.Contains(t, stderr.String(), test.says)
			require.NotContains(t, stderr.String(), "secret@")
		})
	}
}

const monitoring = "../../docs/monitoring/"

// requireMonitoring is set by `make test-monitoring`: a missing program fails the test.
const requireMonitoring = "MILLPOND_REQUIRE_PROMETHEUS"

func installed(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		if os.Getenv(requireMonitoring) != "" {
			t.Fatalf("needs %s, which is in Debian's package prometheus", name)
		}
		t.Skip("needs Debian's package prometheus: make test-monitoring")
	}
	return path
}

func TestAlertRules(t *testing.T) {
	t.Parallel()
	promtool := installed(t, "promtool")
	for _, args := range [][]string{
		{"check", "rules", "alerts.yml"},
		{"test", "rules", "alerts_test.yml"},
	} {
		cmd := exec.CommandContext(t.Context(), promtool, args...)
		cmd.Dir = monitoring
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	rules, err := os.ReadFile(monitoring + "alerts.yml")
	require.NoError(t, err)
	tests, err := os.ReadFile(monitoring + "alerts_test.yml")
	require.NoError(t, err)
	for line := range strings.Lines(string(rules)) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "- alert: "); ok {
			require.Contains(t, string(tests), "alertname: "+name+"\n        exp_alerts:",
				"no test lets %s fire", name)
		}
	}
}

// expressions returns the queries of all panels, for one queue.
func expressions(t *testing.T, queue string) map[string]string {
	t.Helper()
	text, err := os.ReadFile(monitoring + "dashboard.json")
	require.NoError(t, err)
	var dashboard struct {
		Panels []struct {
			Title, Type string
			Targets     []struct{ RefID, Expr string }
		}
	}
	require.NoError(t, json.Unmarshal(text, &dashboard))
	found := map[string]string{}
	for _, panel := range dashboard.Panels {
		require.Equal(t, len(panel.Targets) == 0, panel.Type == "row", panel.Title)
		for _, target := range panel.Targets {
			expr := strings.ReplaceAll(target.Expr, "$__rate_interval", "1m")
			found[panel.Title+" "+target.RefID] = strings.ReplaceAll(expr, "$queue", queue)
		}
	}
	require.Greater(t, len(found), 20)
	return found
}

// scraper starts a real Prometheus on loopback that scrapes every second as jobs says, one job a
// line, evaluates the rules, and returns its address.
func scraper(t *testing.T, rules, jobs string) string {
	t.Helper()
	path := installed(t, "prometheus")
	rules, err := filepath.Abs(rules)
	require.NoError(t, err)
	dir := t.TempDir()
	config := filepath.Join(dir, "prometheus.yml")
	require.NoError(t, os.WriteFile(config, []byte(fmt.Sprintf(`
global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}
rule_files: [%q]
scrape_configs:
%s`, rules, jobs)), 0o600))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := l.Addr().String()
	require.NoError(t, l.Close())

	var log bytes.Buffer
	cmd := exec.CommandContext(t.Context(), path, "--config.file", config, "--storage.tsdb.path",
		filepath.Join(dir, "data"),
		"--web.listen-address", address)
	cmd.Stdout, cmd.Stderr = &log, &log
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // killed
		if t.Failed() {
			t.Logf("prometheus:\n%s", log.String())
		}
	})
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	testbroker.WaitFor(t, "Prometheus", patience, func() bool {
		resp, err := client.Get("http://" + address + "/-/ready")
		if err != nil {
			return false
		}
		_ = resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	return "http://" + address
}

// sample is one result of a query.
type sample struct {
	Metric map[string]string
	Value  [2]any
}

func query(t *testing.T, prom, expr string) []sample {
	t.Helper()
	var answer struct{ Data struct{ Result []sample } }
	text := get(t, prom+"/api/v1/query?query="+url.QueryEscape(expr))
	require.NoError(t, json.Unmarshal([]byte(text), &answer), text)
	return answer.Data.Result
}

// numbers returns the values of a query that are numbers.
func numbers(t *testing.T, prom, expr string) []float64 {
	t.Helper()
	var found []float64
	for _, result := range query(t, prom, expr) {
		n, err := strconv.ParseFloat(fmt.Sprint(result.Value[1]), 64)
		require.NoError(t, err)
		if !math.IsNaN(n) {
			found = append(found, n)
		}
	}
	return found
}

// stoppedService starts a service with a brake, stops it by hand, and returns the address of its
// metrics.
func stoppedService(t *testing.T, url string) string {
	t.Helper()
	m, err := metrics.New()
	require.NoError(t, err)
	registry := prometheus.NewRegistry()
	registry.MustRegister(m)
	server := httptest.NewServer(promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	t.Cleanup(server.Close)
	queue := testbroker.Queue(t)
	rig.StartBraked(t, rig.Braked{
		URL: url, Queue: queue, Instance: "braked", Handle: rig.Succeed,
		Options: []topology.Option{topology.WithObserver(m)},
	})
	o := rig.OpenOperator(t, url)
	shared, err := o.StopBrake(t.Context(), queue, "anna", "the provider moves", time.Hour)
	require.NoError(t, err)
	require.True(t, shared)
	return server.Listener.Addr().String()
}

// Given the running example, a service that a brake has stopped, and a real Prometheus that scrapes
// them and the broker, then every query of the dashboard returns data, and every rule can be
// evaluated.
func TestDashboardShowsData(t *testing.T) {
	t.Parallel()
	if os.Getenv(requireMonitoring) == "" {
		t.Skip("needs " + requireMonitoring + ", because it takes minutes: make test-monitoring")
	}
	node, plugin, api := scrapedNode(t)
	_, err := testbroker.Channel(t, node.URL()).
		QueueDeclare("millpond.stranded", true, false, false, false, nil)
	require.NoError(t, err)
	r := start(t, node.URL(), "--management", api)
	prom := scraper(t, monitoring+"alerts.yml", brokerJob(t, plugin)+fmt.Sprintf(
		"  - {job_name: monitored, static_configs: [{targets: [%q]}]}\n"+
			"  - {job_name: braked, static_configs: [{targets: [%q]}]}\n",
		r.address, stoppedService(t, node.URL())))
	missing := expressions(t, r.queue)
	queries := len(missing)
	deadline := time.Now().Add(patience)
	for len(missing) > 0 && time.Now().Before(deadline) {
		for name, expr := range missing {
			if len(numbers(t, prom, expr)) > 0 {
				delete(missing, name)
			}
		}
		<-time.After(time.Second)
	}
	require.Empty(t, missing, "queries without data")
	t.Logf("%d queries return data", queries)

	testbroker.WaitFor(t, "the alert of dead letters", patience, func() bool {
		return len(numbers(t, prom,
			`ALERTS{alertname="MillpondDeadLetters",alertstate="firing",queue="`+r.queue+`"}`)) > 0
	})
	var rules struct {
		Data struct {
			Groups []struct {
				Rules []struct{ Name, Health, LastError string }
			}
		}
	}
	require.NoError(t, json.Unmarshal([]byte(get(t, prom+"/api/v1/rules")), &rules))
	require.Len(t, rules.Data.Groups, 2)
	for _, group := range rules.Data.Groups {
		for _, rule := range group.Rules {
			require.Equal(t, "ok", rule.Health, "%s: %s", rule.Name, rule.LastError)
		}
	}
}
