package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestReport(t *testing.T) {
	t.Parallel()
	const (
		passing = `{"Action":"output","Package":"p","Test":"TestA","Output":"=== RUN   TestA\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"    a_test.go:3: chatter\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"--- PASS: TestA (0.00s)\n"}
{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Output":"PASS\n"}
{"Action":"output","Package":"p","Output":"ok  \tp\t0.01s\n"}
{"Action":"pass","Package":"p"}
`
		noTests = `{"Action":"output","Package":"q","Output":"?   \tq\t[no test files]\n"}
{"Action":"skip","Package":"q"}
`
		skipping = `{"Action":"output","Package":"s","Test":"TestS","Output":"=== RUN   TestS\n"}
{"Action":"output","Package":"s","Test":"TestS","Output":"    log\n"}
{"Action":"output","Package":"s","Test":"TestS","Output":"    s_test.go:9: needs a broker\n"}
{"Action":"output","Package":"s","Test":"TestS","Output":"--- SKIP: TestS (0.00s)\n"}
{"Action":"skip","Package":"s","Test":"TestS"}
{"Action":"output","Package":"s","Test":"TestT","Output":"    t_test.go:8: needs a broker\n"}
{"Action":"skip","Package":"s","Test":"TestT"}
{"Action":"skip","Package":"s","Test":"TestU"}
{"Action":"output","Package":"s","Output":"ok  \ts\t0.01s\n"}
{"Action":"pass","Package":"s"}
`
		failing = `{"Action":"output","Package":"a/f","Test":"TestF","Output":"=== RUN   TestF\n"}
{"Action":"output","Package":"a/f","Test":"TestF/x","Output":"=== RUN   TestF/x\n"}
{"Action":"output","Package":"a/f","Test":"TestF/x","Output":"    f_test.go:9: broken\n"}
LOG{"Action":"output","Package":"a/f","Test":"TestF/x","Output":"    --- FAIL: TestF/x (0.00s)\n"}
{"Action":"fail","Package":"a/f","Test":"TestF/x"}
{"Action":"output","Package":"a/f","Test":"TestF","Output":"--- FAIL: TestF (0.00s)\n"}
{"Action":"fail","Package":"a/f","Test":"TestF"}
{"Action":"output","Package":"a/f","Output":"FAIL\n"}
{"Action":"output","Package":"a/f","Output":"FAIL\ta/f\t0.01s\n"}
{"Action":"fail","Package":"a/f"}
`
		race = `{"Action":"output","Package":"p","Test":"TestA","Output":"WARNING: DATA RACE\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"  Write at 0x00\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"==================\n"}
`
		panicking = `{"Action":"output","Package":"x","Test":"TestX","Output":"panic: oh\n"}
{"Action":"output","Package":"x","Output":"FAIL\tx\t0.01s\n"}
{"Action":"fail","Package":"x"}
`
		unbuilt = `{"ImportPath":"b","Action":"build-output","Output":"b.go:1: wrong\n"}
{"ImportPath":"b","Action":"build-fail"}
{"Action":"output","Package":"b","Output":"FAIL\tb [build failed]\n"}
{"Action":"fail","Package":"b"}
`
		killed = `{"Action":"output","Package":"k","Test":"TestK","Output":"last words\n"}
`
	)
	logged := func(lines int, format string) string {
		var all strings.Builder
		for i := range lines {
			fmt.Fprintf(&all, `{"Action":"output","Package":"a/f","Test":"TestF/x","Output":"`+format, i)
		}
		return strings.Replace(failing, "LOG", all.String(), 1)
	}
	const ending = "--- FAIL: TestF (0.00s)\nFAIL\nFAIL\ta/f\t0.01s\n"
	for name, tc := range map[string]struct {
		events  string
		verbose bool
		want    string
		whole   int  // lines of the file with the whole output
		again   bool // the failed test may run again
	}{
		"passed":  {events: passing, want: "ok  \tp\t0.01s\n"},
		"nothing": {events: noTests, want: "?   \tq\t[no test files]\n"},
		"skipped are counted before the last line": {
			events: skipping + passing,
			want: "ok  \ts\t0.01s\nskipped: 2 need a broker; 1 no reason given\n" +
				"ok  \tp\t0.01s\n",
		},
		"failed": {
			events: logged(0, "") + passing, again: true,
			want: "    --- FAIL: TestF/x (0.00s)\n    f_test.go:9: broken\n" + ending +
				"ok  \tp\t0.01s\n",
		},
		"failed after many lines of one place": {
			events: logged(60, `    rig.go:7: %d\n"}`+"\n"), whole: 63, again: true,
			want: "    --- FAIL: TestF/x (0.00s)\n    f_test.go:9: broken\n" +
				counted(0, 20, "    rig.go:7: %d\n") +
				"        [10 lines more: bin/failed/f.TestF.x]\n" +
				counted(30, 60, "    rig.go:7: %d\n") + ending,
		},
		"failed with logs that are long enough": {
			events: logged(3,
				`    rig.go:7: log %d\n`+strings.Repeat(`        line\n`, 49)+`"}`+"\n"), again: true,
			want: "    --- FAIL: TestF/x (0.00s)\n    f_test.go:9: broken\n" +
				counted(0, 3, "    rig.go:7: log %d\n"+strings.Repeat("        line\n", 49)) + ending,
		},
		"failed beside a data race": {
			events: strings.ReplaceAll(race, `"Test":"TestA"`, `"Test":"TestF/x"`) + logged(0, ""),
			want: "WARNING: DATA RACE\n  Write at 0x00\n==================\n" +
				"    --- FAIL: TestF/x (0.00s)\n    f_test.go:9: broken\n" + ending,
		},
		"a data race that stands in a test which passes": {
			events: race + passing,
			want:   "WARNING: DATA RACE\n  Write at 0x00\n==================\nok  \tp\t0.01s\n",
		},
		"a panic ends no test":  {events: panicking, want: "panic: oh\nFAIL\tx\t0.01s\n"},
		"build failed":          {events: unbuilt, want: "b.go:1: wrong\nFAIL\tb [build failed]\n"},
		"go test itself killed": {events: killed, want: "last words\n"},
		"lines of other programs": {
			events: "hello\n" + noTests, want: "hello\n?   \tq\t[no test files]\n",
		},
		"verbose": {
			events: passing + skipping, verbose: true,
			want: "=== RUN   TestA\n    a_test.go:3: chatter\n--- PASS: TestA (0.00s)\n" +
				"PASS\nok  \tp\t0.01s\n=== RUN   TestS\n    log\n    s_test.go:9: needs a broker\n" +
				"--- SKIP: TestS (0.00s)\n    t_test.go:8: needs a broker\nok  \ts\t0.01s\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			r := newReport(&out, t.TempDir(), tc.verbose)
			require.NoError(t, r.read(strings.NewReader(tc.events)))
			r.end()
			assert.Equal(t, tc.want, out.String())
			assert.Equal(t, tc.again, len(r.failed) > 0 && !r.final)
			whole, _ := os.ReadFile(filepath.Join(r.folder, "bin", "failed", "f.TestF.x"))
			assert.Equal(t, tc.whole, bytes.Count(whole, []byte("\n")))
		})
	}
}

