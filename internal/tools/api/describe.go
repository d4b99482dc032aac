package main

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/build"
	"go/doc"
	"go/format"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
)

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
		if name := entry.Name(); name == "internal" || name == "testdata" || name == "examples" || strings.HasPrefix(name, ".") {
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

// describe returns every exported declaration of a package without its comment,
// sorted, each after an empty line.
func describe(root, pkg string) (string, error) {
	dir := filepath.Join(root, filepath.FromSlash(pkg))
	found, err := build.ImportDir(dir, 0)
	if err != nil {
		return "", err
	}
	files := token.NewFileSet()
	var parsed []*ast.File
	for _, name := range found.GoFiles {
		// Comments are left out, for they are no part of what compiles.
		file, err := parser.ParseFile(files, filepath.Join(dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return "", err
		}
		parsed = append(parsed, file)
	}
	api, err := doc.NewFromFiles(files, parsed, pkg)
	if err != nil {
		return "", err
	}
	d := description{files: files}
	d.values(api.Consts, api.Vars)
	d.funcs(api.Funcs)
	for _, t := range api.Types {
		d.declaration(t.Decl)
		d.values(t.Consts, t.Vars)
		d.funcs(t.Funcs, t.Methods)
	}
	if d.err != nil {
		return "", fmt.Errorf("describe %s: %w", pkg, d.err)
	}
	slices.Sort(d.lines)
	return fmt.Sprintf("package %s // %s\n\n%s\n", found.Name, pkg, strings.Join(d.lines, "\n\n")), nil
}

// description collects declarations.
type description struct {
	files *token.FileSet
	lines []string
	err   error
}

// values adds each constant and variable by itself, for how they are grouped means
// nothing to whoever uses them.
func (d *description) values(groups ...[]*doc.Value) {
	for _, group := range groups {
		for _, value := range group {
			for _, spec := range value.Decl.Specs {
				d.declaration(&ast.GenDecl{Tok: value.Decl.Tok, Specs: []ast.Spec{withoutValue(value.Decl.Tok, spec)}})
			}
		}
	}
}

// withoutValue leaves out what a variable begins as, but for errors, whose text
// is seen by people. A constant keeps its value: it is compiled into its users.
func withoutValue(kind token.Token, spec ast.Spec) ast.Spec {
	value, ok := spec.(*ast.ValueSpec)
	if !ok || kind != token.VAR || value.Type == nil {
		return spec
	}
	return &ast.ValueSpec{Names: value.Names, Type: value.Type}
}

func (d *description) funcs(groups ...[]*doc.Func) {
	for _, group := range groups {
		for _, f := range group {
			declared := *f.Decl
			declared.Body = nil
			d.declaration(&declared)
		}
	}
}

func (d *description) declaration(node ast.Node) {
	var text bytes.Buffer
	if err := format.Node(&text, d.files, node); err != nil {
		d.err = errors.Join(d.err, err)
		return
	}
	// What a struct is laid out like in its file, comments between its fields for
	// one, means nothing either.
	var lines []string
	for line := range strings.Lines(text.String()) {
		if line = strings.TrimRight(line, " \n"); line != "" {
			lines = append(lines, line)
		}
	}
	d.lines = append(d.lines, strings.Join(lines, "\n"))
}
