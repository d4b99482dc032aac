package main

import (
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	root    = "../../.."
	version = "v0.1.0"
)

// shop is a user's machine: it shares nothing with the builds of the checkout. proxy is a module
// proxy that has the modules of this repository as they are checked out.
type shop struct {
	proxy, bin string
	run        func(dir string, args ...string) // of go
}

// newShop makes one, or skips the test: each takes minutes. If nothing is published, go does not
// know the proxy.
func newShop(t *testing.T, published bool) shop {
	t.Helper()
	if os.Getenv("MILLPOND_REQUIRE_INSTALL") == "" {
		t.Skip("needs MILLPOND_REQUIRE_INSTALL, because it builds every module: make test-install")
	}
	proxy, gopath := t.TempDir(), t.TempDir()
	require.NoError(t, write(root, proxy, version))
	cache, err := exec.Command("go", "env", "GOMODCACHE", "GOPROXY").Output()
	require.NoError(t, err)
	known := strings.Fields(string(cache))
	s := shop{proxy: proxy, bin: filepath.Join(gopath, "bin")}
	from := "file://" + known[0] + "/cache/download," + known[1]
	if published {
		from = "file://" + proxy + "," + from
	}
	env := append(os.Environ(), "GOWORK=off", "GOFLAGS=-modcacherw", "GOPATH="+gopath,
		"GOMODCACHE="+filepath.Join(gopath, "mod"), "GOBIN="+s.bin, "GONOSUMDB="+modulePath,
		"GOPROXY="+from)
	s.run = func(dir string, args ...string) {
		t.Helper()
		cmd := exec.Command("go", args...)
		cmd.Dir, cmd.Env = dir, env
		said, err := cmd.CombinedOutput()
		require.NoError(t, err, "go %s: %s", strings.Join(args, " "), said)
	}
	return s
}

// Given a proxy that has the modules as they are checked out, when a user in an empty
// folder installs a program or requires a library by its version, then it builds. It takes
// minutes, because nothing is shared with the builds of the checkout: make test-install.
func TestEveryModuleInstallsByItsVersion(t *testing.T) {
	t.Parallel()
	s := newShop(t, true)
	files, err := tracked(root)
	require.NoError(t, err)
	dirs := moduleDirs(files)
	require.NotEmpty(t, dirs)
	for _, dir := range dirs {
		name := path.Join(modulePath, dir)
		if programs(t, dir) {
			s.run(s.proxy, "install", name+"@"+version)
			require.FileExists(t, filepath.Join(s.bin, path.Base(name)))
			continue
		}
		user := t.TempDir()
		s.run(user, "mod", "init", "example.com/user")
		s.run(user, "get", name+"/...@"+version)
		s.run(user, "build", name+"/...")
	}
}

// programs reports whether the module's own folder is a program.
func programs(t *testing.T, dir string) bool {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, dir, "main.go"))
	return err == nil && strings.Contains(string(text), "\npackage main\n")
}

// The zip of the root has no file of a module below it.
func TestAModuleHasOnlyItsOwnFiles(t *testing.T) {
	t.Parallel()
	dirs := []string{".", "cmd/millpond", "middleware/metrics"}
	for file, want := range map[string]string{
		"go.mod": ".", "topology/plan.go": ".", "cmd/millpond/main.go": "cmd/millpond",
		"cmd/millpond/testdata/help.txt": "cmd/millpond", "middleware/retry.go": ".",
	} {
		for _, dir := range dirs {
			name, found := relative(file, dir, dirs)
			require.Equal(t, dir == want, found, "%s in %s", file, dir)
			if found {
				require.Equal(t, strings.TrimPrefix(file, strings.TrimPrefix(want+"/", "./")), name)
			}
		}
	}
}
