package docs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// docs/monitoring.md has every line that the library logs, with its level, and no other line.
// It names every field.
func TestEveryLogLineIsDocumented(t *testing.T) {
	t.Parallel()
	lines, fields := logged(t)
	document := read(t, "docs/monitoring.md")
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
