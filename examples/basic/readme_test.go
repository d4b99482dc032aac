package main

import (
	"context"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/topology"
)

const root = "../../"

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(root + path)
	require.NoError(t, err)
	return string(text)
}

// documents are the Markdown files of the repository.
func documents(t *testing.T) []string {
	t.Helper()
	found := []string{"README.md", "CHANGELOG.md"}
	for _, pattern := range []string{"docs/*.md", "docs/decisions/*.md"} {
		files, err := filepath.Glob(root + pattern)
		require.NoError(t, err)
		for _, file := range files {
			found = append(found, filepath.ToSlash(strings.TrimPrefix(file, filepath.Clean(root)+string(filepath.Separator))))
		}
	}
	return found
}

func TestReadmeShowsTheSampleThatCompiles(t *testing.T) {
	t.Parallel()
	_, sample, found := strings.Cut(read(t, "examples/basic/readme_sample_test.go"), "\nimport (")
	require.True(t, found)
	readme := read(t, "README.md")
	above, _, found := strings.Cut(readme, "```go\nimport ("+sample+"```\n")
	require.True(t, found, "the README's Go sample differs from readme_sample_test.go")
	require.Less(t, strings.Count(above, "\n"), 40, "lines above the sample")
	require.LessOrEqual(t, strings.Count(readme, "\n"), 200, "lines of the README")
}

func TestReadmeShowsThePlanOfItsSample(t *testing.T) {
	t.Parallel()
	plan, err := topology.PerQueue{}.Plan("orders", backoff.List{2 * time.Second, 5 * time.Second, 15 * time.Second})
	require.NoError(t, err)
	_, table, _ := strings.Cut(plan.String(), "\n")
	// Editors cut what trails a line, and so does the README.
	require.Contains(t, read(t, "README.md"), regexp.MustCompile(` +\n`).ReplaceAllString(table, "\n"))
}

// The sample's context is cancelled while its handler works: that message is
// handled once and acked.
func TestReadmeSampleRuns(t *testing.T) {
	t.Parallel()
	url := testbroker.Private(t).URL()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	calls := make(chan string, 10)
	ended := make(chan error, 1)
	go func() {
		ended <- ServeOrders(ctx, url, func(msg *message.Message) error {
			cancel()
			select { // the work goes on while the service shuts down
			case <-msg.Context().Done():
			case <-time.After(300 * time.Millisecond):
			}
			calls <- string(msg.Payload)
			return msg.Context().Err()
		}, watermill.NopLogger{})
	}()
	testbroker.WaitFor(t, "the last queue of the plan", 30*time.Second, func() bool {
		return testbroker.Depth(t, url, "orders.dlq") == 0
	})
	p, err := dialPlain(url)
	require.NoError(t, err)
	defer p.conn.Close()
	require.NoError(t, p.publish(t.Context(), "orders", "42"))
	require.NoError(t, <-ended)
	require.Equal(t, "42", <-calls)
	require.Empty(t, calls)
	for _, queue := range []string{"orders", "orders.wait.2s", "orders.wait.5s", "orders.wait.15s", "orders.dlq"} {
		require.Equal(t, 0, testbroker.Depth(t, url, queue), queue)
	}
}

func TestEveryHeaderIsDocumented(t *testing.T) {
	t.Parallel()
	file, err := parser.ParseFile(token.NewFileSet(), root+"middleware/header/keys.go", nil, parser.SkipObjectResolution)
	require.NoError(t, err)
	var headers []string
	ast.Inspect(file, func(n ast.Node) bool {
		if literal, ok := n.(*ast.BasicLit); ok && literal.Kind == token.STRING {
			if header, err := strconv.Unquote(literal.Value); err == nil && strings.HasPrefix(header, "millpond-") {
				headers = append(headers, header)
			}
		}
		return true
	})
	require.NotEmpty(t, headers)
	for _, document := range []string{"docs/wire.md"} {
		text := read(t, document)
		for _, header := range headers {
			require.Contains(t, text, "`"+header+"`", document)
		}
		for _, named := range regexp.MustCompile("`(millpond-[a-z-]+)`").FindAllStringSubmatch(text, -1) {
			require.Contains(t, headers, named[1], document)
		}
	}
}

func TestEveryFactThatIsCitedIsThere(t *testing.T) {
	t.Parallel()
	facts := read(t, "docs/broker-facts.md")
	cite := regexp.MustCompile(`\bF[1-9][0-9]?\b`)
	check := func(path, text string) {
		for _, fact := range cite.FindAllString(text, -1) {
			require.Contains(t, facts, "\n## "+fact+" ", "%s cites %s", path, fact)
		}
	}
	require.NoError(t, filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".go" {
			return err
		}
		text, err := os.ReadFile(path)
		check(path, string(text))
		return err
	}))
	for _, document := range documents(t) {
		check(document, read(t, document))
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
