package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestReport(t *testing.T) {
	t.Parallel()
	const (
		passing = `{"Action":"start","Package":"p"}
{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestA","Output":"=== RUN   TestA\n"}
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
{"Action":"output","Package":"s","Test":"TestS","Output":"    s_test.go:9: needs a broker\n"}
{"Action":"output","Package":"s","Test":"TestS","Output":"--- SKIP: TestS (0.00s)\n"}
{"Action":"skip","Package":"s","Test":"TestS"}
{"Action":"output","Package":"s","Output":"ok  \ts\t0.01s\n"}
{"Action":"pass","Package":"s"}
`
		failing = `{"Action":"output","Package":"f","Test":"TestF","Output":"=== RUN   TestF\n"}
{"Action":"output","Package":"f","Test":"TestF","Output":"    f_test.go:9: broken\n"}
{"Action":"output","Package":"f","Test":"TestF","Output":"--- FAIL: TestF (0.00s)\n"}
{"Action":"fail","Package":"f","Test":"TestF"}
{"Action":"output","Package":"f","Output":"FAIL\n"}
{"Action":"output","Package":"f","Output":"FAIL\tf\t0.01s\n"}
{"Action":"fail","Package":"f"}
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
	for name, tc := range map[string]struct {
		events  string
		verbose bool
		want    string
	}{
		"passed":  {events: passing, want: "ok  \tp\t0.01s\n"},
		"nothing": {events: noTests, want: "?   \tq\t[no test files]\n"},
		"skipped are named before the last line": {
			events: skipping + passing,
			want:   "--- SKIP: TestS: s_test.go:9: needs a broker\nok  \ts\t0.01s\nok  \tp\t0.01s\n",
		},
		"failed": {
			events: failing + passing,
			want: "=== RUN   TestF\n    f_test.go:9: broken\n--- FAIL: TestF (0.00s)\nFAIL\n" +
				"FAIL\tf\t0.01s\nok  \tp\t0.01s\nFAIL\n",
		},
		"a panic ends no test":  {events: panicking, want: "panic: oh\nFAIL\tx\t0.01s\nFAIL\n"},
		"build failed":          {events: unbuilt, want: "b.go:1: wrong\nFAIL\tb [build failed]\nFAIL\n"},
		"go test itself killed": {events: killed, want: "last words\n"},
		"lines of other programs": {
			events: "hello\n" + noTests, want: "hello\n?   \tq\t[no test files]\n",
		},
		"verbose": {
			events: passing, verbose: true,
			want: "=== RUN   TestA\n    a_test.go:3: chatter\n--- PASS: TestA (0.00s)\n" +
				"PASS\nok  \tp\t0.01s\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			r := newReport(&out, tc.verbose)
			require.NoError(t, r.read(strings.NewReader(tc.events)))
			r.end()
			assert.Equal(t, tc.want, out.String())
		})
	}
}

func TestAnotherFolderComesFirst(t *testing.T) {
	t.Parallel()
	assert.Equal(t, []string{"test", "-json", "-v", "./..."}, command([]string{"-v", "./..."}))
	assert.Equal(t, []string{"test", "-C", "tools", "-json", "-v"},
		command([]string{"-C", "tools", "-v"}))
	assert.Equal(t, []string{"test", "-json", "-C"}, command([]string{"-C"}))
}

func TestReasonOfASkip(t *testing.T) {
	t.Parallel()
	assert.Equal(t, "no reason given", reason("=== RUN   TestA\n--- SKIP: TestA (0.00s)\n"))
	assert.Equal(t, "a_test.go:3: why",
		reason("=== PAUSE TestA\n    log\n    a_test.go:3: why\n--- SKIP: TestA (0.00s)\n"))
}
