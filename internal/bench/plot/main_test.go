package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const measured = `{"results": [
	{"group": "inflight", "x": 1, "entry": "a", "metric": "per second", "samples": [1000, 900, 1100]},
	{"group": "inflight", "x": 8, "entry": "a", "metric": "per second", "samples": [12345.6]},
	{"group": "memory", "x": 0, "entry": "b", "metric": "KiB", "samples": [6.84]},
	{"group": "memory", "x": 0, "entry": "a", "metric": "KiB", "samples": [0.0142]},
	{"group": "waiting", "x": 10, "entry": "a", "metric": "p50 ms", "samples": [2.17]},
	{"group": "waiting", "x": 10, "entry": "broker", "metric": "broker MiB", "samples": [142]}
]}`

func TestPageAndPicture(t *testing.T) {
	t.Parallel()
	docs := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(docs, "performance"), 0o700))
	page, file := filepath.Join(docs, "performance.md"), filepath.Join(docs, "run.json")
	require.NoError(t, os.WriteFile(file, []byte(measured), 0o600))
	require.NoError(t,
		os.WriteFile(page, []byte("before\n<!-- table inflight -->\nold\n<!-- end -->\nafter\n"), 0o600))
	for range 2 { // it can fill its own tables again
		require.NoError(t, run(docs, []string{file}))
	}
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	assert.Equal(t, "before\n<!-- table inflight -->\n\n**per second**\n\n|  | a |\n|--:|--:|\n"+
		"| 1 | 1000 (900–1100) |\n| 8 | 12346 |\n\n<!-- end -->\nafter\n", string(text))
	drawn, err := os.ReadFile(filepath.Join(docs, "performance", "inflight.svg"))
	require.NoError(t, err)
	assert.Contains(t, string(drawn), "<svg")
	assert.Contains(t, string(drawn), "in flight")
}

// A group that was measured once has a row for each entry, and other groups a table for each
// metric.
func TestTablesAreNarrow(t *testing.T) {
	t.Parallel()
	page, file := filepath.Join(t.TempDir(), "page.md"), filepath.Join(t.TempDir(), "run.json")
	require.NoError(t, os.WriteFile(file, []byte(measured), 0o600))
	results, err := readResults([]string{file})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(page, []byte("<!-- table memory -->\n<!-- end -->\n"+
		"<!-- table waiting -->\n<!-- end -->\n"), 0o600))
	require.NoError(t, fill(page, results))
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	assert.Equal(t, "<!-- table memory -->\n\n|  | KiB |\n|---|--:|\n| a | 0.0142 |\n| b | 6.84 |\n\n"+
		"<!-- end -->\n<!-- table waiting -->\n\n**broker MiB**\n\n|  | broker |\n|--:|--:|\n"+
		"| 10 | 142 |\n\n**p50 ms**\n\n|  | a |\n|--:|--:|\n| 10 | 2.17 |\n\n<!-- end -->\n",
		string(text))
}

func TestTableWithoutEndIsAnError(t *testing.T) {
	t.Parallel()
	page := filepath.Join(t.TempDir(), "page.md")
	require.NoError(t, os.WriteFile(page, []byte("<!-- table x -->\n"), 0o600))
	assert.ErrorContains(t, fill(page, nil), "has no end")
}

const anOutage = `{"results": [
	{"group": "outage", "x": 0, "entry": "budget", "metric": "seconds out", "samples": [4]},
	{"group": "outage", "x": 0, "entry": "budget", "metric": "calls a second that it bears",
		"samples": [300]},
	{"group": "outage", "x": 0, "entry": "budget", "metric": "seconds from back until it fell over",
		"samples": [1.5]},
	{"group": "outage", "x": 0, "entry": "budget", "metric": "a", "samples": [1]},
	{"group": "outage", "x": 0, "entry": "brake", "metric": "b", "samples": [2]},
	{"group": "outage-curves", "x": 0, "entry": "brake", "metric": "calls per second", "samples": [9]},
	{"group": "outage-curves", "x": 1, "entry": "brake", "metric": "calls per second", "samples": [1]},
	{"group": "outage-curves", "x": 0, "entry": "brake", "metric": "backlog", "samples": [0]},
	{"group": "outage-curves", "x": 1, "entry": "brake", "metric": "backlog", "samples": [200]}
]}`

// An outage has one picture, and a table with a row for each of its many figures.
func TestOutageHasOnePicture(t *testing.T) {
	t.Parallel()
	docs := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(docs, "performance"), 0o700))
	page, file := filepath.Join(docs, "performance.md"), filepath.Join(docs, "run.json")
	require.NoError(t, os.WriteFile(file, []byte(anOutage), 0o600))
	require.NoError(t, os.WriteFile(page, []byte("<!-- table outage -->\n<!-- end -->\n"), 0o600))
	require.NoError(t, run(docs, []string{file}))
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	assert.Contains(t, string(text), "|  | brake | budget |\n|---|--:|--:|\n| seconds out | – | 4 |\n")
	assert.Contains(t, string(text), "| b | 2 | – |\n")
	drawn, err := os.ReadFile(filepath.Join(docs, "performance", "outage.svg"))
	require.NoError(t, err)
	for _, want := range []string{
		"with the brake", "fell over", "falls over above 300", "calls per second",
	} {
		assert.Contains(t, string(drawn), want)
	}
}

const anOverload = `{"results": [
	{"group": "overload", "x": 0, "entry": "alone", "metric": "calls in all", "samples": [400]},
	{"group": "overload", "x": 0, "entry": "around", "metric": "calls in all", "samples": [100]},
	{"group": "overload-curves", "x": 0, "entry": "alone", "metric": "calls per second",
		"samples": [50]},
	{"group": "overload-curves", "x": 10, "entry": "alone", "metric": "calls per second",
		"samples": [70]},
	{"group": "overload-curves", "x": 0, "entry": "alone", "metric": "messages that wait",
		"samples": [1]},
	{"group": "overload-curves", "x": 0, "entry": "alone",
		"metric": "seconds after a first failure", "samples": [1]}
]}`

func TestOverloadHasOnePicture(t *testing.T) {
	t.Parallel()
	docs := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(docs, "performance"), 0o700))
	page, file := filepath.Join(docs, "performance.md"), filepath.Join(docs, "run.json")
	require.NoError(t, os.WriteFile(file, []byte(anOverload), 0o600))
	require.NoError(t, os.WriteFile(page, []byte("<!-- table overload -->\n<!-- end -->\n"), 0o600))
	require.NoError(t, run(docs, []string{file}))
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	assert.Contains(t, string(text),
		"|  | calls in all |\n|---|--:|\n| alone | 400 |\n| around | 100 |\n")
	drawn, err := os.ReadFile(filepath.Join(docs, "performance", "overload.svg"))
	require.NoError(t, err)
	for _, want := range append(overloadPanels, "alone", "A service is overloaded") {
		assert.Contains(t, string(drawn), want)
	}
}
