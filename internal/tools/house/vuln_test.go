package house_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// CI looks for known vulnerabilities. A finding fails, and a database out of reach does not.
func TestCIFailsOnAVulnerability(t *testing.T) {
	t.Parallel()
	steps, err := os.ReadFile(root + "/.ci/run")
	require.NoError(t, err)
	require.Regexp(t, `(?m)^for step in .*\bvuln\b.*; do$`, string(steps))
	const unreachable = "govulncheck: fetching vulnerabilities: no such host"
	for said, codes := range map[string][2]int{ // of go run, and of the step
		"No vulnerabilities found.": {0, 0},
		"Vulnerability #1: GO-2026-0001\nYour code is affected by 1 vulnerability.": {1, 1},
		"go: module lookup disabled by GOPROXY=off":                                 {1, 1},
		unreachable: {1, 0},
	} {
		goTool := filepath.Join(t.TempDir(), "go")
		script := fmt.Sprintf("#!/bin/sh\ncat <<'END'\n%s\nEND\nexit %d\n", said, codes[0])
		require.NoError(t, os.WriteFile(goTool, []byte(script), 0o700))
		step := exec.Command("sh", root+"/internal/tools/vuln.sh", goTool, "govulncheck", "./...")
		out, _ := step.CombinedOutput()
		require.Equal(t, codes[1], step.ProcessState.ExitCode(), "%s", out)
		require.Contains(t, string(out), said)
		if said == unreachable {
			require.Contains(t, string(out), "NOTHING WAS CHECKED")
		}
	}
}
