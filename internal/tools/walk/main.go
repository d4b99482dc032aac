// Walk counts the files and functions of the library that one failed message passes, from its
// delivery until the ack of the delivery that was republished:
//
//	AMQP_URL=amqp://guest:guest@127.0.0.1:5672/ go run ./internal/tools/walk [-most 12]
//
// It builds the program onemessage with coverage counters and runs it. A function that also ran
// while no message was there is listed apart: it belongs to a goroutine that only ticks. A literal
// function counts as its enclosing one. With -most the exit code is 1 if there are more files.
package main

import (
	"bufio"
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

const module = "github.com/millpond-go/millpond/"

func main() {
	most := flag.Int("most", 0, "files at most; 0 is no limit")
	flag.Parse()
	w, err := measure()
	if err == nil {
		w.print(os.Stdout)
		if files := len(w.files); *most > 0 && files > *most {
			err = fmt.Errorf("%d files: at most %d", files, *most)
		}
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "walk: %v\n", err)
		os.Exit(1)
	}
}

// walk has the functions of each file that ran, in the order of the file.
type walk struct{ files, ticking map[string][]string }

func measure() (w walk, err error) {
	if os.Getenv("AMQP_URL") == "" {
		return w, errors.New("set AMQP_URL to the address of a broker")
	}
	folder, err := os.MkdirTemp("", "millpond-walk-")
	if err != nil {
		return w, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	for _, name := range []string{"walk", "idle", "exit"} {
		if err := os.Mkdir(filepath.Join(folder, name), 0o700); err != nil {
			return w, err
		}
	}
	program := filepath.Join(folder, "onemessage")
	// The counters can be cleared only in this mode.
	_, err = output("go", "build", "-cover", "-covermode=atomic", "-coverpkg="+module+"...",
		"-o", program, module+"internal/tools/walk/onemessage")
	if err != nil {
		return w, err
	}
	if _, err := output("env", "GOCOVERDIR="+filepath.Join(folder, "exit"),
		program, "-folder", folder); err != nil {
		return w, err
	}
	var ran [2]map[string][]string
	for i, name := range []string{"walk", "idle"} {
		text, err := output("go", "tool", "covdata", "func", "-i="+filepath.Join(folder, name))
		if err != nil {
			return w, err
		}
		ran[i] = functions(text)
	}
	return compare(ran[0], ran[1]), nil
}

// output returns the output of a command, and its error with the text on its stderr.
func output(name string, args ...string) (string, error) {
	var stderr bytes.Buffer
	cmd := exec.Command(name, args...)
	cmd.Stderr = &stderr
	text, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, &stderr)
	}
	return string(text), err
}

// functions reads the report of covdata: for each file of the library the functions that ran.
func functions(report string) map[string][]string {
	ran := map[string][]string{}
	for lines := bufio.NewScanner(strings.NewReader(report)); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) != 3 || fields[2] == "0.0%" {
			continue
		}
		file, _, _ := strings.Cut(strings.TrimPrefix(fields[0], module), ":")
		if !strings.HasSuffix(file, ".go") || strings.HasPrefix(file, "internal/tools/") ||
			strings.HasPrefix(file, "internal/testing/") {
			continue
		}
		ran[file] = append(ran[file], fields[1])
	}
	return ran
}

// compare sets the functions apart that also ran while no message was there.
func compare(walked, idle map[string][]string) walk {
	w := walk{files: map[string][]string{}, ticking: map[string][]string{}}
	for file, functions := range walked {
		for _, function := range functions {
			of := w.files
			if slices.Contains(idle[file], function) {
				of = w.ticking
			}
			of[file] = append(of[file], function)
		}
	}
	return w
}

func (w walk) print(out io.Writer) {
	list := func(title string, files map[string][]string) {
		functions := 0
		for _, names := range files {
			functions += len(names)
		}
		fmt.Fprintf(out, "%s: %d files, %d functions\n", title, len(files), functions)
		for _, file := range slices.Sorted(maps.Keys(files)) {
			fmt.Fprintf(out, "  %s: %s\n", file, strings.Join(files[file], " "))
		}
	}
	list("one failed message passes", w.files)
	if len(w.ticking) > 0 {
		list("ran while no message was there, too", w.ticking)
	}
}
