package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The table of the page has the figures of the simulation, which is the same on every machine.
func TestOverloadIsDrawnAsSimulated(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "overload.json")
	var out bytes.Buffer
	require.NoError(t, startOverload(t.Context(), []string{"-out", file}, &out))
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	var r run
	require.NoError(t, json.Unmarshal(data, &r))
	page, err := os.ReadFile("../../docs/performance.md")
	require.NoError(t, err)
	_, table, _ := strings.Cut(string(page), "<!-- table overload -->")
	table, _, ended := strings.Cut(table, "<!-- end -->")
	require.True(t, ended)
	var cells []string
	for _, row := range r.Results {
		if row.Group == overloadFigures {
			cells = append(cells, inTable(row.Samples[0]))
		}
	}
	require.Len(t, cells, 21)
	for _, cell := range cells {
		require.Contains(t, table, " "+cell+" |")
	}
}

// inTable is a figure as command plot writes it.
func inTable(v float64) string {
	if v < 100 {
		return fmt.Sprintf("%.3g", v)
	}
	return fmt.Sprintf("%.0f", v)
}
