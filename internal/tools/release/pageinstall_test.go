package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// everySignal is a service with metrics and traces: it needs three modules of the repository.
const everySignal = `package main

import (
	"context"
	"log"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/metrics"
	"github.com/millpond-go/millpond/middleware/tracing"
	"github.com/millpond-go/millpond/topology"
)

func main() {
	m, err := metrics.New()
	if err != nil {
		log.Fatal(err)
	}
	prometheus.MustRegister(m)
	t := tracing.New()
	cfg := amqp.NewDurableQueueConfig("amqp://guest:guest@127.0.0.1:5672/")
	client, err := topology.Open(context.Background(), cfg.Connection, topology.PerQueue{},
		topology.WithObserver(m, t))
	if err != nil {
		log.Fatal(err)
	}
	retry, err := middleware.NewDelayedRetry(client, backoff.Constant{Interval: 5e9, Retries: 3})
	if err != nil {
		log.Fatal(err)
	}
	message.NewDefaultRouter(nil).AddMiddleware(t.Middleware, retry.Middleware)
}
`

func newModule(t *testing.T, s shop, name string) string {
	t.Helper()
	user := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.Mkdir(user, 0o755))
	s.run(user, "mod", "init", "example.com/"+name)
	require.NoError(t, os.WriteFile(filepath.Join(user, "main.go"), []byte(everySignal), 0o600))
	return user
}

// released are the commands by which a version is installed after a release. The commands
// of the pages are added.
var released = []string{
	"go get " + modulePath + "@" + version,
	"go get " + modulePath + "/middleware/metrics@" + version,
	"go get " + modulePath + "/middleware/tracing@" + version,
	"go install " + modulePath + "/cmd/millpond@" + version,
}

var installing = regexp.MustCompile(`\bgo (?:get|install) ` + modulePath + "[^ `\n]*@[^ `\n]+")

// Given a proxy that has the modules as after a release, when a user installs as the pages say,
// then a program with metrics and traces builds, after go get as after go mod tidy alone, and the
// tool runs.
func TestInstallCommandsOfPages(t *testing.T) {
	t.Parallel()
	s := newShop(t, true)
	commands := slices.Clone(released)
	for _, text := range pages(t) {
		commands = append(commands, installing.FindAllString(text, -1)...)
	}
	slices.Sort(commands)
	user := newModule(t, s, "user")
	for _, command := range slices.Compact(commands) {
		s.run(user, strings.Fields(command)[1:]...)
	}
	require.FileExists(t, filepath.Join(s.bin, "millpond"))
	s.run(user, "mod", "tidy")
	s.run(user, "build", ".")

	tidied := newModule(t, s, "tidied")
	s.run(tidied, "mod", "tidy")
	s.run(tidied, "build", ".")
	mod, err := os.ReadFile(filepath.Join(tidied, "go.mod"))
	require.NoError(t, err)
	for _, name := range []string{"", "/middleware/metrics", "/middleware/tracing"} {
		require.Contains(t, string(mod), "\t"+modulePath+name+" "+version+"\n")
	}
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
	for name, text := range pages(t) {
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
		t.Log(name)
		s.run(user, "mod", "tidy")
		s.run(user, "build", ".")
	}
	require.Positive(t, shown, "no page says how metrics and tracing are installed from a clone")
}

// pages returns the text of every Markdown page.
func pages(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	require.NoError(t, filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".md" {
			return err
		}
		text, err := os.ReadFile(path)
		found[path] = string(text)
		return err
	}))
	return found
}
