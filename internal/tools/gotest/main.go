// Gotest runs `go test`. It prints the line of each package, the story of each failed test, and at
// the end one line that counts the skipped tests by reason:
//
//	go run ./internal/tools/gotest -race ./...
//
// All arguments go to `go test`, and its exit code is returned. The whole output of a failed test
// whose story is shorter is in bin/failed. With -v all output is printed as `go test -v` prints it.
//
// If MILLPOND_CI_AGAIN is a number, and at most so many tests have failed, each of them runs once
// more, alone. The exit code is 0 if all of them pass then; each is named in a line FLAKY. A test
// with a data race and a package that died do not run again.
package main

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

func main() {
	// A signal to this process reaches go test, too: stay to print its last output.
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM)
	again, _ := strconv.Atoi(os.Getenv("MILLPOND_CI_AGAIN"))
	code, err := run(os.Stdout, ".", os.Args[1:], again)
	if err != nil {
		fmt.Fprintln(os.Stderr, "gotest:", err)
		code = 1
	}
	os.Exit(code)
}

// run runs go test in a folder, and at most again of the failed tests once more.
func run(out io.Writer, folder string, args []string, again int) (int, error) {
	r := newReport(out, folder, slices.Contains(args, "-v"))
	code, err := r.run(args)
	r.end()
	if err == nil && code != 0 && !r.final && 0 < len(r.failed) && len(r.failed) <= again {
		code, err = repeat(r, args)
	}
	if code != 0 {
		r.print("FAIL\n")
	}
	return code, err
}

// repeat runs each failed test of a report alone. The code is 0 if all of them pass.
func repeat(r *report, args []string) (code int, err error) {
	packages := slices.IndexFunc(args, func(a string) bool { return strings.HasPrefix(a, ".") })
	if packages < 0 {
		packages = len(args)
	}
	for _, failed := range r.failed {
		// Of two flags with one name, go test takes the second.
		alone := slices.Concat(args[:packages], []string{
			"-run", "^" + failed.Test + "$", "-parallel", "1", "-p", "1", failed.Package,
		})
		r.print(fmt.Sprintf("again: %s.%s\n", failed.Package, failed.Test))
		second := newReport(r.out, r.folder, r.verbose)
		switch c, err := second.run(alone); {
		case err != nil:
			return 1, err
		case c == 0 && second.passed > 0:
			r.print(fmt.Sprintf("FLAKY %s.%s\n", failed.Package, failed.Test))
		default:
			code = 1
		}
		second.end()
	}
	return code, nil
}

// event is one line of `go test -json`.
type event struct {
	Action, Package, Test, Output string
}

// report turns the events of one run into its output, which ends like the output of `go test`.
type report struct {
	out     io.Writer
	folder  string
	verbose bool
	// package, test ("" is the package itself): output not yet printed
	tests   map[string]map[string]*bytes.Buffer
	skipped map[string]int // tests by reason
	closing string         // last line of the package that passed last, not yet printed
	passed  int
	failed  []event // without their subtests
	final   bool    // something has failed that is not to run again
	race    string  // the package that prints a report of the race detector; "" for none
}

func newReport(out io.Writer, folder string, verbose bool) *report {
	return &report{
		out: out, folder: folder, verbose: verbose,
		tests: make(map[string]map[string]*bytes.Buffer), skipped: make(map[string]int),
	}
}

// run runs go test, reports it, and returns its exit code.
func (r *report) run(args []string) (int, error) {
	cmd := exec.Command("go", append([]string{"test", "-json"}, args...)...)
	cmd.Dir, cmd.Stderr = r.folder, os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return 1, err
	}
	if err := cmd.Start(); err != nil {
		return 1, err
	}
	readErr := r.read(stdout)
	err = cmd.Wait()
	var exit *exec.ExitError
	switch {
	case readErr != nil:
		return 1, readErr
	case errors.As(err, &exit):
		return max(exit.ExitCode(), 1), nil
	default:
		return 0, err
	}
}

