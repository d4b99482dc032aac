package e2e_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

// mistakeKey is the environment variable with the number of the mistake that a binary makes.
const mistakeKey = "MILLPOND_TEST_MISTAKE"

// mistakes change the index of the wait step in Plan.wayIn before the step is returned.
var mistakes = []struct{ name, code string }{
	{"the next longer queue", "i = min(i+1, len(p.WaitSteps)-1)"},
	{"the next shorter queue, and a round too many", "i = max(i-1, 0)"},
	{"the last step for every retry", "i = len(p.WaitSteps) - 1"},
}

// judgeWays is the strategy on which each of the five designs judges.
var judgeWays = map[string]string{
	"outbox": "PerQueue classic", "goqueue": "PerAttempt classic", "shared": "Shared classic",
	"adr": "PerQueue classic", "block": "Shared Via classic",
}

// Given a library whose messages wait in another wait queue, then each of the five designs finds
// it. TestFiveDesignsOnEveryStrategy shows that they find nothing without a mistake.
func TestEachScenarioFindsTheWrongWaitQueue(t *testing.T) {
	t.Parallel()
	if os.Getenv(mistakeKey) != "" {
		judge(t)
		return
	}
	url, binary := testbroker.URL(t), buildMistakes(t)
	var wg sync.WaitGroup
	for i := range mistakes {
		wg.Go(func() {
			cmd := exec.CommandContext(t.Context(), binary, "-test.run", "^"+t.Name()+"$", "-test.v",
				"-test.parallel", fmt.Sprint(len(designs)), "-test.timeout", "5m")
			cmd.Env = append(os.Environ(), "AMQP_URL="+url, fmt.Sprintf("%s=%d", mistakeKey, i))
			out, err := cmd.CombinedOutput()
			for _, judge := range designs {
				verdict := "--- FAIL: " + t.Name() + "/" + judge.name + " "
				assert.True(t, strings.Contains(string(out), verdict), "not %s, mistake: %s (%v):\n%s",
					verdict, mistakes[i].name, err, out)
			}
		})
	}
	wg.Wait()
}

// buildMistakes builds this package with all mistakes and returns the binary. It changes no file of
// the checkout.
func buildMistakes(t *testing.T) (binary string) {
	t.Helper()
	plan, err := filepath.Abs("../../../topology/plan.go")
	require.NoError(t, err)
	source, err := os.ReadFile(plan)
	require.NoError(t, err)
	const chosen, imports = "\treturn p.WaitSteps[i], nil\n", "import (\n"
	require.Equal(t, 1, strings.Count(string(source), chosen), "Plan.wayIn has changed")
	var code strings.Builder
	fmt.Fprintf(&code, "\tswitch os.Getenv(%q) {\n", mistakeKey)
	for i, mistake := range mistakes {
		fmt.Fprintf(&code, "\tcase \"%d\":\n\t\t%s\n", i, mistake.code)
	}
	mutant := strings.Replace(string(source), chosen, code.String()+"\t}\n"+chosen, 1)
	mutant = strings.Replace(mutant, imports, imports+"\t\"os\"\n", 1)

	folder := t.TempDir()
	file, list := filepath.Join(folder, "plan.go"), filepath.Join(folder, "overlay.json")
	require.NoError(t, os.WriteFile(file, []byte(mutant), 0o600))
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{plan: file}})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(list, overlay, 0o600))
	binary = filepath.Join(folder, "mistakes.test")
	out, err := exec.CommandContext(t.Context(), "go", "test", "-c", "-race", "-vet=off",
		"-ldflags=-w", "-overlay", list, "-o", binary, ".").CombinedOutput()
	require.NoError(t, err, "%s", out)
	return binary
}

// judge runs the five designs in a process that has one mistake.
func judge(t *testing.T) {
	t.Helper()
	for _, design := range designs {
		t.Run(design.name, func(t *testing.T) {
			t.Parallel()
			design.run(t, strategyOf(t, judgeWays[design.name]))
		})
	}
}