func counted(from, to int, format string) string {
	var all strings.Builder
	for i := from; i < to; i++ {
		fmt.Fprintf(&all, format, i)
	}
	return all.String()
}

// A test that is called Flaky fails the first time.
const flaky = `package p

import (
	"os"
	"strings"
	"testing"
)

func fails(t *testing.T) {
	t.Run("sub", func(t *testing.T) {
		name, _, _ := strings.Cut(t.Name(), "/")
		if file, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL, 0o600); err == nil {
			file.Close()
			t.Error("the first time")
		}
	})
}

func TestFlakyA(t *testing.T) { fails(t) }
func TestFlakyB(t *testing.T) { fails(t) }
func TestFlakyC(t *testing.T) { fails(t) }
func TestFlakyD(t *testing.T) { fails(t) }
func TestPasses(t *testing.T) {}
func TestAlways(t *testing.T) { t.Error("always") }
func TestPanics(t *testing.T) { panic("oh") }
`

func TestFailedTestsRunAgain(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(folder, "go.mod"), []byte("module p\n"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(folder, "p_test.go"), []byte(flaky), 0o600))
	for name, tc := range map[string]struct {
		run         string
		again, code int
		flaky, runs int
	}{
		"not without being told": {run: "Always", code: 1, runs: 1},
		"green the second time":  {run: "FlakyA|Passes", again: 3, flaky: 1, runs: 2},
		"red the second time":    {run: "FlakyB|Always", again: 3, code: 1, flaky: 1, runs: 3},
		"more than are allowed":  {run: "Flaky[CD]", again: 1, code: 1, runs: 1},
		"not after a panic":      {run: "Panics", again: 3, code: 1, runs: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			code, err := run(&out, folder, []string{
				"-vet=off", "-count", "1", "-run", "^Test(" + tc.run + ")$", ".",
			}, tc.again)
			require.NoError(t, err)
			assert.Equal(t, tc.code, code, "%s", &out)
			assert.Equal(t, tc.flaky, strings.Count(out.String(), "\nFLAKY p.TestFlaky"), "%s", &out)
			assert.Equal(t, tc.runs, strings.Count(out.String(), "\tp\t"), "%s", &out)
			end := "FAIL"
			if tc.code == 0 {
				end = "ok  \tp\t"
			}
			lines := strings.Split(strings.TrimSpace(out.String()), "\n")
			assert.True(t, strings.HasPrefix(lines[len(lines)-1], end), "%s", &out)
		})
	}
}