func (r *report) read(from io.Reader) error {
	lines := bufio.NewReader(from)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			r.line(line)
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (r *report) line(line []byte) {
	var e event
	if json.Unmarshal(line, &e) != nil {
		_, _ = r.out.Write(line)
		return
	}
	switch e.Action {
	case "build-output":
		r.print(e.Output)
	case "output":
		r.output(e)
	case "fail":
		r.fail(e)
	case "skip":
		if e.Test != "" {
			r.skipped[reason(r.take(e))]++
		}
		r.take(e)
	case "pass":
		if e.Test != "" {
			r.passed++
		}
		r.take(e)
	}
}

func (r *report) output(e event) {
	// Its lines may stand in the output of any test, also of a test that passes.
	if strings.Contains(e.Output, "WARNING: DATA RACE") {
		r.final, r.race = true, e.Package
	}
	switch {
	case r.verbose:
		r.print(e.Output)
	case r.race != "" && r.race == e.Package:
		r.print(e.Output)
		if strings.HasPrefix(e.Output, "==================") {
			r.race = ""
		}
		return
	case e.Test == "" && (strings.HasPrefix(e.Output, "ok  \t") ||
		strings.HasPrefix(e.Output, "?   \t")):
		r.print(r.closing)
		r.closing = e.Output
		return
	}
	r.buffer(e).WriteString(e.Output)
}

func (r *report) fail(e event) {
	output := r.take(e)
	if e.Test != "" {
		r.story(e, output)
		top, _, _ := strings.Cut(e.Test, "/")
		if failed := (event{Package: e.Package, Test: top}); !slices.Contains(r.failed, failed) {
			r.failed = append(r.failed, failed)
		}
		return
	}
	// A test binary that has run all of its tests says FAIL. Without a failed test, the package fails
	// for another reason, such as a leak.
	has := func(f event) bool { return f.Package == e.Package }
	if !strings.Contains("\n"+output, "\nFAIL\n") || !slices.ContainsFunc(r.failed, has) {
		r.final = true
	}
	r.flush(e.Package, output)
}

func (r *report) buffer(e event) *bytes.Buffer {
	tests := r.tests[e.Package]
	if tests == nil {
		tests = make(map[string]*bytes.Buffer)
		r.tests[e.Package] = tests
	}
	if tests[e.Test] == nil {
		tests[e.Test] = new(bytes.Buffer)
	}
	return tests[e.Test]
}

func (r *report) take(e event) string {
	defer delete(r.tests[e.Package], e.Test)
	return r.buffer(e).String()
}

// flush prints the rest of a package: tests that never ended, then the package's own lines.
func (r *report) flush(pkg, own string) {
	for _, test := range slices.Sorted(maps.Keys(r.tests[pkg])) {
		e := event{Package: pkg, Test: test}
		r.story(e, r.take(e))
	}
	if !r.verbose {
		r.print(own)
	}
	delete(r.tests, pkg)
}

// end prints the packages that no event has closed, and the last lines.
func (r *report) end() {
	for pkg := range r.tests {
		r.flush(pkg, r.take(event{Package: pkg}))
	}
	if len(r.skipped) > 0 && !r.verbose { // go test -v has named them
		var reasons []string
		for _, why := range slices.SortedFunc(maps.Keys(r.skipped), func(a, b string) int {
			return cmp.Or(r.skipped[b]-r.skipped[a], strings.Compare(a, b))
		}) {
			tests := r.skipped[why]
			if needs, found := strings.CutPrefix(why, "needs "); found && tests > 1 {
				why = "need " + needs
			}
			reasons = append(reasons, fmt.Sprintf("%d %s", tests, why))
		}
		r.print("skipped: " + strings.Join(reasons, "; ") + "\n")
	}
	r.print(r.closing)
}

// at begins the output of a test: the line of t.Error or t.Log.
var at = regexp.MustCompile(`^ {4}\S+\.go:\d+: `)

// Of a block with more lines than that, the story has so many first and last ones.
const first, last = 20, 30

// story prints the output of a failed test: the verdict, then blocks, which are what one t.Error or
// t.Log has written, or short ones of the same place. The middle of long blocks is left out.
func (r *report) story(e event, output string) {
	if r.verbose {
		return
	}
	var verdict, place string
	var blocks [][]string
	short := false // the last line began an output, too
	for line := range strings.Lines(output) {
		begins := at.FindString(line)
		switch {
		case strings.HasPrefix(line, "=== "):
			continue
		case strings.HasPrefix(strings.TrimSpace(line), "--- FAIL: "):
			verdict = line
			continue
		case len(blocks) == 0, begins != "" && !(short && begins == place):
			blocks, place = append(blocks, nil), begins
		}
		short = begins != ""
		blocks[len(blocks)-1] = append(blocks[len(blocks)-1], line)
	}
	name := strings.ReplaceAll(path.Base(e.Package)+"."+e.Test, "/", ".")
	whole := filepath.Join("bin", "failed", name)
	cut := false
	r.print(verdict)
	for _, lines := range blocks {
		if left := len(lines) - first - last; left > 0 {
			lines = slices.Concat(lines[:first],
				[]string{fmt.Sprintf("        [%d lines more: %s]\n", left, whole)}, lines[first+left:])
			cut = true
		}
		r.print(strings.Join(lines, ""))
	}
	if cut {
		file := filepath.Join(r.folder, whole)
		err := os.MkdirAll(filepath.Dir(file), 0o755)
		if err = errors.Join(err, os.WriteFile(file, []byte(output), 0o600)); err != nil {
			r.print(fmt.Sprintf("gotest: %v\n", err))
		}
	}
}

// reason finds the reason of a skip: the last line that is not from go test, without its place.
func reason(output string) string {
	why := "no reason given"
	for line := range strings.Lines(output) {
		if strings.HasPrefix(line, "    ") && !strings.HasPrefix(strings.TrimSpace(line), "--- ") {
			why = strings.TrimSpace(at.ReplaceAllString(line, ""))
		}
	}
	return why
}

func (r *report) print(s string) { _, _ = io.WriteString(r.out, s) }
