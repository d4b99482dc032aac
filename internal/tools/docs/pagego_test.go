package docs_test

import (
	"encoding/json"
	"fmt"
	"go/constant"
	"go/token"
	"go/types"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
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
	goFiles(t, func(file, text string) {
		name := path.Base(file)
		if !strings.HasSuffix(name, "_snippets_test.go") && !strings.HasPrefix(name, "example_") &&
			!strings.HasPrefix(file, "examples/") || strings.Contains(text, "\n//go:build ") {
			return
		}
		for line := range strings.Lines(text) {
			found[file] = append(found[file], bare(line))
		}
	})
	require.Greater(t, len(found), 20)
	return found
}

var trailing = regexp.MustCompile(`(^|\s)// .*$`)

// bare returns a line of Go without its indentation, its comment and the blanks that align it.
func bare(line string) string {
	line = trailing.ReplaceAllString(strings.TrimSpace(line), "")
	return strings.Join(strings.Fields(line), " ")
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
			if whole && there[ownTest[name]] {
				continue
			}
			if missing := notCompiled(b.text, compiled); missing != "" {
				t.Errorf("%s:%d: no compiled file has this block in its order; the best one lacks: %s",
					name, b.line, missing)
			}
		}
	}
	require.Greater(t, shown, 5)

	compiled = map[string][]string{"a.go": {"a := 1", "b := 2", "use(a, b)"}, "b.go": {"use(c)"}}
	require.Empty(t, notCompiled("\ta := 1 // one\n\n// and\nuse(a,  b)\n", compiled))
	require.Equal(t, "use(c)", notCompiled("a := 1\nuse(c)\n", compiled), "lines of two files")
	require.Equal(t, "a := 1", notCompiled("b := 2\na := 1\n", compiled), "in disorder")
}

// notCompiled returns the line that the file with most of a block lacks, or "". Between the lines
// of a block the file may have more, because a page leaves out the lines that every program has.
func notCompiled(block string, compiled map[string][]string) string {
	lacks, most := "a line", -1
	for _, file := range compiled {
		missing, n := "", 0
		for line := range strings.Lines(block) {
			if line = bare(line); line == "" {
				continue
			}
			at := slices.Index(file, line)
			if at < 0 {
				missing = line
				break
			}
			file, n = file[at+1:], n+1
		}
		if missing == "" {
			return ""
		}
		if n > most {
			lacks, most = missing, n
		}
	}
	return lacks
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

// The formulas of docs/sizing.md give the numbers of the plans, for N queues with M delays.
func TestSizingCountsThePlans(t *testing.T) {
	t.Parallel()
	via := []string{"events", "invoices", "logs"}
	strategies := map[string][]topology.Strategy{
		"`PerQueue`":                           {topology.PerQueue{}},
		"`PerAttempt`, M queues of attempts":   {topology.PerAttempt{}},
		"`Shared`":                             {topology.Shared{}},
		"`DelayedExchange`":                    {topology.DelayedExchange{}},
		"`Shared` with `Via` of E exchanges":   {topology.Shared{Via: via}},
		"`PerQueue` with `Via` of E exchanges": {topology.PerQueue{Via: via}},
		"`Levels`, L levels": {
			topology.Levels{},
			topology.Levels{Max: 24 * time.Hour},
			topology.Levels{Max: time.Hour},
			topology.Levels{Max: time.Minute},
		},
	}
	levels := map[time.Duration]int{0: 32, 24 * time.Hour: 20, time.Hour: 16, time.Minute: 10}
	for line := range strings.Lines(read(t, "docs/sizing.md")) {
		cells := strings.Split(strings.Trim(line, "| \n"), " | ")
		for _, strategy := range strategies[cells[0]] {
			l, _ := strategy.(topology.Levels)
			for _, delays := range []backoff.List{
				{2 * time.Second, 5 * time.Second, 15 * time.Second},
				{5 * time.Second, 30 * time.Second, 2 * time.Minute, 10 * time.Minute, time.Hour},
			} {
				for _, n := range []int{1, 10} {
					value := func(formula string) int {
						sum, err := types.Eval(token.NewFileSet(), nil, token.NoPos, strings.NewReplacer("×", "*",
							"N", fmt.Sprint(n), "M", fmt.Sprint(len(delays)), "E", fmt.Sprint(len(via)),
							"L", fmt.Sprint(levels[l.Max])).Replace(formula))
						require.NoError(t, err, line)
						number, _ := constant.Int64Val(sum.Value)
						return int(number)
					}
					require.Equal(t, parts{value(cells[1]), value(cells[2]), value(cells[3])},
						planned(t, strategy, n, delays), "%s%d queues, %d delays", line, n, len(delays))
				}
			}
		}
		delete(strategies, cells[0])
	}
	require.Empty(t, strategies, "not on the page")
}

// The column "computed" of docs/sizing.md gives the answers, to two digits at least.
func TestSizingComputes(t *testing.T) {
	t.Parallel()
	rows := 0
	for line := range strings.Lines(read(t, "docs/sizing.md")) {
		cells := strings.Split(strings.Trim(line, "| \n"), " | ")
		formula, _, _ := strings.Cut(cells[len(cells)-1], ";")
		sum, err := types.Eval(token.NewFileSet(), nil, token.NoPos,
			strings.ReplaceAll(formula, "×", "* 1.0 *"))
		if len(cells) != 3 || err != nil || sum.Value == nil {
			continue
		}
		rows++
		want, _ := constant.Float64Val(constant.ToFloat(sum.Value))
		digits := answer.FindString(cells[1])
		got, err := strconv.ParseFloat(strings.ReplaceAll(digits, " ", ""), 64)
		require.NoError(t, err, line)
		require.InEpsilon(t, want, got, 0.02, line)
	}
	require.Equal(t, 9, rows)
}

// answer is a number whose thousands are apart.
var answer = regexp.MustCompile(`^\d+( \d{3})*`)

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
