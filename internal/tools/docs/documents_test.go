package docs_test

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/topology"
)

func TestMain(m *testing.M) {
	testbroker.Main(m, func() error { return goleak.Find() })
}

const root = "../../../"

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(root + path)
	require.NoError(t, err)
	return string(text)
}

// goFiles calls visit for every Go file of the repository with its path below the root.
func goFiles(t *testing.T, visit func(path, text string)) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".go" {
			return err
		}
		text, err := os.ReadFile(path)
		visit(filepath.ToSlash(strings.TrimPrefix(path, root)), string(text))
		return err
	}))
}

// compiledLines returns the lines of files that compile: snippets, Examples and programs.
func compiledLines(t *testing.T) map[string]bool {
	t.Helper()
	lines := map[string]bool{"": true}
	goFiles(t, func(path, text string) {
		name := filepath.Base(path)
		if !strings.HasSuffix(name, "_snippets_test.go") && !strings.HasPrefix(name, "example_") &&
			!strings.HasPrefix(path, "examples/") {
			return
		}
		for line := range strings.Lines(text) {
			lines[bare(line)] = true
		}
	})
	return lines
}

var trailing = regexp.MustCompile(`(^|\s)// .*$`)

// bare returns a line of Go without its indentation and its comment.
func bare(line string) string {
	return strings.TrimSpace(trailing.ReplaceAllString(strings.TrimSpace(line), ""))
}

// It compares line by line, because a page leaves out the lines that every program has. Other
// tests compile the whole of docs/getting-started.md and of CONTRIBUTING.md.
func TestDocumentsShowGoThatCompiles(t *testing.T) {
	t.Parallel()
	compiled := compiledLines(t)
	shown := 0
	for _, document := range documents(t) {
		text := read(t, document)
		switch document {
		case "CONTRIBUTING.md":
			continue
		case "docs/getting-started.md":
			_, text, _ = strings.Cut(text, "\n## 5. ")
		}
		for _, b := range blocks(text) {
			if b.kind != "go" {
				continue
			}
			shown++
			for line := range strings.Lines(b.text) {
				require.True(t, compiled[bare(line)],
					"%s shows a line that no snippet compiles: %s", document, line)
			}
		}
	}
	require.Greater(t, shown, 5)
}

func TestReadmeShowsTheSampleThatCompiles(t *testing.T) {
	t.Parallel()
	_, sample, found := strings.Cut(read(t, "examples/basic/serve.go"), "\nimport (")
	require.True(t, found)
	readme := read(t, "README.md")
	above, _, found := strings.Cut(readme, "```go\nimport ("+sample+"```\n")
	require.True(t, found, "the README's Go sample differs from examples/basic/serve.go")
	require.Less(t, strings.Count(above, "\n"), 40, "lines above the sample")
	require.LessOrEqual(t, strings.Count(readme, "\n"), 200, "lines of the README")
}

func TestReadmeShowsThePlanOfItsSample(t *testing.T) {
	t.Parallel()
	policy := backoff.List{2 * time.Second, 5 * time.Second, 15 * time.Second}
	plan, err := topology.PerQueue{}.Plan("orders", policy)
	require.NoError(t, err)
	_, table, _ := strings.Cut(plan.String(), "\n")
	// Editors cut spaces at the end of a line, and so does the README.
	table = regexp.MustCompile(` +\n`).ReplaceAllString(table, "\n")
	require.Contains(t, read(t, "README.md"), table)
}

// readmePolicies are the policies of the README, a line each, as the README has them.
var readmePolicies = []backoff.Policy{
	backoff.List{2 * time.Second, 5 * time.Second, 15 * time.Second},
	backoff.Constant{Interval: 5 * time.Second, Retries: 3},
	backoff.Linear{Initial: time.Second, Step: time.Second, Retries: 3},
	backoff.Exponential{Initial: time.Second, Factor: 2, Retries: 4},
	backoff.Exponential{Initial: time.Second, Factor: 10, Max: 500 * time.Second, Retries: 5},
	backoff.Fibonacci{Initial: time.Second, Retries: 5},
}

