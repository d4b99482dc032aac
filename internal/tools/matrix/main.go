// Matrix runs the whole test suite on each supported RabbitMQ version, one after the other:
//
//	go run ./internal/tools/matrix make test
//
// It runs the command with BROKER set to the version and passes on its output. At the end it prints
// a table of the results. A version that cannot be installed is named there. The exit code is 0
// only if the command passed on every version.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"text/tabwriter"
	"time"
)

// versions are the values of BROKER with their names in the table.
var versions = []struct{ broker, name string }{
	{"", "installed"},
	{"4.0", "4.0"},
	{"4.3", "4.3"},
}

// outcome is the result of one version.
type outcome struct {
	name    string
	version string // from the broker; empty if none answered
	exit    error
	tests   counts
	took    time.Duration
}

// counts are the numbers that gotest writes.
type counts struct{ Passed, Failed, Skipped int }

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "matrix: name the command to run, as in: matrix make test")
		os.Exit(2)
	}
	// A signal to this process reaches the command, too: stay to print the table.
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, syscall.SIGINT, syscall.SIGTERM)
	var all []outcome
	for _, v := range versions {
		fmt.Printf("matrix: RabbitMQ %s\n", v.name)
		o, err := run(v.broker, os.Args[1:], os.Stdout)
		if err != nil {
			fmt.Fprintln(os.Stderr, "matrix:", err)
			os.Exit(1)
		}
		o.name = v.name
		all = append(all, o)
		if len(interrupted) > 0 {
			break
		}
	}
	if !summary(os.Stdout, all) {
		os.Exit(1)
	}
}

func run(broker string, command []string, out io.Writer) (outcome, error) {
	dir, err := os.MkdirTemp("", "millpond-matrix-")
	if err != nil {
		return outcome{}, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	file := filepath.Join(dir, "counts.json")
	var seen head
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Env = append(os.Environ(), "BROKER="+broker, "MILLPOND_BROKER="+broker, "AMQP_URL=",
		"GOTEST_COUNTS="+file)
	cmd.Stdout, cmd.Stderr = io.MultiWriter(out, &seen), io.MultiWriter(os.Stderr, &seen)
	began := time.Now()
	o := outcome{exit: cmd.Run(), took: time.Since(began).Round(time.Second), version: seen.version()}
	data, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(data, &o.tests)
	}
	if err != nil && o.exit == nil {
		return o, fmt.Errorf("%s passed, but did not write its number of tests: %w",
			strings.Join(command, " "),
			err)
	}
	return o, nil
}

// summary prints the table and reports whether every version passed.
func summary(out io.Writer, all []outcome) bool {
	passed := len(all) == len(versions)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "RabbitMQ\tresult\ttests passed\tfailed\tskipped\ttime")
	for _, o := range all {
		result, version := "ok", o.version
		switch {
		case o.version == "":
			result, version = "CANNOT BE HAD, see above", o.name
		case o.exit != nil:
			result = "FAILED"
		}
		passed = passed && result == "ok"
		_, _ = fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%d\t%v\n", version, result, o.tests.Passed, o.tests.Failed,
			o.tests.Skipped, o.took)
	}
	for _, missed := range versions[len(all):] {
		_, _ = fmt.Fprintf(w, "%s\tNOT RUN\t\t\t\t\n", missed.name)
	}
	_ = w.Flush()
	return passed
}

// answers matches the line by which withbroker names its RabbitMQ.
var answers = regexp.MustCompile(`withbroker: RabbitMQ ([0-9.]+) answers`)

// head keeps the beginning of the output, where the broker is named.
type head struct {
	mu   sync.Mutex
	text []byte
}

func (h *head) Write(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.text) < 1<<20 {
		h.text = append(h.text, p...)
	}
	return len(p), nil
}

func (h *head) version() string {
	if m := answers.FindSubmatch(h.text); m != nil {
		return string(m[1])
	}
	return ""
}
