// Model searches the states of handover.pml with spin: first of the protocol as it is, and then
// with one planted defect after the other, which the search must find. `make model` runs it:
//
//	go run ./internal/model
//
// It prints the states of each search and the length of each counterexample. It fails if a promise
// is broken, a defect is not found, or a search has so few states that the model cannot have
// moved.
package main

import (
	_ "embed"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

//go:embed handover.pml
var source []byte

// search is one run of spin.
type search struct {
	name   string
	model  string // macros of the model
	pan    string // macros of the compiled search
	run    string // arguments of the compiled search
	states int    // the fewest that are plausible
	// partial says that the states do not fit: the search visits some of them, to a depth and for
	// a time.
	partial bool
}

const (
	exact    = "-O1 -DSAFETY -DCOLLAPSE"
	liveness = "-O1 -DCOLLAPSE"
	sampled  = "-O1 -DSAFETY -DBITSTATE -DT_RAND -DP_RAND" // a part of the states, at random
	shortest = "-O0 -DSAFETY -DBFS"                        // a counterexample of the fewest steps
)

// result is the end of a search.
type result struct {
	states, errors, depth int
	complete              bool
	text                  string
}

var (
	stored  = regexp.MustCompile(`(\d+)(?:e\+\d+)? states, stored`)
	errored = regexp.MustCompile(`errors: (\d+)`)
	depth   = regexp.MustCompile(`at depth (\d+)`)
)

func main() {
	only := flag.String("only", "", "plant this defect alone")
	flag.Parse()
	if err := run(*only); err != nil {
		fmt.Fprintln(os.Stderr, "model:", err)
		os.Exit(1)
	}
}

func run(only string) error {
	dir, err := os.MkdirTemp("", "millpond-model-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if err := write(dir); err != nil {
		return err
	}
	if only == "" {
		if err := prove(dir); err != nil {
			return err
		}
	}
	return plant(dir, only)
}

// write puts the model into dir.
func write(dir string) error {
	return os.WriteFile(filepath.Join(dir, "handover.pml"), source, 0o600)
}

// prove searches the model as it is.
func prove(dir string) error {
	total := 0
	for _, s := range searches {
		began := time.Now()
		r, err := s.do(dir)
		switch {
		case err != nil:
			return fmt.Errorf("%s: %w", s.name, err)
		case r.errors > 0:
			return fmt.Errorf("%s: a promise is broken:\n%s", s.name, r.text)
		case !r.complete && !s.partial:
			return fmt.Errorf("%s: the search did not end:\n%s", s.name, r.text)
		case r.states < s.states:
			return fmt.Errorf("%s: %d states, and at least %d are plausible", s.name, r.states, s.states)
		}
		total += r.states
		coverage := "all states"
		if s.partial {
			coverage = "a part of all states"
		}
		fmt.Printf("%-66s %10d states  no errors  %s  %.0fs\n", s.name, r.states, coverage,
			time.Since(began).Seconds())
	}
	fmt.Printf("%d states, no errors\n", total)
	return nil
}

// plant searches the model with each defect.
func plant(dir, only string) error {
	found, tried := 0, 0
	for _, d := range defects {
		if only != "" && d.macro != only {
			continue
		}
		tried++
		r, err := d.do(dir)
		if err != nil {
			return fmt.Errorf("%s: %w", d.macro, err)
		}
		if r.errors == 0 {
			fmt.Printf("NOT FOUND  %s\n", d.what)
			continue
		}
		found++
		fmt.Printf("found in %3d steps  %s\n", r.depth, d.what)
	}
	fmt.Printf("%d of %d mutations found\n", found, tried)
	if found < tried || tried == 0 {
		return fmt.Errorf("%d mutations are not found", tried-found)
	}
	return nil
}

// do translates the model, compiles it and runs it.
func (s search) do(dir string) (result, error) {
	args := append(strings.Fields(s.model), "-a", "handover.pml")
	if out, err := command(dir, "spin", args...).CombinedOutput(); err != nil {
		return result{}, fmt.Errorf("spin: %w\n%s", err, out)
	}
	args = append(strings.Fields(s.pan), "-w", "-DNOFAIR", "-DMEMLIM=6000", "-o", "pan", "pan.c")
	if out, err := command(dir, "gcc", args...).CombinedOutput(); err != nil {
		return result{}, fmt.Errorf("gcc: %w\n%s", err, out)
	}
	out, err := command(dir, "./pan", strings.Fields(s.run)...).CombinedOutput()
	if err != nil {
		return result{}, fmt.Errorf("pan: %w\n%s", err, out)
	}
	return parse(string(out))
}

func command(dir, name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	return cmd
}

// parse reads the output of a search.
func parse(text string) (result, error) {
	r := result{text: text}
	r.complete = !strings.Contains(text, "Search not completed") &&
		!strings.Contains(text, "max search depth too small")
	number := func(e *regexp.Regexp) (n int) {
		if m := e.FindStringSubmatch(text); m != nil {
			n, _ = strconv.Atoi(m[1])
		}
		return n
	}
	r.states, r.errors, r.depth = number(stored), number(errored), number(depth)
	if !errored.MatchString(text) {
		return r, fmt.Errorf("cannot read the result of spin:\n%s", text)
	}
	return r, nil
}
