package house_test

import (
	"go/ast"
	"go/build"
	"go/doc"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
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

// library lists the packages that each package for users may import, beside the standard library.
// "x/…" is x and all packages below it.
var library = map[string][]string{
	"backoff":           {module + "/internal/nils", cenkalti4},
	"middleware/header": {module + "/internal/excerpt", module + "/internal/keys"},
	"middleware": {
		module + "/backoff", module + "/middleware/header", module + "/internal/clock",
		module + "/internal/keys",
		module + "/internal/excerpt", module + "/internal/hold", module + "/internal/nils",
		module + "/internal/observe", module + "/internal/seam",
		watermill + "/…", cenkalti4, cenkalti5,
	},
	"middleware/adaptive": {
		module + "/backoff", module + "/middleware", module + "/middleware/header",
		module + "/internal/keys",
	},
	"middleware/budget": {
		module + "/backoff", module + "/middleware/header", module + "/internal/nils",
		module + "/internal/keys",
		module + "/internal/seam", watermill + "/message",
	},
	"middleware/outage": {
		module + "/backoff", module + "/middleware/header", module + "/internal/brake",
		module + "/internal/keys",
		module + "/internal/fleet", module + "/internal/seam", watermill,
	},
	"middleware/middlewaretest": {
		module + "/middleware/header", module + "/middleware", module + "/internal/ladder",
		module + "/internal/keys",
		watermill + "/…",
	},
	"middleware/metrics": {
		module + "/internal/nils",
		module + "/middleware/header", module + "/middleware", module + "/topology",
		module + "/internal/keys",
		module + "/topology/operate", prometheus,
	},
	"middleware/tracing": {
		module + "/middleware/header", module + "/middleware", watermill + "/…", opentelemetry + "/…",
		module + "/internal/keys",
	},
	"topology": {
		module + "/backoff", module + "/middleware", module + "/middleware/header",
		module + "/internal/keys",
		module + "/internal/excerpt", module + "/internal/audit", module + "/internal/consumer",
		module + "/internal/ladder", module + "/internal/link", module + "/internal/nils",
		module + "/internal/observe", module + "/internal/publisher", module + "/internal/seam",
		module + "/internal/wire", module + "/topology/wait", watermill + "/…", wamqp, amqp091,
	},
	"topology/inorder": {
		module + "/internal/consumer", module + "/internal/inorder", module + "/internal/order",
		module + "/internal/seam", module + "/topology", watermill + "/message", amqp091,
	},
	"topology/native": {
		module + "/internal/audit", module + "/internal/consumer", module + "/internal/ladder",
		module + "/internal/native", module + "/internal/seam", module + "/topology",
	},
	"topology/management": {
		module + "/internal/audit", module + "/internal/link", module + "/internal/management",
		module + "/internal/policies",
	},
	"topology/wait":   {amqp091},
	"topology/amqpv3": {module + "/topology", watermill, wamqp, wamqp3, amqp091},
	"topology/topologytest": {
		"testing", module + "/backoff", module + "/middleware", module + "/middleware/header",
		module + "/internal/keys",
		module + "/topology", module + "/internal/ladder", module + "/internal/testing/passage",
		watermill + "/…", wamqp, amqp091,
	},
	"topology/operate": {
		module + "/middleware", module + "/middleware/header", module + "/topology",
		module + "/internal/keys",
		module + "/internal/audit", module + "/internal/excerpt", module + "/internal/fleet",
		module + "/internal/link", module + "/internal/management", module + "/internal/order",
		module + "/internal/policies", module + "/internal/publisher", module + "/internal/scan",
		module + "/internal/wire", watermill, watermill + "/message/router/middleware", amqp091,
	},
	"cmd/millpond/page": {
		module + "/middleware/header", module + "/topology", module + "/topology/operate",
		module + "/internal/keys",
		module + "/topology/operate/doctor",
		module + "/cmd/millpond/internal/lettertext", module + "/cmd/millpond/internal/overview",
		module + "/cmd/millpond/page/internal/job",
		module + "/internal/management", amqp091,
	},
	"topology/operate/doctor": {
		module + "/topology", module + "/topology/operate", module + "/internal/audit",
		module + "/internal/link", module + "/internal/management", watermill, amqp091,
	},
}

// internals does the same for the packages behind them. None of them may import a package in front
// of it, or a tool of tests.
var internals = map[string][]string{
	"internal/audit": {module + "/internal/link", amqp091},
	"internal/policies": {
		module + "/internal/audit", module + "/internal/excerpt", module + "/internal/link",
		module + "/internal/management", amqp091,
	},
	"internal/consumer": {
		module + "/backoff", module + "/middleware", module + "/middleware/header",
		module + "/internal/keys",
		module + "/internal/audit", module + "/internal/clock", module + "/internal/hold",
		module + "/internal/link", module + "/internal/observe", module + "/internal/publisher",
		module + "/internal/seam", module + "/internal/wire", module + "/topology/wait",
		watermill + "/…", amqp091,
	},
	"internal/inorder": {
		module + "/internal/clock", module + "/internal/consumer", module + "/internal/link",
		module + "/internal/order", module + "/internal/wire", module + "/middleware/header",
		module + "/internal/keys",
		watermill + "/…", amqp091,
	},
	"internal/native": {module + "/internal/consumer", watermill},
	"internal/seam": {
		module + "/middleware/header", module + "/internal/link", watermill + "/…",
		module + "/internal/keys",
	},
	"internal/brake": {
		module + "/middleware/header", module + "/internal/keys", module + "/internal/seam",
	},
	"internal/order": {},
	"internal/fleet": {
		module + "/middleware/header", module + "/internal/brake", module + "/internal/link",
		module + "/internal/keys",
		module + "/internal/seam", watermill + "/…", amqp091,
	},
	"internal/clock":      nil,
	"internal/keys":       nil,
	"internal/hold":       {module + "/internal/clock"},
	"internal/excerpt":    nil,
	"internal/ladder":     nil,
	"internal/nils":       nil,
	"internal/observe":    nil,
	"internal/management": nil,
	"internal/wire":       {amqp091},
	"internal/scan":       {module + "/internal/wire", amqp091},
	"internal/link":       {module + "/internal/wire", watermill, amqp091},
	"internal/publisher":  {module + "/internal/link", module + "/internal/wire", amqp091},
	// topologytest is for tests.
	"internal/testing/frame": nil,
	"internal/testing/passage": {
		module + "/internal/audit", module + "/internal/testing/frame", module + "/middleware/header",
		module + "/internal/keys",
		module + "/topology", wamqp, amqp091,
	},
}

// alone are packages that only one file of a package imports, so that another version of them needs
// only a second small file.
var alone = []struct{ pkg, imported, file string }{
	{"topology", wamqp, "watermillamqp.go"},
	{"backoff", cenkalti4, "fromcenkalti.go"},
	{"middleware", cenkalti4, "cenkalti.go"},
	{"middleware", cenkalti5, "cenkalti.go"},
}

// imports returns the imports of each file of a package on every system, without tests.
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
						"%s/%s imports %s. Imports run one way: topology, middleware, backoff. "+
							"If it is meant: the rules in this test, and docs/architecture.md",
						pkg, file, imported)
				}
			}
		}
	}
}

