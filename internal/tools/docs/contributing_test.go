package docs_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	fileAbove = regexp.MustCompile("`([a-z_/]+\\.go)`:$")
	testNamed = regexp.MustCompile(`\nfunc (Test\w+)\(`)
)

// Given the files that CONTRIBUTING.md adds to packages of the library, then they compile there and
// their tests pass. They are laid over the checkout, which does not change.
func TestContributingShowsFilesThatPass(t *testing.T) {
	t.Parallel()
	base, err := filepath.Abs(root)
	require.NoError(t, err)
	folder := t.TempDir()
	laidOver := map[string]string{}
	var packages, tests []string
	for _, b := range blocks(read(t, "CONTRIBUTING.md")) {
		if b.kind != "go" {
			continue
		}
		name := fileAbove.FindStringSubmatch(b.before)
		require.NotNil(t, name, "no name of a file above\n%s", b.text)
		require.NoFileExists(t, root+name[1])
		file := filepath.Join(folder, strings.ReplaceAll(name[1], "/", "_"))
		require.NoError(t, os.WriteFile(file, []byte(b.text), 0o600))
		laidOver[filepath.Join(base, filepath.FromSlash(name[1]))] = file
		if test := testNamed.FindStringSubmatch(b.text); test != nil {
			packages = append(packages, "./"+path.Dir(name[1]))
			tests = append(tests, test[1])
		}
	}
	require.Len(t, laidOver, 2*len(tests))
	require.Len(t, tests, 3, "a policy, a classifier and a strategy")
	overlay, err := json.Marshal(map[string]any{"Replace": laidOver})
	require.NoError(t, err)
	list := filepath.Join(folder, "overlay.json")
	require.NoError(t, os.WriteFile(list, overlay, 0o600))

	cmd := exec.CommandContext(t.Context(), "go", append([]string{
		"test", "-overlay", list, "-count", "1", "-vet=off", "-ldflags=-w", "-v",
		"-run", "^(" + strings.Join(tests, "|") + ")$",
	}, packages...)...)
	cmd.Dir = base
	cmd.Env = append(os.Environ(), "MILLPOND_NO_BROKER=1", "AMQP_URL=")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	for _, test := range tests {
		require.Contains(t, string(out), "--- PASS: "+test+" ")
	}
}
