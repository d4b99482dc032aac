package house_test

import (
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// withoutOutput need a broker: their Example is compiled and not run.
var withoutOutput = []string{"topology.Received", "amqpv3.Open"}

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
	for _, pkg := range all {
		for _, example := range doc.Examples(parseOnly(t, pkg, true)...) {
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
	for _, pkg := range all {
		for _, file := range parseOnly(t, pkg, false) {
			for name, object := range file.Scope.Objects {
				if ast.IsExported(name) && object.Kind != ast.Bad {
					assert.True(t, shown[filepath.Base(pkg)+"."+name], "%s.%s is in no Example", pkg, name)
				}
			}
		}
	}
}

// parseOnly parses the test files of a package, or its other files.
func parseOnly(t *testing.T, pkg string, tests bool) []*ast.File {
	t.Helper()
	files := token.NewFileSet()
	return slices.DeleteFunc(parse(t, files, pkg), func(file *ast.File) bool {
		return strings.HasSuffix(files.Position(file.Package).Filename, "_test.go") != tests
	})
}
