package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
)

// block is a fenced piece of a document.
type block struct{ kind, before, text string }

// blocks returns the fenced pieces in their order, with the line of text above each.
func blocks(text string) []block {
	var found []block
	for _, m := range regexp.MustCompile("(?ms)^([^\n]*)\n\n?```([^\n]*)\n(.*?)^```$").FindAllStringSubmatch(text, -1) {
		found = append(found, block{kind: m[2], before: m[1], text: m[3]})
	}
	return found
}

// compiledLines are the lines of what compiles: the snippets, which are there for it,
// and Examples and programs.
func compiledLines(t *testing.T) map[string]bool {
	t.Helper()
	lines := map[string]bool{"": true}
	require.NoError(t, filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		name := filepath.Base(path)
		if err != nil || entry.IsDir() || !strings.HasSuffix(name, ".go") ||
			!strings.HasSuffix(name, "_snippets_test.go") && !strings.HasSuffix(name, "_sample_test.go") &&
				!strings.HasPrefix(name, "example_") && !strings.HasPrefix(path, filepath.Join(root, "examples")) {
			return err
		}
		text, err := os.ReadFile(path)
		for line := range strings.Lines(string(text)) {
			lines[bare(line)] = true
		}
		return err
	}))
	return lines
}

// bare is a line of Go without what a page and gofmt may have different views of.
func bare(line string) string {
	return strings.TrimSpace(regexp.MustCompile(`(^|\s)// .*$`).ReplaceAllString(strings.TrimSpace(line), ""))
}

// Line by line, for a page leaves out what every program has. What TestGettingStarted
// compiles is compiled there.
func TestDocumentsShowGoThatCompiles(t *testing.T) {
	t.Parallel()
	compiled := compiledLines(t)
	shown := 0
	for _, document := range documents(t) {
		text := read(t, document)
		if document == "docs/getting-started.md" {
			_, text, _ = strings.Cut(text, "\n## 5. ")
		}
		for _, b := range blocks(text) {
			if b.kind != "go" {
				continue
			}
			shown++
			for line := range strings.Lines(b.text) {
				require.True(t, compiled[bare(line)], "%s shows, and no snippet compiles: %s", document, line)
			}
		}
	}
	require.Greater(t, shown, 5)
}

// commands are those in fenced pieces, by how they begin, and the test that runs
// them, or what they run. One that nothing runs has the reason in its fence.
var commands = []struct{ begins, runBy string }{
	{"make demo", "TestDemoLosesNothing"},
	{"make test", "TestCommandsOfDocumentsAreRun"}, // this very test, and all others
	{"go mod edit -require=", "TestGettingStarted"},
	{"go mod tidy", "TestGettingStarted"},
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
	there := tests(t)
	shown := 0
	for _, document := range documents(t) {
		if document == "docs/getting-started.md" { // run as a whole
			continue
		}
		for _, b := range blocks(read(t, document)) {
			if kind, mark, _ := strings.Cut(b.kind, " "); kind != "sh" || strings.HasPrefix(mark, "not run") {
				continue
			}
			for line := range strings.Lines(strings.ReplaceAll(b.text, "\\\n", " ")) {
				if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
					continue
				}
				shown++
				run := false
				for _, c := range commands {
					run = run || strings.HasPrefix(line, c.begins) && there[c.runBy]
				}
				require.True(t, run, "%s shows a command that nothing runs, and does not say so: %s", document, line)
			}
		}
	}
	require.Greater(t, shown, 5)
}

// readmePolicies are the README's, a line each as it stands there.
var readmePolicies = []backoff.Policy{
	backoff.List{2 * time.Second, 5 * time.Second, 15 * time.Second},
	backoff.Constant{Interval: 5 * time.Second, Retries: 3},
	backoff.Linear{Initial: time.Second, Step: time.Second, Retries: 3},
	backoff.Exponential{Initial: time.Second, Factor: 2, Retries: 4},
	backoff.Exponential{Initial: time.Second, Factor: 10, Max: 500 * time.Second, Retries: 5},
	backoff.Fibonacci{Initial: time.Second, Retries: 5},
}

func TestReadmeShowsWhatPoliciesWait(t *testing.T) {
	t.Parallel()
	_, rows, _ := strings.Cut(read(t, "README.md"), "\n## Policies\n")
	_, source, _ := strings.Cut(read(t, "examples/basic/docs_test.go"), "\nvar readmePolicies = []backoff.Policy{\n")
	for _, policy := range readmePolicies {
		var line string
		line, source, _ = strings.Cut(source, "\n")
		var waits []string
		f := backoff.Failure{Count: 1}
		for wait, retry := policy.Delay(f); retry; wait, retry = policy.Delay(f) {
			waits = append(waits, strings.NewReplacer("1m40s", "100s", "8m20s", "500s").Replace(wait.String()))
			f.Count, f.Last = f.Count+1, wait
		}
		require.Contains(t, rows, "\n| `"+strings.TrimSuffix(strings.TrimSpace(line), ",")+"` | "+strings.Join(waits, " ")+" |\n")
	}
}

// A word of the glossary that the code does not use is one of somebody else.
func TestEveryWordIsUsed(t *testing.T) {
	t.Parallel()
	var code strings.Builder
	for _, dir := range []string{"backoff", "middleware", "topology"} {
		files, err := filepath.Glob(root + dir + "/*.go")
		require.NoError(t, err)
		for _, file := range files {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			code.Write(text)
		}
	}
	used := strings.Join(strings.Fields(strings.ReplaceAll(strings.ToLower(code.String()), "//", " ")), " ")
	words := regexp.MustCompile(`(?m)^\| \*([^*]+)\* \|`).FindAllStringSubmatch(read(t, "docs/glossary.md"), -1)
	require.Greater(t, len(words), 20)
	last := ""
	for _, word := range words {
		require.Contains(t, used, word[1])
		place := strings.ReplaceAll(word[1], "-", " ")
		require.LessOrEqual(t, last, place, "in order of the alphabet")
		last = place
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
