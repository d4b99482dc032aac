package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const root = "../../.."

func TestRecordedAPIIsThatOfTheCode(t *testing.T) {
	t.Parallel()
	packages, err := public(root)
	require.NoError(t, err)
	recorded := map[string]bool{}
	require.NoError(t, filepath.WalkDir(filepath.Join(root, folder),
		func(path string, entry fs.DirEntry, err error) error {
			if err == nil && !entry.IsDir() {
				recorded[path] = true
			}
			return err
		}))
	counts := map[string]names{}
	for _, pkg := range packages {
		file := record(root, pkg)
		require.True(t, recorded[file], "%s is not recorded: make api", pkg)
		delete(recorded, file)
		want, count, err := describe(root, pkg)
		require.NoError(t, err)
		counts[pkg] = count
		found, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Empty(t, changes(string(found), want), "the exported API of %s has changed. "+
			"If that is meant: make api, and a line in CHANGELOG.md", pkg)
		require.Len(t, found, len(want), "%s is recorded in another order: make api", pkg)
	}
	want, _ := total(counts)
	file := filepath.Join(root, folder, totals)
	found, err := os.ReadFile(file)
	require.NoError(t, err, "the total is not recorded: make api")
	require.Equal(t, want, string(found), "the total has changed: make api")
	delete(recorded, file)
	require.Empty(t, recorded, "recorded for packages that are gone: make api")
}

// changes returns the declarations that only one of two texts has.
func changes(recorded, now string) (found []string) {
	was, is := strings.Split(recorded, "\n\n"), strings.Split(now, "\n\n")
	for _, line := range was {
		if !slices.Contains(is, line) {
			found = append(found, "- "+line)
		}
	}
	for _, line := range is {
		if !slices.Contains(was, line) {
			found = append(found, "+ "+line)
		}
	}
	return found
}

// A user who only retries should not have to read many names.
func TestExportedNamesAreFew(t *testing.T) {
	t.Parallel()
	counts := map[string]names{}
	for _, pkg := range front {
		_, count, err := describe(root, pkg)
		require.NoError(t, err)
		counts[pkg] = count
	}
	text, sum := total(counts)
	require.LessOrEqual(t, sum, mostNames, text)
	t.Log(text)
}

func TestExportedDeclarationsAreDescribed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(path, text string) {
		t.Helper()
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, path)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, path), []byte(text), 0o644))
	}
	write("pond/pond.go", `// Package pond holds.
package pond

import "errors"

// Depth is how deep.
const (
	Depth = 3
	width = 4
)

var ErrDry = errors.New("dry") // nothing in it

// Pond is one.
type Pond struct {
	// Level is how full.
	Level int

	drain bool
}

func (p *Pond) Fill(by int) error { p.drain = by < 0; return nil }

func (p *Pond) empty() {}

func New() *Pond { return &Pond{} }

func fill() {}
`)
	write("pond/pond_test.go", "package pond\n\nfunc Exported() {}\n")
	write("pond/internal/mud/mud.go", "package mud\n\nfunc Exported() {}\n")
	write("cmd/mill/main.go", "package main\n\nfunc Exported() {}\n")
	write("examples/sample/sample.go", "package sample\n")

	packages, err := public(dir)
	require.NoError(t, err)
	require.Equal(t, []string{"pond"}, packages)
	text, count, err := describe(dir, "pond")
	require.NoError(t, err)
	require.Equal(t, names{types: 1, functions: 1, constants: 1, variables: 1}, count)
	require.Equal(t, strings.TrimPrefix(`
package pond // pond

// 4 exported names: 1 types, 1 functions, 1 constants, 1 variables

const Depth = 3

func (p *Pond) Fill(by int) error

func New() *Pond

type Pond struct {
	Level int
	// contains filtered or unexported fields
}

var ErrDry = errors.New("dry")
`, "\n"), text)

	require.NoError(t, rewrite(dir))
	write(folder+"/stale.txt", "old")
	require.NoError(t, rewrite(dir))
	recorded, err := filepath.Glob(filepath.Join(dir, folder, "*"))
	require.NoError(t, err)
	total := filepath.Join(dir, folder, totals)
	require.Equal(t, []string{record(dir, "pond"), total}, recorded)
}
