package topology_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/topology"
)

// The permissions in docs/security.md are the exported permissions of the plans, and the tests
// that it names exist.
func TestSecurityDocumentIsTrue(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("../docs/security.md")
	require.NoError(t, err)
	text := string(data)

	target := topology.DeadLetters{
		Target: func(string) topology.Route { return topology.Route{Exchange: "graves"} },
	}
	via := topology.PerQueue{Via: []string{"events"}}
	for _, row := range []struct {
		name     string
		strategy topology.Strategy
		declare  bool
	}{
		{"PerQueue{}", topology.PerQueue{}, true},
		{"PerQueue{}, WithPreProvisioned", topology.PerQueue{}, false},
		{"PerQueue{Type: Classic}", topology.PerQueue{Type: topology.Classic}, true},
		{`PerQueue{Via: []string{"events"}}`, via, true},
		{`PerQueue{Via: []string{"events"}}, WithPreProvisioned`, via, false},
		{"PerAttempt{}", topology.PerAttempt{}, true},
		{"PerAttempt{}, WithPreProvisioned", topology.PerAttempt{}, false},
		{
			"Levels{Resolution: 5 * time.Second, Max: 30 * time.Second}",
			topology.Levels{Resolution: 5 * time.Second, Max: 30 * time.Second},
			true,
		},
		{"Levels{}, WithPreProvisioned", topology.Levels{}, false},
		{"Shared{}", topology.Shared{}, true},
		{"Shared{}, WithPreProvisioned", topology.Shared{}, false},
		{"Shared{Dead: target}, WithPreProvisioned", topology.Shared{Dead: target}, false},
	} {
		delays := []time.Duration{5 * time.Second, 30 * time.Second}
		plan := rig.PlanOf(t, row.strategy, "orders", delays...)
		p := plan.Permissions(row.declare)
		const command = "# %s\nrabbitmqctl set_permissions -p shop orders-service " +
			"\\\n  '%s' \\\n  '%s' \\\n  '%s'\n"
		require.Contains(t, text, fmt.Sprintf(command, row.name, p.Configure, p.Write, p.Read))
	}

	tests := allTests(t)
	named := regexp.MustCompile("`((?:Test|Fuzz)[A-Za-z0-9]+)`").FindAllStringSubmatch(text, -1)
	require.NotEmpty(t, named)
	for _, m := range named {
		require.True(t, strings.Contains(tests, "func "+m[1]+"("), "there is no %s", m[1])
	}
}

// allTests returns the text of all test files.
func allTests(t testing.TB) string {
	t.Helper()
	var all strings.Builder
	require.NoError(t, filepath.WalkDir("..", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		data, err := os.ReadFile(path)
		all.Write(data)
		return err
	}))
	return all.String()
}
