package docs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/millpond-go/millpond/internal/testing/testbroker"
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

func TestEveryHeaderIsDocumented(t *testing.T) {
	t.Parallel()
	headers := map[string]bool{}
	for _, found := range regexp.MustCompile(`"(millpond-[^"]*)"`).
		FindAllStringSubmatch(read(t, "internal/keys/keys.go")+read(t, "middleware/header/keys.go"), -1) {
		headers[found[1]] = true
	}
	require.NotEmpty(t, headers)
	named := regexp.MustCompile("`(millpond-[a-z-]+)`")
	text := read(t, "docs/wire.md")
	for header := range headers {
		require.Contains(t, text, "`"+header+"`")
	}
	for _, found := range named.FindAllStringSubmatch(text, -1) {
		require.True(t, headers[found[1]], "docs/wire.md names %s", found[1])
	}
}

var (
	fact      = regexp.MustCompile(`\bF[1-9][0-9]?\b`)
	namedTest = regexp.MustCompile("`((?:Test|Fuzz)[A-Z][A-Za-z0-9]*)`")
)

func TestEveryTestThatIsNamedIsThere(t *testing.T) {
	t.Parallel()
	there := readSource(t).tests
	named := 0
	for _, document := range documents(t) {
		for _, test := range namedTest.FindAllStringSubmatch(read(t, document), -1) {
			named++
			require.True(t, there[test[1]], "%s names %s, which is in no file", document, test[1])
		}
	}
	require.Greater(t, named, 50)
}

// factHeading is the heading of a fact, which gives it its anchor: ### F23 is #f23.
var factHeading = regexp.MustCompile(`(?m)^### (F[1-9][0-9]?)$`)

func TestEveryFactThatIsCitedIsThere(t *testing.T) {
	t.Parallel()
	there := map[string]bool{}
	facts := read(t, "docs/notes/broker-facts.md")
	for _, found := range factHeading.FindAllStringSubmatch(facts, -1) {
		require.False(t, there[found[1]], "two headings %s", found[1])
		there[found[1]] = true
	}
	require.Greater(t, len(there), 40)
	check := func(path, text string) {
		for _, cited := range fact.FindAllString(text, -1) {
			require.True(t, there[cited], "%s cites %s", path, cited)
		}
	}
	goFiles(t, check)
	for _, document := range documents(t) {
		check(document, read(t, document))
	}
}

// source is what tests ask of the repository's Go files.
type source struct {
	code  []string        // string literals of files that are not tests
	tests map[string]bool // names
}

var isTest = regexp.MustCompile("^(Test|Fuzz)")

var all struct {
	sync.Once
	source
}

