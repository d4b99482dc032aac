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
	{"group": "inflight", "x": 8, "entry": "a", "metric": "p50 ms", "samples": [2.17]},
	{"group": "memory", "x": 0, "entry": "b", "metric": "KiB", "samples": [6.84]},
	{"group": "memory", "x": 0, "entry": "a", "metric": "KiB", "samples": [0.0142]},
	{"group": "waiting", "x": 10, "entry": "a", "metric": "p50 ms", "samples": [2.17]},
	{"group": "waiting", "x": 10, "entry": "broker", "metric": "broker MiB", "samples": [142]}
]}`

// A group that was measured at one x has a row for each entry, and other groups a table for each
// metric. A page can be filled twice. A table without a measurement stays as it is.
func TestThePageIsFilled(t *testing.T) {
	t.Parallel()
	page, file := filepath.Join(t.TempDir(), "page.md"), filepath.Join(t.TempDir(), "run.json")
	require.NoError(t, os.WriteFile(file, []byte(measured), 0o600))
	require.NoError(t, os.WriteFile(page, []byte("before\n"+
		"<!-- table inflight: per second -->\nold\n<!-- end -->\nbetween\n"+
		"<!-- table memory -->\n<!-- end -->\n<!-- table waiting -->\n<!-- end -->\n"+
		"<!-- table hops -->\nearlier\n<!-- end -->\n"), 0o600))
	for range 2 {
		require.NoError(t, fill(page, []string{file}))
	}
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	assert.Equal(t, "before\n<!-- table inflight: per second -->\n\n**per second**\n\n"+
		"|  | a |\n|--:|--:|\n| 1 | 1000 (900–1100) |\n| 8 | 12346 |\n\n<!-- end -->\nbetween\n"+
		"<!-- table memory -->\n\n|  | KiB |\n|---|--:|\n| a | 0.0142 |\n| b | 6.84 |\n\n"+
		"<!-- end -->\n<!-- table waiting -->\n\n**broker MiB**\n\n|  | broker |\n|--:|--:|\n"+
		"| 10 | 142 |\n\n**p50 ms**\n\n|  | a |\n|--:|--:|\n| 10 | 2.17 |\n\n<!-- end -->\n"+
		"<!-- table hops -->\nearlier\n<!-- end -->\n", string(text))
	require.NoError(t, os.WriteFile(page, []byte("<!-- table x -->\n"), 0o600))
	assert.ErrorContains(t, fill(page, nil), "has no end")
}
