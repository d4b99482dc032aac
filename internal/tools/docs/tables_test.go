package docs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// source holds the string literals of the repository's Go files.
type source struct {
	code  []string            // of files that are not tests
	tests map[string][]string // for each test, the strings of its file
}

var all struct {
	sync.Once
	source
}

// readSource reads the files once for all tests.
func readSource(t *testing.T) source {
	t.Helper()
	all.Do(func() {
		all.tests = map[string][]string{}
		goFiles(t, func(path, text string) {
			file, err := parser.ParseFile(token.NewFileSet(), path, text, parser.SkipObjectResolution)
			require.NoError(t, err)
			texts := stringsOf(file)
			if !strings.HasSuffix(path, "_test.go") {
				all.code = append(all.code, texts...)
				return
			}
			for _, decl := range file.Decls {
				f, ok := decl.(*ast.FuncDecl)
				if ok && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Test") {
					all.tests[f.Name.Name] = append(all.tests[f.Name.Name], append(texts, "")...)
				}
			}
		})
	})
	return all.source
}

// stringsOf returns the strings of a file. Literals that are added up count as one.
func stringsOf(file *ast.File) (found []string) {
	ast.Inspect(file, func(n ast.Node) bool {
		if e, ok := n.(ast.Expr); ok {
			if text := strings.Trim(literalText(e), "…"); text != "" {
				found = append(found, text)
				return false
			}
		}
		return true
	})
	return found
}

// rows returns the cells of the tables of a document whose last column names tests.
func rows(t *testing.T, document string) (found [][]string) {
	t.Helper()
	for line := range strings.Lines(read(t, document)) {
		cells := strings.Split(strings.Trim(line, "| \n"), " | ")
		if strings.HasPrefix(line, "|") && strings.Contains(cells[len(cells)-1], "`Test") {
			found = append(found, cells)
		}
	}
	return found
}

var quoted = regexp.MustCompile("`([^`]+)`")

// Every test that docs/middlewares.md and docs/troubleshooting.md name is there.
func TestTablesNameTestsThatExist(t *testing.T) {
	t.Parallel()
	s := readSource(t)
	for document, least := range map[string]int{
		"docs/middlewares.md": 23, "docs/troubleshooting.md": 19,
	} {
		rows := rows(t, document)
		require.GreaterOrEqual(t, len(rows), least, document)
		for _, row := range rows {
			names := quoted.FindAllStringSubmatch(row[len(row)-1], -1)
			require.NotEmpty(t, names)
			for _, name := range names {
				require.Contains(t, s.tests, name[1], document)
			}
		}
	}
}

// Every message that docs/troubleshooting.md quotes is in the code, and the test beside it
// looks for it.
func TestMessagesAreQuotedFromTheCode(t *testing.T) {
	t.Parallel()
	s := readSource(t)
	for _, row := range rows(t, "docs/troubleshooting.md") {
		require.Len(t, row, 4, row[0])
		message := quoted.FindStringSubmatch(row[1])
		require.NotNil(t, message, row[0])
		quotes := func(text string) bool { return strings.Contains(text, message[1]) }
		require.True(t, slices.ContainsFunc(s.code, quotes), "no code says %q", message[1])
		for _, test := range quoted.FindAllStringSubmatch(row[3], -1) {
			require.True(t, slices.ContainsFunc(s.tests[test[1]], func(text string) bool {
				return len(text) >= 10 && (strings.Contains(message[1], text) || quotes(text))
			}), "%s looks for nothing of %q", test[1], message[1])
		}
	}
}

// docs/middlewares.md has a row for each middleware that Watermill brings.
func TestEveryMiddlewareHasARow(t *testing.T) {
	t.Parallel()
	var first strings.Builder
	for _, row := range rows(t, "docs/middlewares.md") {
		first.WriteString(row[0])
	}
	for _, name := range []string{
		"Recoverer", "Timeout", "CorrelationID", "Retry", "PoisonQueue", "Throttle",
		"CircuitBreaker", "Deduplicator", "InstantAck", "IgnoreErrors", "RandomFail", "RandomPanic",
		"Duplicator", "DelayOnError", "components/metrics",
	} {
		require.Contains(t, first.String(), "`"+name+"`")
	}
}
