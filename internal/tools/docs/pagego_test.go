package docs_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/topology"
)

// compiledFiles returns the lines of each file that a page may show: snippets, Examples and
// programs. They are files of packages, so that make test compiles them.
func compiledFiles(t *testing.T) map[string][]string {
	t.Helper()
	found := map[string][]string{}
	goFiles(t, func(path, text string) {
		_, name, _ := cutLast(path, "/")
		if !strings.HasSuffix(name, "_snippets_test.go") && !strings.HasPrefix(name, "example_") &&
			!strings.HasPrefix(path, "examples/") || strings.Contains(text, "\n//go:build ") {
			return
		}
		for line := range strings.Lines(text) {
			found[path] = append(found[path], bare(line))
		}
	})
	require.Greater(t, len(found), 20)
	return found
}

func cutLast(text, separator string) (before, after string, found bool) {
	at := strings.LastIndex(text, separator)
	if at < 0 {
		return "", text, false
	}
	return text[:at], text[at+len(separator):], true
}

var trailing = regexp.MustCompile(`(^|\s)// .*$`)

// bare returns a line of Go without its indentation, its comment and the blanks that align it.
func bare(line string) string {
	line = trailing.ReplaceAllString(strings.TrimSpace(line), "")
	return strings.Join(strings.Fields(line), " ")
}

// shownBy reports whether a file has the lines of a block in their order. Between them it may have
// more, because a page leaves out the lines that every program has. Else it returns the first line
// that is not there.
func shownBy(block string, file []string) (missing string, shown bool) {
	for line := range strings.Lines(block) {
		line = bare(line)
		if line == "" {
			continue
		}
		at := slices.Index(file, line)
		if at < 0 {
			return line, false
		}
		file = file[at+1:]
	}
	return "", true
}

// ownTest are the pages whose files of Go a test compiles and runs as they stand: a block under
// the name of its file, that begins with its package.
var ownTest = map[string]string{
	gettingStarted:    "TestGettingStarted",
	"CONTRIBUTING.md": "TestContributingShowsFilesThatPass",
}

// Every block of Go on every page is in one compiled file, line by line and in that order.
func TestDocumentsShowGoThatCompiles(t *testing.T) {
	t.Parallel()
	compiled := compiledFiles(t)
	there := readSource(t).tests
	shown := 0
	pages := pagesOf(t)
	for _, name := range slices.Sorted(maps.Keys(pages)) {
		for _, b := range pages[name].blocks {
			if b.language() != "go" {
				continue
			}
			shown++
			whole := strings.HasPrefix(b.text, "package ") && fileAbove.MatchString(b.before)
			if whole && there[ownTest[name]] != nil {
				continue
			}
			if missing := notCompiled(b.text, compiled); missing != "" {
				t.Errorf("%s:%d: no compiled file has this block in its order; the best one lacks: %s",
					name, b.line, missing)
			}
		}
	}
	require.Greater(t, shown, 5)
}

// notCompiled returns the line of a block at which the file that has most of it fails, or "".
func notCompiled(block string, compiled map[string][]string) string {
	lacks, most := "a line", -1
	for _, path := range slices.Sorted(maps.Keys(compiled)) {
		missing, shown := shownBy(block, compiled[path])
		if shown {
			return ""
		}
		before, _, _ := strings.Cut(block, missing)
		if len(before) > most && strings.Contains(block, missing) {
			lacks, most = missing, len(before)
		}
	}
	return lacks
}

// A line that compiles nowhere is found, and so are lines of two files and lines in disorder.
func TestGoThatDoesNotCompileIsFound(t *testing.T) {
	t.Parallel()
	compiled := map[string][]string{
		"a.go": {"a := 1", "b := 2", "use(a, b)"}, "b.go": {"c := 3", "use(c)"},
	}
	for block, lacks := range map[string]string{
		"a := 1 // one\nuse(a, b)\n":         "",
		"\n\tb := 2\n\tuse(a,  b)\n":         "",
		"a := 1\nb = 2\n":                    "b = 2",
		"a := 1\nuse(c)\n":                   "use(c)",
		"b := 2\na := 1\n":                   "a := 1",
		"client.Frobnicate(ctx)\na := 1\n":   "client.Frobnicate(ctx)",
		"a := 1\nuse(a, b)\nuse(a, b)\n":     "use(a, b)",
		"// only a remark of the page\n":     "",
		"use(c) // as b.go has\n// and on\n": "",
	} {
		require.Equal(t, lacks, notCompiled(block, compiled), block)
	}
}

var planRow = regexp.MustCompile(`(?m)^\S+ +(\S+) +x-dead-letter-exchange=`)