func TestReadmeShowsTheDelaysOfPolicies(t *testing.T) {
	t.Parallel()
	_, rows, _ := strings.Cut(read(t, "README.md"), "\n## Policies\n")
	_, source, _ := strings.Cut(read(t, "internal/tools/docs/documents_test.go"),
		"\nvar readmePolicies = []backoff.Policy{\n")
	inSeconds := strings.NewReplacer("1m40s", "100s", "8m20s", "500s")
	for _, policy := range readmePolicies {
		var line string
		line, source, _ = strings.Cut(source, "\n")
		var waits []string
		f := backoff.Failure{Count: 1}
		for wait, retry := policy.Delay(f); retry; wait, retry = policy.Delay(f) {
			waits = append(waits, inSeconds.Replace(wait.String()))
			f.Count, f.Last = f.Count+1, wait
		}
		text := strings.TrimSuffix(strings.TrimSpace(line), ",")
		require.Contains(t, rows, "\n| `"+text+"` | "+strings.Join(waits, " ")+" |\n")
	}
}

// Every word of the glossary is a word of the code.
func TestEveryWordIsUsed(t *testing.T) {
	t.Parallel()
	var code strings.Builder
	goFiles(t, func(path, text string) {
		if slices.Contains([]string{"backoff", "middleware", "topology"}, filepath.Dir(path)) {
			code.WriteString(text)
		}
	})
	oneLine := strings.ReplaceAll(strings.ToLower(code.String()), "//", " ")
	used := strings.Join(strings.Fields(oneLine), " ")
	row := regexp.MustCompile(`(?m)^\| \*([^*]+)\* \|`)
	words := row.FindAllStringSubmatch(read(t, "docs/glossary.md"), -1)
	require.Greater(t, len(words), 20)
	last := ""
	for _, word := range words {
		require.Contains(t, used, word[1])
		place := strings.ReplaceAll(word[1], "-", " ")
		require.LessOrEqual(t, last, place, "in order of the alphabet")
		last = place
	}
}

func TestEveryHeaderIsDocumented(t *testing.T) {
	t.Parallel()
	headers := map[string]bool{}
	for _, found := range regexp.MustCompile(`"(millpond-[^"]*)"`).
		FindAllStringSubmatch(read(t, "middleware/header/keys.go"), -1) {
		headers[found[1]] = true
	}
	require.NotEmpty(t, headers)
	named := regexp.MustCompile("`(millpond-[a-z-]+)`")
	for _, document := range []string{"docs/wire.md"} {
		text := read(t, document)
		for header := range maps.Keys(headers) {
			require.Contains(t, text, "`"+header+"`", document)
		}
		for _, found := range named.FindAllStringSubmatch(text, -1) {
			require.True(t, headers[found[1]], "%s names %s", document, found[1])
		}
	}
}

var (
	fact      = regexp.MustCompile(`\bF[1-9][0-9]?\b`)
	namedTest = regexp.MustCompile("`(Test[A-Z][A-Za-z0-9]*)`")
)

func TestEveryFactThatIsCitedIsThere(t *testing.T) {
	t.Parallel()
	facts := read(t, "docs/broker-facts.md")
	check := func(path, text string) {
		for _, cited := range fact.FindAllString(text, -1) {
			require.Contains(t, facts, "\n## "+cited+" ", "%s cites %s", path, cited)
		}
	}
	goFiles(t, check)
	for _, document := range documents(t) {
		check(document, read(t, document))
	}
}

func TestEveryTestThatIsNamedIsThere(t *testing.T) {
	t.Parallel()
	there := readSource(t).tests
	named := 0
	for _, document := range documents(t) {
		for _, test := range namedTest.FindAllStringSubmatch(read(t, document), -1) {
			named++
			require.Contains(t, there, test[1], "%s names a test that is in no file", document)
		}
	}
	require.Greater(t, named, 50)
}

// Every promise names its test. A limit may name a measurement instead.
func TestEveryGuaranteeNamesItsTest(t *testing.T) {
	t.Parallel()
	_, text, found := strings.Cut(read(t, "docs/guarantees.md"), "\n## ")
	require.True(t, found)
	rows, items := 0, 0
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "| ") || strings.HasSuffix(line, "| shown by |\n") {
			continue
		}
		rows++
		require.Regexp(t, namedTest, line)
	}
	for _, item := range strings.Split(text, "\n- ")[1:] {
		item, _, _ = strings.Cut(item, "\n\n")
		items++
		require.True(t, namedTest.MatchString(item) || fact.MatchString(item),
			"no test and no fact shows it: %s", item)
	}
	require.Greater(t, rows, 20)
	require.Greater(t, items, 15)
}
