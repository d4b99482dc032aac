// Api records the exported API of every public package, one file a package:
//
//	go run ./internal/tools/api    # or: make api
//
// A test compares, so that a change of the API is seen in the commit that makes it.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
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
