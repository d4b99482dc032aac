package house_test

import (
	"fmt"
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

	"github.com/stretchr/testify/require"
)

// forbidden are words that this repository does not use, between bars, and how to write instead.
var forbidden = []struct{ pattern, instead string }{
	{
		`whoever | nobody | somebody | anybody | whatever`,
		"name the reader, the process, the message",
	},
	{`ours`, "name the noun"},
	{`hence | thus`, "so"},
	{`therein`, "in it"},
	{`till`, "until"},
	{`shall`, "must"},
	{`what (?:is|was|the|it|a|an)`, "name the noun: the message, the queue, the broker"},
	{`that of | those of`, "repeat the noun"},
	{`those that | one that | such a one`, "name the noun: messages that, a queue that"},
	{`of its own`, "its own queue"},
	{`is \S+ as \S+ is`, "say both facts, each in its sentence"},
	{`, ` + because + ` | ; ` + because, "because"},
}

const because = "for (?:a|an|the|it|its|they|there|no|that|this|these|those|each|every|nothing|" +
	"none)"

// word is a forbidden one. Its pattern begins with a text in lower case: that is found fast.
type word struct {
	*regexp.Regexp
	instead string
}

// patterns compiles the words.
func patterns() (found []word) {
	for _, row := range forbidden {
		for pattern := range strings.SplitSeq(row.pattern, " | ") {
			pattern = strings.ReplaceAll(pattern, " ", `\s+`) + `(?:[^\w-]|$)`
			found = append(found, word{regexp.MustCompile(pattern), row.instead})
		}
	}
	return found
}

// A reader whose language is not English meets these words in no comment, log or error text.
func TestWordsArePlain(t *testing.T) {
	t.Parallel()
	words := patterns()
	goFiles(t, func(path, source string) {
		if path == "internal/tools/house/words_test.go" {
			return
		}
		for _, p := range prose(t, path, source) {
			for _, fault := range notPlain(words, p.text, p.line) {
				t.Error(path + ":" + fault)
			}
		}
	})
}

// The same words stand on no page, outside of code and addresses.
func TestWordsOfPagesArePlain(t *testing.T) {
	t.Parallel()
	words, read := patterns(), 0
	require.NoError(t, filepath.WalkDir(root, func(file string, e fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(file) != ".md" || strings.Contains(file, "/testdata/") {
			return err
		}
		source, err := os.ReadFile(file)
		name := filepath.ToSlash(strings.TrimPrefix(file, filepath.Clean(root)+"/"))
		for _, fault := range notPlain(words, proseOf(string(source)), 1) {
			t.Error(name + ":" + fault)
		}
		read++
		return err
	}))
	require.Greater(t, read, 50)
}

var insideWord = regexp.MustCompile(`^[\w-]{2}`)

// notPlain returns where a text has one of the words as a whole word, also across the end of a
// line. The line comes first.
func notPlain(words []word, text string, line int) (faults []string) {
	text = strings.ToLower(text)
	for _, word := range words {
		if first, _ := word.LiteralPrefix(); !strings.Contains(text, first) {
			continue
		}
		for _, at := range word.FindAllStringIndex(text, -1) {
			if at[0] > 0 && insideWord.MatchString(text[at[0]-1:]) {
				continue
			}
			faults = append(faults, fmt.Sprintf("%d: %q; write instead: %s",
				line+strings.Count(text[:at[0]], "\n"),
				strings.Trim(text[at[0]:at[1]], " \n.,;:()[]|*_"), word.instead))
		}
	}
	return faults
}

var (
	fencedCode = regexp.MustCompile("(?ms)^ *(```+)[^\n]*\n.*?^ *```+ *$")
	inlineCode = regexp.MustCompile("``[^\n]+?``|`[^`\n]*`")
	targets    = regexp.MustCompile(`\]\([^)\n]*\)|https?://\S+|<[^>\n]*>`)
)

// proseOf returns a page with # in place of code and addresses. Its lines keep their numbers.
func proseOf(page string) string {
	for _, foreign := range []*regexp.Regexp{fencedCode, inlineCode, targets} {
		page = foreign.ReplaceAllStringFunc(page, func(text string) string {
			return strings.Map(func(r rune) rune {
				if r == '\n' {
					return r
				}
				return '#'
			}, text)
		})
	}
	return page
}

