// Package release_test tests that the modules of this repository install as after a release.
package release_test

import (
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	root       = "../../.."
	modulePath = "github.com/millpond-go/millpond"
	version    = "v0.1.0"
)

// shop is a user's machine: it shares nothing with the builds of the checkout.
type shop struct {
	bin string
	run func(dir string, args ...string) // of go
}

// newShop makes one, or skips the test: each takes minutes. If the checkout is published, go finds
// its modules by their version.
func newShop(t *testing.T, published bool) shop {
	t.Helper()
	if os.Getenv("MILLPOND_REQUIRE_INSTALL") == "" {
		t.Skip("needs MILLPOND_REQUIRE_INSTALL, because it builds every module: make test-install")
	}
	gopath := t.TempDir()
	cache, err := exec.Command("go", "env", "GOMODCACHE", "GOPROXY").Output()
	require.NoError(t, err)
	known := strings.Fields(string(cache))
	s := shop{bin: filepath.Join(gopath, "bin")}
	env := append(os.Environ(), "GOWORK=off", "GOFLAGS=-modcacherw", "GOPATH="+gopath,
		"GOMODCACHE="+filepath.Join(gopath, "mod"), "GOBIN="+s.bin,
		"GOPROXY=file://"+known[0]+"/cache/download,"+known[1])
	if published {
		repository := filepath.Join(t.TempDir(), "millpond")
		said, err := exec.Command("sh", "tag.sh", repository, version).Output()
		require.NoError(t, err)
		env = append(env, strings.Fields(string(said))...)
	}
	s.run = func(dir string, args ...string) {
		t.Helper()
		cmd := exec.Command("go", args...)
		cmd.Dir, cmd.Env = dir, env
		said, err := cmd.CombinedOutput()
		require.NoError(t, err, "go %s: %s", strings.Join(args, " "), said)
	}
	return s
}

// Given a repository that has a version of every module, when a user in an empty folder installs a
// program or requires a library by its version, then it builds.
func TestEveryModuleInstallsByItsVersion(t *testing.T) {
	t.Parallel()
	s := newShop(t, true)
	list := exec.Command("go", "list", "-m", "-f", "{{.Path}} {{.Dir}}")
	list.Dir = root
	said, err := list.Output()
	require.NoError(t, err)
	for line := range strings.Lines(string(said)) {
		name, dir, _ := strings.Cut(strings.TrimSpace(line), " ")
		user := t.TempDir()
		main, err := os.ReadFile(filepath.Join(dir, "main.go"))
		if err == nil && strings.Contains(string(main), "\npackage main\n") {
			s.run(user, "install", name+"@"+version)
			require.FileExists(t, filepath.Join(s.bin, path.Base(name)))
			continue
		}
		s.run(user, "mod", "init", "example.com/user")
		s.run(user, "get", name+"/...@"+version)
		s.run(user, "build", name+"/...")
	}
}

// everySignal is a service with metrics and traces: it needs three modules of the repository.
const everySignal = `package main

import (
	"github.com/millpond-go/millpond/middleware/metrics"
	"github.com/millpond-go/millpond/middleware/tracing"
	"github.com/millpond-go/millpond/topology"
)

var _ = []any{topology.Open, metrics.New, tracing.New}

func main() {}
`

func newModule(t *testing.T, s shop, name string) string {
	t.Helper()
	user := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.Mkdir(user, 0o755))
	s.run(user, "mod", "init", "example.com/"+name)
	require.NoError(t, os.WriteFile(filepath.Join(user, "main.go"), []byte(everySignal), 0o600))
	return user
}

var installing = regexp.MustCompile(`\bgo ((?:get|install) ` + modulePath + "[^ `\n]*@[^ `\n]+)")

// Given the modules as after a release, when a user installs as the pages say, then a program with
// metrics and traces builds, after go get as after go mod tidy alone, and the tool is there.
func TestInstallCommandsOfPages(t *testing.T) {
	t.Parallel()
	s := newShop(t, true)
	user := newModule(t, s, "user")
	for _, text := range pages(t) {
		for _, command := range installing.FindAllStringSubmatch(text, -1) {
			s.run(user, strings.Fields(command[1])...)
		}
	}
	for _, module := range []string{"", "/middleware/metrics", "/middleware/tracing"} {
		s.run(user, "get", modulePath+module+"@"+version)
	}
	s.run(user, "install", modulePath+"/cmd/millpond@"+version)
	require.FileExists(t, filepath.Join(s.bin, "millpond"))
	s.run(user, "mod", "tidy")
	s.run(user, "build", ".")

	tidied := newModule(t, s, "tidied")
	s.run(tidied, "mod", "tidy")
	s.run(tidied, "build", ".")
}

var replacing = regexp.MustCompile(
	`(?m)^ *(?:\$ )?go (mod edit (?:-replace=` + modulePath + `\S* *)+)$`)

// Given a clone beside the module, when a user replaces the modules as a page says, then the same
// program builds after go mod tidy. The commands of the page stand for one in which nothing is
// published.
func TestMetricsAndTracingInstallFromAClone(t *testing.T) {
	t.Parallel()
	s := newShop(t, false)
	clone, err := filepath.Abs(root)
	require.NoError(t, err)
	shown := 0
	for _, text := range pages(t) {
		text = strings.ReplaceAll(text, "\\\n", "")
		edits := replacing.FindAllStringSubmatch(text, -1)
		if len(edits) == 0 {
			continue
		}
		shown++
		user := newModule(t, s, "user")
		require.NoError(t, os.Symlink(clone, filepath.Join(filepath.Dir(user), "millpond")))
		for _, edit := range edits {
			s.run(user, strings.Fields(edit[1])...)
		}
		s.run(user, "mod", "tidy")
		s.run(user, "build", ".")
	}
	require.Positive(t, shown, "no page says how metrics and tracing are installed from a clone")
}

// pages returns the text of every Markdown page.
func pages(t *testing.T) (found []string) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".md" {
			return err
		}
		text, err := os.ReadFile(path)
		found = append(found, string(text))
		return err
	}))
	return found
}
