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
		FindAllStringSubmatch(read(t, "internal/keys/keys.go")+read(t, "middleware/header/keys.go"), -1) {
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