// A package without a rule could import anything.
func TestEveryPackageOfTheLibraryHasARule(t *testing.T) {
	t.Parallel()
	for _, pkg := range packages(t) {
		require.Contains(t, library, pkg, "a package for users without a rule for its imports")
	}
	// Every package below internal in a rule has a rule itself.
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

// packages returns the packages that users can import, in all modules of the repository.
func packages(t *testing.T) []string {
	t.Helper()
	var found []string
	require.NoError(t, filepath.WalkDir(root, func(dir string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() || dir == root {
			return err
		}
		name := entry.Name()
		inside := []string{"internal", "examples", "testdata", "docs"}
		if slices.Contains(inside, name) || strings.HasPrefix(name, ".") {
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

// The module that every user downloads knows none of the modules inside it, and its go.mod
// has no requirement that only they need. None has a replace line, because `go install`
// of a version refuses one: go.work joins them in a checkout.
func TestInnerModulesStayOutside(t *testing.T) {
	t.Parallel()
	outer, err := os.ReadFile(filepath.Join(root, "go.mod"))
	require.NoError(t, err)
	work, err := os.ReadFile(filepath.Join(root, "go.work"))
	require.NoError(t, err)
	for _, foreign := range []string{
		"github.com/prometheus", opentelemetry, "github.com/urfave", module + "/",
	} {
		require.NotContains(t, string(outer), foreign)
	}
	inner := 0
	require.NoError(t, filepath.WalkDir(root, func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.Name() != "go.mod" {
			return err
		}
		dir, err := filepath.Rel(root, filepath.Dir(file))
		require.NoError(t, err)
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		require.NotContains(t, string(text), "\nreplace ", dir)
		if dir == "." {
			return nil
		}
		inner++
		dir = filepath.ToSlash(dir)
		require.Contains(t, string(text), "module "+path.Join(module, dir)+"\n")
		require.Contains(t, string(text), "\t"+module+" v", "%s requires the library", dir)
		require.Contains(t, string(work), "\t./"+dir+"\n")
		return nil
	}))
	require.Positive(t, inner)
}

// withoutOutput need a broker: their Example is compiled and not run.
var withoutOutput = []string{"topology.Received", "amqpv3.Open", "topologytest.Run"}

// Every constructor, and every error that a caller must tell apart, is in the code of an Example
// that runs.
func TestConstructorsAndErrorsHaveExamples(t *testing.T) {
	t.Parallel()
	for _, pkg := range packages(t) {
		name := filepath.Base(pkg)
		files := token.NewFileSet()
		var code []*ast.File
		shown := map[string]bool{}
		for _, file := range parse(t, files, pkg) {
			if !strings.HasSuffix(files.Position(file.Package).Filename, "_test.go") {
				code = append(code, file)
				continue
			}
			for _, example := range doc.Examples(file) {
				if example.Output == "" && !example.EmptyOutput {
					continue
				}
				ast.Inspect(example.Code, func(n ast.Node) bool {
					if selector, ok := n.(*ast.SelectorExpr); ok {
						if of, ok := selector.X.(*ast.Ident); ok && of.Name == name {
							shown[name+"."+selector.Sel.Name] = true
						}
					}
					return true
				})
			}
		}
		api, err := doc.NewFromFiles(files, code, pkg)
		require.NoError(t, err)
		for _, must := range toShow(api) {
			if must = name + "." + must; !slices.Contains(withoutOutput, must) {
				assert.True(t, shown[must], "%s is in no Example with an output", must)
			}
		}
	}
}

func parse(t *testing.T, files *token.FileSet, pkg string) []*ast.File {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(root, pkg, "*.go"))
	require.NoError(t, err)
	var parsed []*ast.File
	for _, path := range paths {
		file, err := parser.ParseFile(files, path, nil, parser.ParseComments)
		require.NoError(t, err)
		parsed = append(parsed, file)
	}
	return parsed
}

// toShow returns the names that need an Example: functions, errors, and types that are used as
// literals, such as policies and strategies. Options and functions that ask a broker need none.
func toShow(api *doc.Package) []string {
	var names []string
	funcs := func(list []*doc.Func) {
		for _, f := range list {
			if !asksBroker(f) {
				names = append(names, f.Name)
			}
		}
	}
	vars := func(list []*doc.Value) {
		for _, v := range list {
			for _, name := range v.Names {
				if ast.IsExported(name) && strings.HasPrefix(name, "Err") {
					names = append(names, name)
				}
			}
		}
	}
	funcs(api.Funcs)
	vars(api.Vars)
	for _, t := range api.Types {
		if !strings.HasSuffix(t.Name, "Option") {
			funcs(t.Funcs)
		}
		vars(t.Vars)
		byValue := func(method string) bool {
			return slices.ContainsFunc(t.Methods, func(m *doc.Func) bool {
				return m.Name == method && !strings.HasPrefix(m.Recv, "*")
			})
		}
		if strings.HasSuffix(t.Name, "Error") && t.Name != "AttemptError" || byValue("Delay") ||
			byValue("Plan") {
			names = append(names, t.Name)
		}
	}
	return names
}

// asksBroker reports whether a function takes a *topology.Client.
func asksBroker(f *doc.Func) bool {
	return slices.ContainsFunc(f.Decl.Type.Params.List, func(parameter *ast.Field) bool {
		pointer, ok := parameter.Type.(*ast.StarExpr)
		if !ok {
			return false
		}
		selector, ok := pointer.X.(*ast.SelectorExpr)
		return ok && selector.Sel.Name == "Client"
	})
}

// Every exported name is shown in an Example of any package.
func TestEveryExportedNameIsShown(t *testing.T) {
	t.Parallel()
	all, shown := packages(t), map[string]bool{}
	files, code := token.NewFileSet(), map[string][]*ast.File{}
	for _, pkg := range all {
		var tests []*ast.File
		for _, file := range parse(t, files, pkg) {
			if strings.HasSuffix(files.Position(file.Package).Filename, "_test.go") {
				tests = append(tests, file)
			} else {
				code[pkg] = append(code[pkg], file)
			}
		}
		for _, example := range doc.Examples(tests...) {
			ast.Inspect(example.Code, func(n ast.Node) bool {
				if selector, ok := n.(*ast.SelectorExpr); ok {
					if of, ok := selector.X.(*ast.Ident); ok {
						shown[of.Name+"."+selector.Sel.Name] = true
					}
				}
				return true
			})
		}
	}
	for pkg, files := range code {
		for _, file := range files {
			for name, object := range file.Scope.Objects {
				if ast.IsExported(name) && object.Kind != ast.Bad {
					in := filepath.Base(pkg)
					if pkg == "topology/wait" { // programs use its types by their names in topology
						in = "topology"
					}
					assert.True(t, shown[in+"."+name], "%s.%s is in no Example", pkg, name)
				}
			}
		}
	}
}