func TestForbiddenWordsOfPagesAreFound(t *testing.T) {
	t.Parallel()
	for page, want := range map[string][]string{
		"# Title\n\nThe message waits.\n":                   nil,
		"one\n\n```sh\nnobody\n```\n\nA `what is` is code.": nil,
		"- a\n\n  ```go\n  // ours\n  ```\n":                nil,
		"[a](hence/till.md) <https://a.org/thus>":           nil,
		"a\n\n**Nobody** waits.":                            {`3: "nobody"`},
		"| a |\n|---|\n|whoever|":                           {`3: "whoever"`},
		"[what is there](a.md)":                             {`1: "what is"`},
		"```go\na\n```\nhence\n```go\nb\n```\n":             {`4: "hence"`},
		"a `b` thus `c`, till then":                         {`1: "thus"`, `1: "till"`},
		"a\nnobody\nnobody":                                 {`2: "nobody"`, `3: "nobody"`},
		"It waits, for the\nqueue is full":                  {`1: "for the"`},
	} {
		found := notPlain(patterns(), proseOf(page), 1)
		require.Len(t, found, len(want), "%q: %q", page, found)
		for i := range want {
			require.Contains(t, found[i], want[i], page)
		}
	}
}

// passage is a comment, or a text that the code logs or returns as an error.
type passage struct {
	line int
	text string
}

// prose returns the passages of a file.
func prose(t *testing.T, path, source string) []passage {
	t.Helper()
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, path, source, parser.ParseComments)
	require.NoError(t, err)
	var found []passage
	add := func(at token.Pos, text string) {
		found = append(found, passage{files.Position(at).Line, unquoted(text)})
	}
	for _, group := range file.Comments {
		var text strings.Builder
		for _, comment := range group.List {
			text.WriteString(strings.TrimPrefix(comment.Text, "//") + "\n")
		}
		add(group.Pos(), text.String())
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok && tells(call) {
			for _, argument := range call.Args {
				if text := literal(argument); text != "" {
					add(argument.Pos(), text)
				}
			}
		}
		return true
	})
	return found
}

// quotations are other people's words: code, the broker's texts, addresses.
var quotations = regexp.MustCompile("`[^`\n]*`|\"[^\"\n]*\"|https?://\\S+")

func unquoted(text string) string {
	return quotations.ReplaceAllStringFunc(text, func(quoted string) string {
		return strings.Repeat("#", len(quoted))
	})
}

var telling = regexp.MustCompile(`^(New|Errorf|(Error|Info|Debug|Trace|Warn|Fatal|Skip|Log)f?)$`)

// tells reports whether a call logs its text or makes an error of it.
func tells(call *ast.CallExpr) bool {
	f, ok := call.Fun.(*ast.SelectorExpr)
	return ok && telling.MatchString(f.Sel.Name)
}

// literal returns the text of string literals that are added up.
func literal(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		text, _ := strconv.Unquote(e.Value) // a number is no text
		return text
	case *ast.BinaryExpr:
		return literal(e.X) + literal(e.Y)
	}
	return ""
}

func TestForbiddenWordsAreFound(t *testing.T) {
	t.Parallel()
	const file = "package p\n\nimport \"errors\"\n\n"
	for name, test := range map[string]struct {
		code string
		want bool
	}{
		"a word":                 {"// nobody waits\nvar a int", true},
		"at the end of a line":   {"// It is what\n// the broker says.\nvar a int", true},
		"with a capital":         {"// Whoever reads.\nvar a int", true},
		"for as because":         {"// It waits, for the queue is full.\nvar a int", true},
		"an error's text":        {`var a = errors.New("nobody " + "waits")`, true},
		"is X as Y is Z":         {"// Eight is eight as nine is nine.\nvar a int", true},
		"for as in favour of":    {"// It waits for the queue.\nvar a int", false},
		"a part of a word":       {"// He tills hours; thus-and-so.\nvar a int", false},
		"a quoted text":          {"// It says \"nobody waits\" and `what is`.\nvar a int", false},
		"an identifier":          {"var nobody = ours()", false},
		"a string that is data":  {`var a = "nobody"`, false},
		"a loop":                 {"func f() {\n\tfor a := range 3 {\n\t\t_ = a\n\t}\n}", false},
		"an address":             {"// See https://example.org/what-is/till/x\nvar a int", false},
		"for example, its sense": {"// Some, for example this.\nvar a int", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			found := false
			for _, p := range prose(t, "p.go", file+test.code+"\n") {
				found = found || len(notPlain(patterns(), p.text, p.line)) > 0
			}
			require.Equal(t, test.want, found)
		})
	}
}
