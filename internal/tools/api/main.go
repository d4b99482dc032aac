// Api records the exported API of every public package, one file a package:
//
//	go run ./internal/tools/api    # or: make api
//
// A test compares, so that a change of the API is seen in the commit that makes it.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/build"
	"go/doc"
	"go/format"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// folder is where the API is recorded, below the repository.
const folder = "docs/api"

func main() {
	root := flag.String("root", ".", "the repository")
	flag.Parse()
	if err := rewrite(*root); err != nil {
		fmt.Fprintf(os.Stderr, "api: %v\n", err)
		os.Exit(1)
	}
}

// front are the packages that a user meets first. A test limits the sum of their exported names.
var front = []string{"middleware", "topology"}

// mostNames is that limit.
const mostNames = 120

// totals is the file with the sum.
const totals = "total.txt"

// total returns the text of the file with the sum, and the sum.
func total(counts map[string]names) (text string, sum int) {
	for _, pkg := range front {
		text += fmt.Sprintf("%s: %v\n", pkg, counts[pkg])
		sum += counts[pkg].total()
	}
	return text + fmt.Sprintf("together: %d, at most %d\n", sum, mostNames), sum
}

// rewrite replaces the recorded API.
func rewrite(root string) error {
	packages, err := public(root)
	if err != nil {
		return err
	}
	if err := os.RemoveAll(filepath.Join(root, folder)); err != nil {
		return err
	}
	counts := map[string]names{}
	for _, pkg := range packages {
		text, count, err := describe(root, pkg)
		if err != nil {
			return err
		}
		counts[pkg] = count
		file := record(root, pkg)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			return err
		}
	}
	text, _ := total(counts)
	return os.WriteFile(filepath.Join(root, folder, totals), []byte(text), 0o644)
}

// record returns the path of a package's file.
func record(root, pkg string) string {
	return filepath.Join(root, folder, filepath.FromSlash(pkg)+".txt")
}

// public returns the folders of the packages that others can import, in any module
// of the repository.
func public(root string) ([]string, error) {
	var packages []string
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return err
		}
		pkg, err := filepath.Rel(root, path)
		if err != nil || pkg == "." {
			return err
		}
		if name := entry.Name(); name == "internal" || name == "testdata" || name == "examples" ||
			strings.HasPrefix(name, ".") {
			return filepath.SkipDir
		}
		found, err := build.ImportDir(path, 0)
		if none := new(build.NoGoError); errors.As(err, &none) {
			return nil
		}
		if err == nil && found.Name != "main" {
			packages = append(packages, filepath.ToSlash(pkg))
		}
		return err
	})
	slices.Sort(packages)
	return packages, err
}

// names counts the exported declarations of a package. Methods and fields are no names of it.
type names struct{ types, functions, constants, variables int }

func (n names) total() int { return n.types + n.functions + n.constants + n.variables }

func (n names) String() string {
	return fmt.Sprintf("%d exported names: %d types, %d functions, %d constants, %d variables",
		n.total(), n.types, n.functions, n.constants, n.variables)
}

// describe returns every exported declaration of a package without its comment, sorted, each
// after an empty line, below a line that counts them.
func describe(root, pkg string) (string, names, error) {
	dir := filepath.Join(root, filepath.FromSlash(pkg))
	found, err := build.ImportDir(dir, 0)
	if err != nil {
		return "", names{}, err
	}
	files := token.NewFileSet()
	var parsed []*ast.File
	for _, name := range found.GoFiles {
		// Without the comments, because no user's program depends on them.
		file, err := parser.ParseFile(files, filepath.Join(dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return "", names{}, err
		}
		parsed = append(parsed, file)
	}
	api, err := doc.NewFromFiles(files, parsed, pkg)
	if err != nil {
		return "", names{}, err
	}
	d := description{files: files}
	d.values(api.Consts, api.Vars)
	d.functions(api.Funcs)
	for _, t := range api.Types {
		d.names.types++
		d.declaration(t.Decl)
		d.values(t.Consts, t.Vars)
		d.functions(t.Funcs)
		d.funcs(t.Methods)
	}
	if d.err != nil {
		return "", names{}, fmt.Errorf("describe %s: %w", pkg, d.err)
	}
	slices.Sort(d.lines)
	text := fmt.Sprintf("package %s // %s\n\n// %s\n\n%s\n",
		found.Name, pkg, d.names, strings.Join(d.lines, "\n\n"))
	return text, d.names, nil
}

// description collects declarations.
type description struct {
	files *token.FileSet
	lines []string
	names names
	err   error
}

// values adds each constant and variable by itself, because their groups mean nothing to a user.
func (d *description) values(groups ...[]*doc.Value) {
	for _, value := range slices.Concat(groups...) {
		for _, name := range value.Names {
			switch {
			case !token.IsExported(name):
			case value.Decl.Tok == token.CONST:
				d.names.constants++
			default:
				d.names.variables++
			}
		}
		for _, spec := range value.Decl.Specs {
			d.declaration(&ast.GenDecl{
				Tok: value.Decl.Tok, Specs: []ast.Spec{withoutValue(value.Decl.Tok, spec)},
			})
		}
	}
}

// withoutValue leaves out the initial value of a variable, except an error: people see its text. A
// constant keeps its value, because it is compiled into its users.
func withoutValue(kind token.Token, spec ast.Spec) ast.Spec {
	value, ok := spec.(*ast.ValueSpec)
	if !ok || kind != token.VAR || value.Type == nil {
		return spec
	}
	return &ast.ValueSpec{Names: value.Names, Type: value.Type}
}

func (d *description) functions(list []*doc.Func) {
	d.names.functions += len(list)
	d.funcs(list)
}

func (d *description) funcs(list []*doc.Func) {
	for _, f := range list {
		declared := *f.Decl
		declared.Body = nil
		d.declaration(&declared)
	}
}

func (d *description) declaration(node ast.Node) {
	var text bytes.Buffer
	if err := format.Node(&text, d.files, node); err != nil {
		d.err = errors.Join(d.err, err)
		return
	}
	// The layout of a struct in its file means nothing to a user.
	var lines []string
	for line := range strings.Lines(text.String()) {
		if line = strings.TrimRight(line, " \n"); line != "" {
			lines = append(lines, line)
		}
	}
	d.lines = append(d.lines, strings.Join(lines, "\n"))
}
