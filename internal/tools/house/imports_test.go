package house_test

import (
	"go/build"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	root   = "../../.."
	module = "github.com/millpond-go/millpond"

	watermill     = "github.com/ThreeDotsLabs/watermill"
	wamqp         = "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	wamqp3        = "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	amqp091       = "github.com/rabbitmq/amqp091-go"
	cenkalti4     = "github.com/cenkalti/backoff/v4"
	cenkalti5     = "github.com/cenkalti/backoff/v5"
	prometheus    = "github.com/prometheus/client_golang/prometheus"
	opentelemetry = "go.opentelemetry.io/otel"
)

// library says what each package that others import may import itself, beside the
// standard library. "x/…" is x and all below it.
var library = map[string][]string{
	"backoff":                       {cenkalti4},
	"middleware/header":             {module + "/internal/excerpt"},
	"middleware":                    {module + "/backoff", module + "/middleware/header", module + "/internal/excerpt", module + "/internal/hold", module + "/internal/observe", watermill + "/…", cenkalti4, cenkalti5},
	"middleware/delayed":            {module + "/middleware/header", module + "/middleware", watermill + "/…"},
	"middleware/delayed/postgresql": nil, // tests alone
	"middleware/middlewaretest":     {module + "/middleware/header", module + "/middleware", watermill + "/…"},
	"middleware/metrics": {
		module + "/middleware/header", module + "/middleware", module + "/topology",
		module + "/topology/operate", prometheus,
	},
	"middleware/tracing": {module + "/middleware/header", module + "/middleware", watermill + "/…", opentelemetry + "/…"},
	"topology": {
		module + "/backoff", module + "/middleware", module + "/middleware/header", module + "/internal/excerpt", module + "/internal/adapter", module + "/internal/hold", module + "/internal/link", module + "/internal/management",
		module + "/internal/audit", module + "/internal/observe", module + "/internal/publisher", module + "/internal/wire",
		watermill + "/…", wamqp, amqp091,
	},
	"topology/amqpv3": {module + "/topology", module + "/internal/adapter", watermill, wamqp3, amqp091},
	"topology/operate": {
		module + "/middleware", module + "/middleware/header", module + "/topology",
		module + "/internal/audit", module + "/internal/link", module + "/internal/management",
		module + "/internal/publisher", module + "/internal/scan", module + "/internal/wire",
		watermill, watermill + "/message/router/middleware", amqp091,
	},
}

// internals says the same of the packages behind them: none knows what is in front
// of it, and none is a tool of tests.
var internals = map[string][]string{
	"internal/audit":      {module + "/internal/management", amqp091},
	"internal/adapter":    {module + "/internal/link", watermill + "/…", amqp091},
	"internal/hold":       nil,
	"internal/excerpt":    nil,
	"internal/observe":    nil,
	"internal/management": nil,
	"internal/wire":       {amqp091},
	"internal/scan":       {amqp091},
	"internal/link":       {module + "/internal/wire", watermill, amqp091},
	"internal/publisher":  {module + "/internal/link", module + "/internal/wire", amqp091},
}

// alone are packages that one file of a package keeps to itself, so that another
// version of them is a second small file.
var alone = []struct{ pkg, imported, file string }{
	{"topology", wamqp, "watermillamqp.go"},
	{"backoff", cenkalti4, "cenkalti.go"},
	{"middleware", cenkalti4, "cenkalti.go"},
	{"middleware", cenkalti5, "cenkalti.go"},
}

// imports returns what each file of a package imports, tests aside, whatever the
// system it is for.
func imports(t *testing.T, pkg string) map[string][]string {
	t.Helper()
	found := map[string][]string{}
	files, err := filepath.Glob(filepath.Join(root, pkg, "*.go"))
	require.NoError(t, err)
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
		require.NoError(t, err)
		name := filepath.Base(file)
		found[name] = nil
		for _, spec := range parsed.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			require.NoError(t, err)
			found[name] = append(found[name], imported)
		}
	}
	return found
}

