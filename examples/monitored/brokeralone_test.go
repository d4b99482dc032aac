package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
)

// freePort returns a port of loopback that was free a moment ago.
func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, l.Close()) }()
	return l.Addr().(*net.TCPAddr).Port
}

// scrapedNode starts a RabbitMQ with Prometheus plugin and management API, and returns the two
// addresses. The broker counts each second in place of every five.
func scrapedNode(t *testing.T) (node *testbroker.Node, plugin, api string) {
	t.Helper()
	port, apiPort := freePort(t), freePort(t)
	node = testbroker.Private(t, testbroker.WithAdvancedConfig(fmt.Sprintf(`[
		{rabbit, [{collect_statistics_interval, 1000}, {quorum_tick_interval, 1000}]},
		{rabbitmq_prometheus, [{tcp_config, [{port, %d}, {ip, "127.0.0.1"}]}]},
		{rabbitmq_management, [{tcp_config, [{port, %d}, {ip, "127.0.0.1"}]}]}].`, port, apiPort)))
	node.Enable(t, "rabbitmq_management, rabbitmq_prometheus")
	return node, fmt.Sprintf("127.0.0.1:%d", port),
		fmt.Sprintf("http://guest:guest@127.0.0.1:%d", apiPort)
}

// brokerJob returns the scrape configuration of docs/monitoring.md with another target.
func brokerJob(t *testing.T, target string) string {
	t.Helper()
	page, err := os.ReadFile("../../docs/monitoring.md")
	require.NoError(t, err)
	_, rest, found := strings.Cut(string(page), "```yaml\nscrape_configs:\n")
	require.True(t, found, "docs/monitoring.md has no scrape configuration")
	job, _, found := strings.Cut(rest, "```\n")
	require.True(t, found)
	require.Contains(t, job, "rabbitmq:15692")
	return strings.ReplaceAll(job, "rabbitmq:15692", target)
}

// quickRules writes the rules from the broker with other durations, so that an alert needs
// seconds, and returns the file.
func quickRules(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(monitoring + "alerts.yml")
	require.NoError(t, err)
	_, rules, found := strings.Cut(string(text), "\n  - name: millpond-broker\n")
	require.True(t, found)
	to := map[string]string{
		"1m": "2s", "5m": "3s", "10m": "10s", "1h": "20s", "2h": "10s", "26h": "10s", "1d": "15s",
	}
	rules = regexp.MustCompile(`(\[|for: |offset )([0-9]+[mhd])\b`).ReplaceAllStringFunc(rules,
		func(found string) string {
			at := strings.LastIndexAny(found, "[ ") + 1
			require.Contains(t, to, found[at:])
			return found[:at] + to[found[at:]]
		})
	file := filepath.Join(t.TempDir(), "quick.yml")
	require.NoError(t, os.WriteFile(file, []byte("groups:\n  - name: quick\n"+rules), 0o600))
	return file
}

// firings returns the alerts from the broker that an expression over ALERTS finds, each with its
// queue.
func firings(t *testing.T, prom, expr string) []string {
	t.Helper()
	var found []string
	for _, result := range query(t, prom, expr) {
		name := strings.TrimPrefix(result.Metric["alertname"], "MillpondBroker")
		found = append(found, strings.TrimSpace(name+" "+result.Metric["queue"]))
	}
	slices.Sort(found)
	return found
}

