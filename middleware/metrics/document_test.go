package metrics_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/middleware/metrics"
)

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/" + path)
	require.NoError(t, err)
	return string(text)
}

// labelsOf returns the labels of every metric there is, by name.
func labelsOf(t *testing.T) map[string]string {
	t.Helper()
	m, err := metrics.New()
	require.NoError(t, err)
	c, err := metrics.NewCollector(connecting{}, &inspector{}, nil)
	require.NoError(t, err)
	descs := make(chan *prometheus.Desc, 100)
	m.Describe(descs)
	c.Describe(descs)
	close(descs)
	form := regexp.MustCompile(`fqName: "([a-z_]+)".*variableLabels: \{([a-z,]*)\}`)
	all := map[string]string{}
	for desc := range descs {
		found := form.FindStringSubmatch(desc.String())
		require.NotNil(t, found, desc)
		all[found[1]] = found[2]
	}
	return all
}

func TestEveryMetricIsDocumented(t *testing.T) {
	t.Parallel()
	documented := map[string]string{}
	row := regexp.MustCompile(
		"(?m)^\\| `(millpond_[a-z_]+)` \\| (?:histogram|counter|gauge) \\| ([^|]*) \\|")
	page := strings.ReplaceAll(read(t, "monitoring.md"), "| |", "|  |")
	for _, found := range row.FindAllStringSubmatch(page, -1) {
		documented[found[1]] = strings.NewReplacer("`", "", " ", "").Replace(found[2])
	}
	require.Equal(t, labelsOf(t), documented)
}

func TestAlertsAndDashboardKnowTheMetrics(t *testing.T) {
	t.Parallel()
	known := labelsOf(t)
	for _, file := range []string{"alerts.yml", "alerts_test.yml", "dashboard.json"} {
		text := read(t, "monitoring/"+file)
		named := regexp.MustCompile(`\bmillpond_[a-z_]+`).FindAllString(text, -1)
		require.NotEmpty(t, named)
		for _, name := range named {
			base := regexp.MustCompile(`_(bucket|count|sum)$`).ReplaceAllString(name, "")
			require.Contains(t, known, base, file)
		}
	}
	alerts := regexp.MustCompile(`alert: (\w+)`)
	for _, alert := range alerts.FindAllStringSubmatch(read(t, "monitoring/alerts.yml"), -1) {
		require.Contains(t, read(t, "monitoring.md"), "| `"+alert[1]+"`", "what to do when it fires")
	}
}
