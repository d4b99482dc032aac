package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

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
		t.Skipf("needs %s, which is in Debian's package prometheus: `make test-monitoring` installs it",
			name)
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

// scraper starts a real Prometheus on loopback that scrapes target every second and
// evaluates the rules, and returns its address.
func scraper(t *testing.T, target string) string {
	t.Helper()
	path := installed(t, "prometheus")
	rules, err := filepath.Abs(monitoring + "alerts.yml")
	require.NoError(t, err)
	dir := t.TempDir()
	config := filepath.Join(dir, "prometheus.yml")
	require.NoError(t, os.WriteFile(config, []byte(fmt.Sprintf(`
global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}
rule_files: [%q]
scrape_configs: [{job_name: monitored, static_configs: [{targets: [%q]}]}]
`, rules, target)), 0o600))
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

// numbers returns the values of a query that are numbers.
func numbers(t *testing.T, prom, expr string) []float64 {
	t.Helper()
	var answer struct {
		Data struct{ Result []struct{ Value [2]any } }
	}
	text := get(t, prom+"/api/v1/query?query="+url.QueryEscape(expr))
	require.NoError(t, json.Unmarshal([]byte(text), &answer), text)
	var found []float64
	for _, result := range answer.Data.Result {
		n, err := strconv.ParseFloat(fmt.Sprint(result.Value[1]), 64)
		require.NoError(t, err)
		if !math.IsNaN(n) {
			found = append(found, n)
		}
	}
	return found
}

// Given the running example and a real Prometheus that scrapes it, then every query of the
// dashboard returns data, and every rule can be evaluated.
func TestDashboardShowsData(t *testing.T) {
	t.Parallel()
	if os.Getenv(requireMonitoring) == "" {
		t.Skip("takes a minute: `make test-monitoring` runs it")
	}
	node, api := testbroker.Managed(t, "")
	r := start(t, node.URL(), "--management", api)
	prom := scraper(t, r.address)
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
	require.Len(t, rules.Data.Groups, 1)
	for _, rule := range rules.Data.Groups[0].Rules {
		require.Equal(t, "ok", rule.Health, "%s: %s", rule.Name, rule.LastError)
	}
}
