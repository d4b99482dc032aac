// Api writes down the exported API of every public package, one file a package:
//
//	go run ./internal/tools/api    # or: make api
//
// A test compares, so that no name comes, goes or changes without being seen in
// the change itself.
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

// rewrite replaces all that is recorded.
func rewrite(root string) error {
	packages, err := public(root)
	if err != nil {
		return err
	}
	if err := os.RemoveAll(filepath.Join(root, folder)); err != nil {
		return err
	}
	for _, pkg := range packages {
		text, err := describe(root, pkg)
		if err != nil {
			return err
		}
		file := record(root, pkg)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// record is the file of a package.
func record(root, pkg string) string {
	return filepath.Join(root, folder, filepath.FromSlash(pkg)+".txt")
}
