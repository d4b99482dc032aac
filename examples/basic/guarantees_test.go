package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var namedTest = regexp.MustCompile("`(Test[A-Z][A-Za-z0-9]*)`")

// tests are the names of all tests of the repository.
func tests(t *testing.T) map[string]bool {
	t.Helper()
	declared := regexp.MustCompile(`(?m)^func (Test\w+)\(t \*testing\.T\)`)
	found := map[string]bool{}
	require.NoError(t, filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, test := range declared.FindAllSubmatch(text, -1) {
			found[string(test[1])] = true
		}
		return err
	}))
	return found
}

func TestEveryTestThatIsNamedIsThere(t *testing.T) {
	t.Parallel()
	there := tests(t)
	named := 0
	for _, document := range documents(t) {
		for _, test := range namedTest.FindAllStringSubmatch(read(t, document), -1) {
			named++
			require.True(t, there[test[1]], "%s names %s, which is in no test file", document, test[1])
		}
	}
	require.Greater(t, named, 50)
}

// A promise without a test is none; what is not promised may have a measurement.
func TestEveryGuaranteeNamesItsTest(t *testing.T) {
	t.Parallel()
	_, text, found := strings.Cut(read(t, "docs/guarantees.md"), "\n## ")
	require.True(t, found)
	fact := regexp.MustCompile(`\bF[1-9][0-9]?\b`)
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
		require.True(t, namedTest.MatchString(item) || fact.MatchString(item), "shown by nothing: %s", item)
	}
	require.Greater(t, rows, 20)
	require.Greater(t, items, 15)
}
