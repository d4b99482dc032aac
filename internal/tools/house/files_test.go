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
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	root   = "../../.."
	module = "github.com/millpond-go/millpond"
)

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
		"github.com/prometheus", "go.opentelemetry.io/otel", "github.com/urfave", module + "/",
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

// front are the packages that a program with retries names, and mostNames is the most exported
// names that they have together: a user who only retries should not have to read many.
var front = []string{"backoff", "middleware", "middleware/header", "topology"}

const mostNames = 185

func TestExportedNamesAreFew(t *testing.T) {
	t.Parallel()
	files, sum := token.NewFileSet(), 0
	for _, pkg := range front {
		count := 0
		for _, file := range parse(t, files, pkg) {
			if strings.HasSuffix(files.Position(file.Package).Filename, "_test.go") {
				continue
			}
			for name, object := range file.Scope.Objects {
				if ast.IsExported(name) && object.Kind != ast.Bad {
					count++
				}
			}
		}
		t.Logf("%s: %d", pkg, count)
		require.Positive(t, count, pkg)
		sum += count
	}
	require.LessOrEqual(t, sum, mostNames)
}

// withoutOutput need a broker: their Example is compiled and not run.
var withoutOutput = []string{
	"topology.Received", "amqpv3.Open", "amqpv3.OpenClient", "topologytest.Run",
}

// Every exported name is in the code of an Example of any package. A constructor, and an error that
// a caller must tell apart, is in one of its own package that runs.
func TestExportedNamesHaveExamples(t *testing.T) {
	t.Parallel()
	shown, run := map[string]bool{}, map[string]bool{}
	files, code := token.NewFileSet(), map[string][]*ast.File{}
	for _, pkg := range packages(t) {
		var tests []*ast.File
		for _, file := range parse(t, files, pkg) {
			if strings.HasSuffix(files.Position(file.Package).Filename, "_test.go") {
				tests = append(tests, file)
			} else {
				code[pkg] = append(code[pkg], file)
			}
		}
		for _, example := range doc.Examples(tests...) {
			runs := example.Output != "" || example.EmptyOutput
			ast.Inspect(example.Code, func(n ast.Node) bool {
				if selector, ok := n.(*ast.SelectorExpr); ok {
					if of, ok := selector.X.(*ast.Ident); ok {
						name := of.Name + "." + selector.Sel.Name
						shown[name] = true
						run[name] = run[name] || runs && of.Name == filepath.Base(pkg)
					}
				}
				return true
			})
		}
	}
	for pkg, parsed := range code {
		in := filepath.Base(pkg)
		for _, file := range parsed {
			for name, object := range file.Scope.Objects {
				if ast.IsExported(name) && object.Kind != ast.Bad {
					of := in
					if pkg == "topology/wait" { // programs use its types by their names in topology
						of = "topology"
					}
					assert.True(t, shown[of+"."+name], "%s.%s is in no Example", pkg, name)
				}
			}
		}
		api, err := doc.NewFromFiles(files, parsed, pkg)
		require.NoError(t, err)
		for _, name := range toShow(api) {
			if name = in + "." + name; !slices.Contains(withoutOutput, name) {
				assert.True(t, run[name], "%s is in no Example with an output", name)
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