// Given services of three kinds on one broker that Prometheus scrapes, and no metric of a
// service, when something goes wrong on the broker, then the alert about it fires for that queue
// alone, and no alert fires before.
func TestBrokerAlerts(t *testing.T) {
	t.Parallel()
	if os.Getenv(requireMonitoring) == "" {
		t.Skip("needs " + requireMonitoring + ", because it takes minutes: make test-monitoring")
	}
	node, plugin, _ := scrapedNode(t)
	prom := scraper(t, quickRules(t), brokerJob(t, plugin))

	start := func(
		strategy topology.Strategy, policy backoff.Policy, h func(*message.Message) error,
	) *rig.Service {
		return rig.Start(t, rig.Config{
			URL: node.URL(), Strategy: strategy, Policy: policy, Handle: h,
			Configure: rig.QuorumQueue,
		})
	}
	second := backoff.List{time.Second}
	var handled rig.Timeline
	calm := start(topology.PerQueue{}, second, handled.FailFirst)
	dying := start(topology.PerQueue{}, second, func(*message.Message) error {
		return middleware.Permanent(rig.ErrFailed)
	})
	shared := rig.Shared(t, topology.Classic)
	longer := backoff.List{6 * time.Second} // than it takes to stop a service and delete its queue
	deserted := start(shared, longer, rig.Fail)
	leaving := start(topology.PerQueue{}, longer, rig.Fail)
	idle := start(topology.PerQueue{}, second, rig.Succeed)
	robbed := start(topology.PerQueue{Type: topology.Classic}, second, rig.Fail)

	calm.Send("1", "2", "3")
	seen := fmt.Sprintf("count_over_time(millpond:broker_messages{queue=%q}[1m]) > 25",
		robbed.Queue+".dlq")
	testbroker.WaitFor(t, "the rules to look further back than any alert", patience, func() bool {
		return len(numbers(t, prom, seen)) > 0
	})
	require.Equal(t, 3, handled.Count())
	ever := `max_over_time(ALERTS{alertname=~"MillpondBroker.*",alertstate="firing"}[10m])`
	require.Empty(t, firings(t, prom, ever), "while nothing is wrong")

	var expected []string
	fires := func(alerts ...string) {
		t.Helper()
		expected = append(expected, alerts...)
		slices.Sort(expected)
		testbroker.WaitFor(t, strings.Join(alerts, ", "), patience, func() bool {
			found := firings(t, prom, ever)
			for _, alert := range alerts {
				if !slices.Contains(found, alert) {
					return false
				}
			}
			return true
		})
		require.Equal(t, expected, firings(t, prom, ever), "that have fired until now")
	}

	dying.Send("dead")
	fires("DeadLettersGrow " + dying.Queue + ".dlq")
	fires("DeadLettersStay " + dying.Queue + ".dlq")
	require.Equal(t, []string{"DeadLettersStay " + dying.Queue + ".dlq"},
		firings(t, prom, `ALERTS{alertname=~"MillpondBroker.*",alertstate="firing"}`))

	idle.Stop()
	rig.Publish(t, node.URL(), "", idle.Queue, rig.Message("alone"))
	fires("NoConsumer " + idle.Queue)

	wait := robbed.Queue + ".wait.1s.classic"
	_, err := testbroker.Channel(t, node.URL()).Consume(wait, "thief", false, false, false, false, nil)
	require.NoError(t, err)
	robbed.Send("stolen while it waits")
	fires("WaitQueueDoesNotDrain " + wait)

	lose := func(s *rig.Service) {
		s.Send("homeless")
		rig.WaitFor(t, "the message to wait", func() bool { return s.Waiting() == 1 })
		s.Stop()
		rig.DeleteQueue(t, node.URL(), s.Queue)
	}
	lose(leaving)
	fires("MessagesHeld "+leaving.Queue+".wait.6s",
		"WaitQueueDoesNotDrain "+leaving.Queue+".wait.6s")
	lose(deserted)
	fires("Stranded " + shared.Prefix + ".stranded")

	node.Enable(t, "rabbitmq_management_agent") // the plugin is gone
	fires("NotSeen")
}

// The addresses of the runbook lead to headings of the page.
func TestRunbooksExist(t *testing.T) {
	t.Parallel()
	rules, err := os.ReadFile(monitoring + "alerts.yml")
	require.NoError(t, err)
	page, err := os.ReadFile("../../docs/operations.md")
	require.NoError(t, err)
	anchors := map[string]bool{}
	headings := regexp.MustCompile(`(?m)^#+ (.+)$`).FindAllStringSubmatch(string(page), -1)
	for _, heading := range headings {
		clean := regexp.MustCompile(`[^a-z0-9 -]`).ReplaceAllString(strings.ToLower(heading[1]), "")
		anchors[strings.ReplaceAll(clean, " ", "-")] = true
	}
	found := regexp.MustCompile(`runbook_url: \S+/docs/operations\.md#(\S+)`).
		FindAllStringSubmatch(string(rules), -1)
	require.Len(t, found, strings.Count(string(rules), "alert: MillpondBroker")+
		strings.Count(string(rules), "alert: MillpondBrake"))
	for _, link := range found {
		require.True(t, anchors[link[1]], "docs/operations.md has no heading for #%s", link[1])
	}
}
