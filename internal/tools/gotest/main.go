// Gotest runs `go test`, prints its output, and names the skipped tests, which `go test` does not:
//
//	go run ./internal/tools/gotest -race ./...
//
// All arguments go to `go test`, and its exit code is returned. -C, which names the folder of
// another module, must come first.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
)

func main() {
	code, err := run(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "gotest:", err)
		code = 1
	}
	os.Exit(code)
}

func run(args []string) (int, error) {
	// A signal to this process reaches go test, too: stay to print its last output.
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM)
	cmd := exec.Command("go", command(args)...)
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return 1, err
	}
	if err := cmd.Start(); err != nil {
		return 1, err
	}
	r := newReport(os.Stdout, slices.Contains(args, "-v"))
	readErr := r.read(stdout)
	err = cmd.Wait()
	r.end()
	var exit *exec.ExitError
	switch {
	case readErr != nil:
		return 1, readErr
	case err == nil:
		return 0, nil
	case errors.As(err, &exit):
		return max(exit.ExitCode(), 1), nil
	default:
		return 1, err
	}
}

// command puts -json after a -C, because go test takes -C as its first flag only.
func command(args []string) []string {
	first := 0
	if len(args) > 1 && args[0] == "-C" {
		first = 2
	}
	return slices.Concat([]string{"test"}, args[:first], []string{"-json"}, args[first:])
}

// event is one line of `go test -json`.
type event struct {
	Action, Package, Test, Output string
}

// report turns the events back into the output of `go test`: the last line of a package, and the
// output of failed tests. The skipped tests come before a package's last line, one line each, so
// that the output ends like the output of `go test`.
type report struct {
	out     io.Writer
	verbose bool
	// package, test ("" is the package itself): output not yet printed
	tests   map[string]map[string]*bytes.Buffer
	skipped map[string][]string // package: lines not yet printed
	failed  bool
}

func newReport(out io.Writer, verbose bool) *report {
	return &report{
		out: out, verbose: verbose, tests: make(map[string]map[string]*bytes.Buffer),
		skipped: make(map[string][]string),
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
		closing := e.Test == "" && isClosing(e.Output)
		if closing {
			r.printSkipped(e.Package)
		}
		if r.verbose || closing {
			r.print(e.Output)
			return
		}
		r.buffer(e).WriteString(e.Output)
	case "fail":
		r.failed = true
		if e.Test == "" {
			r.flush(e.Package)
			return
		}
		r.print(r.take(e))
	case "skip":
		if e.Test != "" {
			line := fmt.Sprintf("--- SKIP: %s: %s\n", e.Test, reason(r.take(e)))
			r.skipped[e.Package] = append(r.skipped[e.Package], line)
		}
		delete(r.tests[e.Package], e.Test)
	case "pass":
		delete(r.tests[e.Package], e.Test)
	}
}

// isClosing recognises the last line of a package that passed.
func isClosing(line string) bool {
	return strings.HasPrefix(line, "ok  \t") || strings.HasPrefix(line, "?   \t")
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

func (r *report) printSkipped(pkg string) {
	if !r.verbose { // go test -v has named them
		for _, line := range r.skipped[pkg] {
			r.print(line)
		}
	}
	delete(r.skipped, pkg)
}

// flush prints the rest of a failed package: tests that never ended, then the package's own lines.
func (r *report) flush(pkg string) {
	for test, output := range r.tests[pkg] {
		if test != "" {
			r.print(output.String())
		}
	}
	r.printSkipped(pkg)
	r.print(r.take(event{Package: pkg}))
	delete(r.tests, pkg)
}

// end prints the packages that no event has closed.
func (r *report) end() {
	for pkg := range r.tests {
		r.flush(pkg)
	}
	if r.failed {
		r.print("FAIL\n")
	}
}

// reason finds the reason of a skip: the last line that is not from go test.
func reason(output string) string {
	last := "no reason given"
	for line := range strings.Lines(output) {
		line = strings.TrimSpace(line)
		if line != "" && !strings.HasPrefix(line, "=== ") && !strings.HasPrefix(line, "--- ") {
			last = line
		}
	}
	return last
}

func (r *report) print(s string) { _, _ = io.WriteString(r.out, s) }