// The plan of a strategy on a page is the plan that the strategy makes for these delays.
func TestPlansOfPagesAreThoseOfTheStrategy(t *testing.T) {
	t.Parallel()
	shown := 0
	for _, p := range pagesOf(t) {
		for _, b := range p.blocks {
			var delays backoff.List
			for _, row := range planRow.FindAllStringSubmatch(b.text, -1) {
				delay, err := time.ParseDuration(row[1])
				require.NoError(t, err, "%s:%d", p.path, b.line)
				delays = append(delays, delay)
			}
			if b.language() == "console" || len(delays) == 0 {
				continue // TestToolCommandsOfPages compares it with the output
			}
			shown++
			plan, err := topology.PerQueue{}.Plan("orders", delays)
			require.NoError(t, err)
			head, table, _ := strings.Cut(plan.String(), "\n")
			got := strings.TrimPrefix(strings.TrimPrefix(b.text, head), "\n")
			// Editors cut spaces at the end of a line, and so do pages.
			require.Equal(t, regexp.MustCompile(` +\n`).ReplaceAllString(table, "\n"),
				regexp.MustCompile(` +\n`).ReplaceAllString(got, "\n"), "%s:%d", p.path, b.line)
		}
	}
	require.Positive(t, shown)
}

// shownPolicies are the policies whose delays pages show, a line each, as the pages have them.
var shownPolicies = []backoff.Policy{
	backoff.List{2 * time.Second, 5 * time.Second, 15 * time.Second},
	backoff.Constant{Interval: 5 * time.Second, Retries: 3},
	backoff.Linear{Initial: time.Second, Step: time.Second, Retries: 3},
	backoff.Exponential{Initial: time.Second, Factor: 2, Retries: 4},
	backoff.Exponential{Initial: time.Second, Factor: 10, Max: 500 * time.Second, Retries: 5},
	backoff.Fibonacci{Initial: time.Second, Retries: 5},
	backoff.List{0, 5 * time.Second},
}

var policyRow = regexp.MustCompile(
	"^\\| `(backoff\\.[^`]+)`[^|]*\\| ([0-9]+[a-z]+(?: [0-9]+[a-z]+)*) \\|")

// Every row of a page with a policy and its delays has the delays of that policy, and each of
// these policies is on a page.
func TestPagesShowTheDelaysOfPolicies(t *testing.T) {
	t.Parallel()
	_, source, _ := strings.Cut(read(t, "internal/tools/docs/pagego_test.go"),
		"\nvar shownPolicies = []backoff.Policy{\n")
	waits := map[string]string{}
	inSeconds := strings.NewReplacer("1m40s", "100s", "8m20s", "500s")
	for _, policy := range shownPolicies {
		var line string
		line, source, _ = strings.Cut(source, "\n")
		var delays []string
		f := backoff.Failure{Count: 1}
		for wait, retry := policy.Delay(f); retry; wait, retry = policy.Delay(f) {
			delays = append(delays, inSeconds.Replace(wait.String()))
			f.Count, f.Last = f.Count+1, wait
		}
		waits[strings.TrimSuffix(strings.TrimSpace(line), ",")] = strings.Join(delays, " ")
	}
	shown := map[string]bool{}
	for _, p := range pagesOf(t) {
		for i, line := range p.prose {
			if row := policyRow.FindStringSubmatch(line); row != nil {
				shown[row[1]] = true
				require.Equal(t, waits[row[1]], row[2], "%s:%d: %s", p.path, i+1, row[1])
			}
		}
	}
	require.ElementsMatch(t, slices.Collect(maps.Keys(waits)), slices.Collect(maps.Keys(shown)))
}

// parts counts queues, exchanges and bindings of plans.
type parts struct{ queues, exchanges, bindings int }

// sizing is a row of docs/sizing.md: the parts for n queues with m delays.
type sizing struct {
	strategy topology.Strategy
	row      string
	count    func(n, m int) parts
}