// readSource reads the files once for all tests.
func readSource(t *testing.T) source {
	t.Helper()
	all.Do(func() {
		all.tests = map[string]bool{}
		goFiles(t, func(path, text string) {
			file, err := parser.ParseFile(token.NewFileSet(), path, text, parser.SkipObjectResolution)
			require.NoError(t, err)
			if !strings.HasSuffix(path, "_test.go") {
				all.code = append(all.code, stringsOf(file)...)
				return
			}
			for _, decl := range file.Decls {
				if f, ok := decl.(*ast.FuncDecl); ok && f.Recv == nil && isTest.MatchString(f.Name.Name) {
					all.tests[f.Name.Name] = true
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

// quoted is a row of a table that begins with a text of the library.
var quoted = regexp.MustCompile("(?m)^\\| `([^`]+)` \\|")

// Every message that the section Troubleshooting of docs/operations.md quotes is in the code.
func TestMessagesAreQuotedFromTheCode(t *testing.T) {
	t.Parallel()
	code := readSource(t).code
	_, section, found := strings.Cut(read(t, "docs/operations.md"), "\n## Troubleshooting\n")
	require.True(t, found)
	rows := quoted.FindAllStringSubmatch(section, -1)
	require.Greater(t, len(rows), 25)
	for _, row := range rows {
		require.True(t, slices.ContainsFunc(code, func(text string) bool {
			return strings.Contains(text, row[1])
		}), "no code says %q", row[1])
	}
}

// docs/notes/log-lines.md has every line that the library logs, with its level, and no other line.
// It names every field.
func TestEveryLogLineIsDocumented(t *testing.T) {
	t.Parallel()
	lines, fields := logged(t)
	document := read(t, "docs/notes/log-lines.md")
	documented := map[string]bool{}
	row := regexp.MustCompile("(?m)^\\| (error|info|debug|trace) \\| `([^`]+)` \\|")
	for _, cells := range row.FindAllStringSubmatch(document, -1) {
		documented[cells[1]+": "+cells[2]] = true
	}
	require.Greater(t, len(lines), 30)
	require.Equal(t, slices.Sorted(maps.Keys(lines)), slices.Sorted(maps.Keys(documented)))
	for _, field := range slices.Sorted(maps.Keys(fields)) {
		require.Contains(t, document, "`"+field+"`")
		require.Regexp(t, "^[a-z]+(_[a-z]+)*$", field)
	}
}

// notLogging are the folders with code that is no part of the library.
var notLogging = regexp.MustCompile(
	`^(cmd|examples|internal/(bench|lab|testing|tools))/|_test\.go$`)

// logged returns the lines that the library's code can log, as "level: message", and the names
// of their fields.
func logged(t *testing.T) (lines, fields map[string]bool) {
	t.Helper()
	lines, fields = map[string]bool{}, map[string]bool{}
	goFiles(t, func(path, text string) {
		if notLogging.MatchString(path) {
			return
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, text, parser.SkipObjectResolution)
		require.NoError(t, err)
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CallExpr:
				if level, text := logCall(t, path, n); level != "" {
					lines[level+": "+text] = true
				}
			case *ast.CompositeLit:
				collectFields(n, fields)
			case *ast.AssignStmt: // fields["reason"] = …
				if index, ok := n.Lhs[0].(*ast.IndexExpr); ok && name(index.X) == "fields" {
					collectKey(index.Index, fields)
				}
			}
			return true
		})
	})
	return lines, fields
}

// logCall returns the level and the message of a call that logs. The call is a logger's, or
// the call of a function that logs its first argument.
func logCall(t *testing.T, path string, call *ast.CallExpr) (level, text string) {
	selector, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || len(call.Args) == 0 {
		return "", ""
	}
	level, of := strings.ToLower(selector.Sel.Name), strings.ToLower(name(selector.X))
	switch {
	case name(call.Args[0]) == "holding": // in again and settle themselves
		return "", ""
	case of == "d" && (level == "settle" || level == "again"): // they log why they hold a message
		level = "error"
	case !strings.HasSuffix(of, "logger") && of != "plain",
		!slices.Contains([]string{"error", "info", "debug", "trace"}, level):
		return "", ""
	}
	text = literalText(call.Args[0])
	require.NotEqual(t, "…", text, "%s logs a message that is not a literal", path)
	return level, text
}

// name returns the last identifier of an expression.
func name(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	}
	return ""
}

// literalText returns the text of string literals that are added up, with "…" for other parts.
func literalText(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		if text, err := strconv.Unquote(e.Value); err == nil {
			return text
		}
	case *ast.BinaryExpr:
		return literalText(e.X) + literalText(e.Y)
	}
	return "…"
}

func collectFields(literal *ast.CompositeLit, fields map[string]bool) {
	if selector, ok := literal.Type.(*ast.SelectorExpr); !ok || selector.Sel.Name != "LogFields" {
		return
	}
	for _, element := range literal.Elts {
		if pair, ok := element.(*ast.KeyValueExpr); ok {
			collectKey(pair.Key, fields)
		}
	}
}

func collectKey(key ast.Expr, fields map[string]bool) {
	if literal, ok := key.(*ast.BasicLit); ok {
		fields[literalText(literal)] = true
	}
}
