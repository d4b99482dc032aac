package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// planting replaces a passage of one file of the library. The passage must be there once.
type planting struct{ file, old, new string }

// bugs are mistakes in the library that the judge must find. The instances run a program that is
// built with them by `go build -overlay`, so that the checkout stays as it is.
var bugs = map[string][]planting{}

func bugNames() string {
	var all []string
	for name := range bugs {
		all = append(all, name)
	}
	return strings.Join(all, ", ")
}

// plant builds this program with a bug, and returns its file.
func plant(ctx context.Context, bug string) (program string, remove func() error, err error) {
	plantings, ok := bugs[bug]
	if !ok {
		return "", nil, fmt.Errorf("bug %q is unknown: use one of %s", bug, bugNames())
	}
	dir, err := os.MkdirTemp("", "millpond-order-bug-")
	if err != nil {
		return "", nil, err
	}
	remove = func() error { return os.RemoveAll(dir) }
	if program, err = build(ctx, dir, plantings); err != nil {
		return "", nil, errors.Join(err, remove())
	}
	return program, remove, nil
}

func build(ctx context.Context, dir string, plantings []planting) (string, error) {
	found, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}",
		"github.com/millpond-go/millpond").Output()
	if err != nil {
		return "", fmt.Errorf("find the checkout: %w", err)
	}
	root := strings.TrimSpace(string(found))
	replaced := map[string]string{}
	for i, p := range plantings {
		file := filepath.Join(root, filepath.FromSlash(p.file))
		source, err := os.ReadFile(cmp.Or(replaced[file], file))
		if err != nil {
			return "", err
		}
		if count := strings.Count(string(source), p.old); count != 1 {
			return "", fmt.Errorf("%s has %d times the passage %q: want it once", p.file, count, p.old)
		}
		changed := filepath.Join(dir, fmt.Sprint(i, ".go"))
		text := strings.Replace(string(source), p.old, p.new, 1)
		if err := os.WriteFile(changed, []byte(text), 0o600); err != nil {
			return "", err
		}
		replaced[file] = changed
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replaced})
	if err != nil {
		return "", err
	}
	list, program := filepath.Join(dir, "overlay.json"), filepath.Join(dir, "instance")
	if err := os.WriteFile(list, overlay, 0o600); err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-overlay", list, "-o", program,
		"./internal/testing/inorder")
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build with the bug: %w\n%s", err, out)
	}
	return program, nil
}