func allowed(imported string, rules []string) bool {
	return slices.ContainsFunc(rules, func(rule string) bool {
		below, all := strings.CutSuffix(rule, "/…")
		return imported == rule || all && (imported == below || strings.HasPrefix(imported, below+"/"))
	})
}

// forTests are packages of the standard library that register flags.
var forTests = []string{"testing/…"}

func TestImportsRunOneWay(t *testing.T) {
	t.Parallel()
	for _, rules := range []map[string][]string{library, internals} {
		for pkg, may := range rules {
			files := imports(t, pkg)
			require.NotEmpty(t, files, "%s has a rule and is not there", pkg)
			for file, list := range files {
				for _, imported := range list {
					host, _, _ := strings.Cut(imported, "/")
					standard := !strings.Contains(host, ".")
					require.True(t, standard && !allowed(imported, forTests) || allowed(imported, may),
						"%s/%s imports %s. Imports run one way: topology, middleware, backoff. If it is meant: the rules in this test, and docs/architecture.md", pkg, file, imported)
				}
			}
		}
	}
}

// A package without a rule could import anything.
func TestEveryPackageOfTheLibraryHasARule(t *testing.T) {
	t.Parallel()
	for _, pkg := range packages(t) {
		require.Contains(t, library, pkg, "a package that others can import, without a rule for what it imports")
	}
	// What the library reaches of internal, it reaches through its rules.
	for _, rules := range []map[string][]string{library, internals} {
		for pkg, may := range rules {
			for _, imported := range may {
				if inner, ours := strings.CutPrefix(imported, module+"/internal/"); ours {
					require.Contains(t, internals, "internal/"+inner, "%s imports it, and it has no rule", pkg)
				}
			}
		}
	}
}

// packages are those that others can import, in all modules of the repository.
func packages(t *testing.T) []string {
	t.Helper()
	var found []string
	require.NoError(t, filepath.WalkDir(root, func(dir string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() || dir == root {
			return err
		}
		if name := entry.Name(); slices.Contains([]string{"internal", "examples", "testdata", "docs"}, name) || strings.HasPrefix(name, ".") {
			return filepath.SkipDir
		}
		pkg, err := filepath.Rel(root, dir)
		if err != nil {
			return err
		}
		// A folder without Go files is none.
		if p, err := build.ImportDir(dir, 0); err == nil && p.Name != "main" {
			found = append(found, filepath.ToSlash(pkg))
		}
		return nil
	}))
	require.NotEmpty(t, found)
	return found
}

func TestForeignPackagesStayInTheirFile(t *testing.T) {
	t.Parallel()
	for _, rule := range alone {
		var in []string
		for file, list := range imports(t, rule.pkg) {
			if slices.Contains(list, rule.imported) {
				in = append(in, file)
			}
		}
		require.Equal(t, []string{rule.file}, in, "%s in %s", rule.imported, rule.pkg)
	}
}

// The module that everyone downloads knows none of those inside it, and what
// only they need is not among its requirements.
func TestInnerModulesStayOutside(t *testing.T) {
	t.Parallel()
	outer, err := os.ReadFile(filepath.Join(root, "go.mod"))
	require.NoError(t, err)
	require.NotContains(t, string(outer), "\nreplace ")
	for _, foreign := range []string{"github.com/prometheus", opentelemetry, module + "/"} {
		require.NotContains(t, string(outer), foreign)
	}
	inner := 0
	require.NoError(t, filepath.WalkDir(root, func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.Name() != "go.mod" {
			return err
		}
		dir, err := filepath.Rel(root, filepath.Dir(file))
		if err != nil || dir == "." {
			return err
		}
		inner++
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		dir = filepath.ToSlash(dir)
		require.Contains(t, string(text), "module "+path.Join(module, dir)+"\n")
		up := strings.TrimSuffix(strings.Repeat("../", strings.Count(dir, "/")+1), "/")
		require.Regexp(t, `(?m)\b`+regexp.QuoteMeta(module+" => "+up)+`/?$`, string(text), "%s must take the library beside it", file)
		return nil
	}))
	require.Positive(t, inner)
}
