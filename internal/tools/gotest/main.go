// Gotest runs `go test`, prints its output, and names the skipped tests, which `go test` does not:
//
//	go run ./internal/tools/gotest -race ./...
//
// All arguments go to `go test`, and its exit code is returned. -C, which names the folder of
// another module, must come first.
package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
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
