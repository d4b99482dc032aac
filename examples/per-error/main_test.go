package main

import (
	"bytes"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

func TestMain(m *testing.M) {
	testbroker.Main(m, func() error { return goleak.Find() })
}

func TestEachErrorHasItsPolicy(t *testing.T) {
	t.Parallel()
	url, queue := testbroker.URL(t), testbroker.Queue(t)
	testbroker.Delete(t, queue+".wait.400ms", queue+".wait.800ms")
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), url, queue, &out), "%s", &out)
	t.Log(out.String())

	const ms = time.Millisecond
	for name, want := range map[string]struct {
		attempts []string // the numbers that the handler was shown
		floors   []time.Duration
		end      string
	}{
		"network":  {[]string{"1", "2", "3", "4"}, []time.Duration{100 * ms, 100 * ms, 100 * ms}, "handled"},
		"busy":     {[]string{"1", "2"}, []time.Duration{2 * time.Second}, "handled"},
		"hopeless": {[]string{"1", "2", "3", "4"}, []time.Duration{200 * ms, 400 * ms, 800 * ms}, "dead-lettered: exhausted"},
		"invalid":  {[]string{"1"}, nil, "dead-lettered: permanent"},
		"limited":  {[]string{"1", "2"}, []time.Duration{2 * time.Second}, "handled"},
		"later":    {[]string{"1", "1", "1"}, []time.Duration{400 * ms, 400 * ms}, "handled"},
	} {
		var attempts []string
		var waits []time.Duration
		for _, line := range regexp.MustCompile(`(?m)^`+name+` +attempt (\d+)(?: after (\S+))?: `).FindAllStringSubmatch(out.String(), -1) {
			attempts = append(attempts, line[1])
			if line[2] != "" {
				wait, err := time.ParseDuration(line[2])
				require.NoError(t, err)
				waits = append(waits, wait)
			}
		}
		require.Equal(t, want.attempts, attempts, name)
		require.Len(t, waits, len(want.floors), name)
		for i, floor := range want.floors {
			require.GreaterOrEqual(t, waits[i], floor-10*ms, "%s, wait %d", name, i+1) // rounded, and F20
		}
		require.Regexp(t, `(?m)^`+name+` .*`+want.end+`$`, out.String())
	}
	testbroker.WaitFor(t, "two dead letters", 10*time.Second, func() bool { return testbroker.Depth(t, url, queue+".dlq") == 2 })
}
