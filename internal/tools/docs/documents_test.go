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

// documents returns the Markdown files of the repository.
func documents(t *testing.T) []string {
	t.Helper()
	var found []string
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/decisions/*.md"} {
		files, err := filepath.Glob(root + pattern)
		require.NoError(t, err)
		for _, file := range files {
			name, err := filepath.Rel(root, file)
			require.NoError(t, err)
			found = append(found, filepath.ToSlash(name))
		}
	}
	require.Contains(t, found, "README.md")
	return found
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

// block is a fenced piece of a document.
type block struct{ kind, before, text string }

var fenced = regexp.MustCompile("(?ms)^([^\n]*)\n\n?```([^\n]*)\n(.*?)^```$")

// blocks returns the fenced pieces in their order, with the line of text above each.
func blocks(text string) []block {
	var found []block
	for _, m := range fenced.FindAllStringSubmatch(text, -1) {
		found = append(found, block{kind: m[2], before: m[1], text: m[3]})
	}
	return found
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
			_, text, _ = strings.Cut(text, "\n## Next\n")
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

// commands are the beginnings of the commands in fenced pieces, each with the test that runs
// it. The fence of a command that no test runs gives the reason.
var commands = []struct{ begins, runBy string }{
	{"make demo", "TestDemoLosesNothing"},
	{"make test", "TestCommandsOfDocumentsAreRun"}, // which runs this test, and all others
	{"go mod edit -require=", "TestGettingStarted"},
	{"go mod tidy", "TestGettingStarted"},
	{"export AMQP_URL=", "TestCommandsPrintWhatTheyDo"},
	{
		"go run ./internal/tools/withbroker -- go run ./examples/adopt",
		"TestQueueGainsRetriesAndLosesThemAgain",
	},
	{"go run ./cmd/millpond declare orders", "TestCommandsPrintWhatTheyDo"},
	{"go run ./cmd/millpond verify orders", "TestCommandsPrintWhatTheyDo"},
	{"go run ./cmd/millpond prune orders", "TestCommandsPrintWhatTheyDo"},
	{"millpond dead list", "TestIncidentDownstreamOutage"},
	{"millpond dead replay", "TestIncidentDownstreamOutage"},
	{"rabbitmqctl set_permissions -p shop", "TestSecurityDocumentIsTrue"},
	{"rabbitmqctl set_permissions --vhost shop", "TestRecommendedBrokerSettings"},
	{"rabbitmqctl add_", "TestRecommendedBrokerSettings"},
	{"rabbitmqctl eval", "TestRecommendedBrokerSettings"},
	{"rabbitmqctl set_policy", "TestRecommendedBrokerSettings"},
	{"rabbitmqctl set_user_tags", "TestRecommendedBrokerSettings"},
	{"rabbitmqctl set_vhost_limits", "TestRecommendedBrokerSettings"},
	{"rabbitmqctl update_vhost_metadata", "TestRecommendedBrokerSettings"},
	{"rabbitmq-queues grow", "TestRecommendedBrokerSettings"},
}

func TestCommandsOfDocumentsAreRun(t *testing.T) {
	t.Parallel()
	there := readSource(t).tests
	shown := 0
	for _, document := range documents(t) {
		if document == "docs/getting-started.md" { // TestGettingStarted runs the whole page
			continue
		}
		for _, b := range blocks(read(t, document)) {
			kind, mark, _ := strings.Cut(b.kind, " ")
			if kind != "sh" || strings.HasPrefix(mark, "not run") {
				continue
			}
			for line := range strings.Lines(strings.ReplaceAll(b.text, "\\\n", " ")) {
				if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
					continue
				}
				shown++
				run := false
				for _, c := range commands {
					run = run || strings.HasPrefix(line, c.begins) && there[c.runBy] != nil
				}
				require.True(t, run, "%s shows a command that no test runs: %s\n"+
					"run it in a test, or say why not in its fence", document, line)
			}
		}
	}
	require.Greater(t, shown, 5)
}

func TestReadmeShowsTheSampleThatCompiles(t *testing.T) {
	t.Parallel()
	_, sample, found := strings.Cut(read(t, "examples/basic/serve.go"), "\n// ServeOrders ")
	require.True(t, found)
	readme := read(t, "README.md")
	above, _, found := strings.Cut(readme, "```go\n// ServeOrders "+sample+"```\n")
	require.True(t, found, "the README's Go sample differs from examples/basic/serve.go")
	require.Less(t, strings.Count(above, "\n"), 40, "lines above the sample")
	require.LessOrEqual(t, len(strings.Fields(readme)), 900, "words of the README")
}

func TestGettingStartedShowsThePlanOfItsProgram(t *testing.T) {
	t.Parallel()
	policy := backoff.List{time.Second, 2 * time.Second, 4 * time.Second}
	plan, err := topology.PerQueue{}.Plan("orders", policy)
	require.NoError(t, err)
	// Editors cut spaces at the end of a line, and so does the page.
	table := regexp.MustCompile(` +\n`).ReplaceAllString(plan.String(), "\n")
	page := read(t, "docs/getting-started.md")
	require.Contains(t, page, table)
	require.Contains(t, page, "= backoff.List{time.Second, 2 * time.Second, 4 * time.Second}\n")
}

// shownPolicies are policies of docs/getting-started.md, a line each, as the page has them.
var shownPolicies = []backoff.Policy{
	backoff.List{2 * time.Second, 5 * time.Second, 15 * time.Second},
	backoff.Constant{Interval: 5 * time.Second, Retries: 3},
	backoff.Linear{Initial: time.Second, Step: time.Second, Retries: 3},
	backoff.Exponential{Initial: time.Second, Factor: 2, Retries: 4},
	backoff.Exponential{Initial: time.Second, Factor: 10, Max: 500 * time.Second, Retries: 5},
	backoff.Fibonacci{Initial: time.Second, Retries: 5},
}

func TestPagesShowTheDelaysOfPolicies(t *testing.T) {
	t.Parallel()
	_, rows, _ := strings.Cut(read(t, "docs/getting-started.md"), "\n## Policies\n")
	_, source, _ := strings.Cut(read(t, "internal/tools/docs/documents_test.go"),
		"\nvar shownPolicies = []backoff.Policy{\n")
	inSeconds := strings.NewReplacer("1m40s", "100s", "8m20s", "500s")
	for _, policy := range shownPolicies {
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
	for line := range strings.Lines(read(t, "README.md")) {
		if strings.HasPrefix(line, "| `backoff.") && !strings.Contains(line, "FullJitter") {
			require.Contains(t, rows, line, "a policy of the README")
		}
	}
}

// The index leads to every page.
func TestIndexIsWhole(t *testing.T) {
	t.Parallel()
	index := read(t, "docs/README.md")
	for _, document := range documents(t) {
		page, ok := strings.CutPrefix(document, "docs/")
		if ok && page != "README.md" && !strings.Contains(page, "/") {
			require.Contains(t, index, "]("+page+")")
		}
	}
}

func TestLinksLeadSomewhere(t *testing.T) {
	t.Parallel()
	link := regexp.MustCompile(`\]\(([^)#]+)(?:#[^)]*)?\)`)
	for _, document := range documents(t) {
		for _, found := range link.FindAllStringSubmatch(read(t, document), -1) {
			if strings.Contains(found[1], "://") {
				continue
			}
			_, err := os.Stat(filepath.Join(root, filepath.Dir(document), found[1]))
			require.NoError(t, err, "%s links to %s", document, found[1])
		}
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

func TestEveryTestThatIsNamedIsThere(t *testing.T) {
	t.Parallel()
	there := readSource(t).tests
	named := 0
	for _, document := range documents(t) {
		for _, test := range namedTest.FindAllStringSubmatch(read(t, document), -1) {
			named++
			_, found := there[test[1]]
			require.True(t, found, "%s names %s, which is in no file", document, test[1])
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