// The formulas of docs/sizing.md give the numbers of the plans.
func TestSizingCountsThePlans(t *testing.T) {
	t.Parallel()
	page := read(t, "docs/sizing.md")
	via := []string{"events", "invoices", "logs"}
	e := len(via)
	rows := []sizing{
		{
			topology.PerQueue{},
			"`PerQueue` | N × (M + 1) | 0 | 0",
			func(n, m int) parts { return parts{n * (m + 1), 0, 0} },
		},
		{
			topology.PerAttempt{},
			"`PerAttempt`, M queues of attempts | N × (M + 1) | N | N × M",
			func(n, m int) parts { return parts{n * (m + 1), n, n * m} },
		},
		{
			topology.Shared{},
			"`Shared` | M + 1 + N | M + 2 | M + 1 + N",
			func(n, m int) parts { return parts{m + 1 + n, m + 2, m + 1 + n} },
		},
		{
			topology.DelayedExchange{},
			"`DelayedExchange` | 1 + N | 3 | 2 + N",
			func(n, _ int) parts { return parts{1 + n, 3, 2 + n} },
		},
		{
			topology.Shared{Via: via},
			"`Shared` with `Via` of E exchanges | M + 1 + N | M + 2 + N × E | M + 1 + N × (1 + 2 × E)",
			func(n, m int) parts { return parts{m + 1 + n, m + 2 + n*e, m + 1 + n*(1+2*e)} },
		},
		{
			topology.PerQueue{Via: via},
			"`PerQueue` with `Via` of E exchanges | N × (M + 1) + 1 | N × (M + E) + 2 | " +
				"N × (M + 1 + 2 × E) + 1",
			func(n, m int) parts { return parts{n*(m+1) + 1, n*(m+e) + 2, n*(m+1+2*e) + 1} },
		},
	}
	for longest, l := range map[time.Duration]int{
		0: 32, 24 * time.Hour: 20, time.Hour: 16, time.Minute: 10,
	} {
		rows = append(rows, sizing{
			topology.Levels{Max: longest},
			"`Levels`, L levels | L + 1 + N | L + 2 | 3 × L - 1 + N",
			func(n, _ int) parts { return parts{l + 1 + n, l + 2, 3*l - 1 + n} },
		})
	}
	for _, r := range rows {
		require.Contains(t, page, "| "+r.row+" |\n")
		for _, delays := range []backoff.List{
			{2 * time.Second, 5 * time.Second, 15 * time.Second},
			{5 * time.Second, 30 * time.Second, 2 * time.Minute, 10 * time.Minute, time.Hour},
		} {
			for _, n := range []int{1, 10} {
				require.Equal(t, r.count(n, len(delays)), planned(t, r.strategy, n, delays),
					"%T, %d queues, %d delays", r.strategy, n, len(delays))
			}
		}
	}
}

// planned counts the parts of the plans of n queues, each once.
func planned(t *testing.T, strategy topology.Strategy, n int, policy backoff.Policy) parts {
	t.Helper()
	queues, exchanges, bindings := map[string]bool{}, map[string]bool{}, map[topology.Binding]bool{}
	for i := range n {
		plan, err := topology.PlanFor(strategy, fmt.Sprintf("orders-%d", i), policy)
		require.NoError(t, err)
		for _, q := range plan.Queues {
			queues[q.Name] = true
		}
		for _, e := range plan.Exchanges {
			exchanges[e.Name] = true
		}
		for _, b := range plan.Bindings {
			bindings[b] = true
		}
	}
	return parts{len(queues), len(exchanges), len(bindings)}
}

var (
	fileAbove = regexp.MustCompile("`([a-z_/]+\\.go)`:$")
	testNamed = regexp.MustCompile(`\nfunc (Test\w+)\(`)
)

// Given the files that CONTRIBUTING.md adds to packages of the library, then they compile there and
// their tests pass. They are laid over the checkout, which does not change.
func TestContributingShowsFilesThatPass(t *testing.T) {
	t.Parallel()
	base, err := filepath.Abs(root)
	require.NoError(t, err)
	folder := t.TempDir()
	laidOver := map[string]string{}
	var packages, tests []string
	for _, b := range blocks(read(t, "CONTRIBUTING.md")) {
		if b.kind != "go" {
			continue
		}
		name := fileAbove.FindStringSubmatch(b.before)
		require.NotNil(t, name, "no name of a file above\n%s", b.text)
		require.NoFileExists(t, root+name[1])
		file := filepath.Join(folder, strings.ReplaceAll(name[1], "/", "_"))
		require.NoError(t, os.WriteFile(file, []byte(b.text), 0o600))
		laidOver[filepath.Join(base, filepath.FromSlash(name[1]))] = file
		if test := testNamed.FindStringSubmatch(b.text); test != nil {
			packages = append(packages, "./"+path.Dir(name[1]))
			tests = append(tests, test[1])
		}
	}
	require.Len(t, laidOver, 2*len(tests))
	require.Len(t, tests, 3, "a policy, a classifier and a strategy")
	overlay, err := json.Marshal(map[string]any{"Replace": laidOver})
	require.NoError(t, err)
	list := filepath.Join(folder, "overlay.json")
	require.NoError(t, os.WriteFile(list, overlay, 0o600))

	cmd := exec.CommandContext(t.Context(), "go", append([]string{
		"test", "-overlay", list, "-count", "1", "-vet=off", "-ldflags=-w", "-v",
		"-run", "^(" + strings.Join(tests, "|") + ")$",
	}, packages...)...)
	cmd.Dir = base
	cmd.Env = append(os.Environ(), "MILLPOND_NO_BROKER=1", "AMQP_URL=")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	for _, test := range tests {
		require.Contains(t, string(out), "--- PASS: "+test+" ")
	}
}
