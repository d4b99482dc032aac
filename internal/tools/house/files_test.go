package house_test

import (
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// goFiles calls visit for every Go file of the repository with its path below the root.
func goFiles(t *testing.T, visit func(path, source string)) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(root, func(file string, e fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(file) != ".go" {
			return err
		}
		source, err := os.ReadFile(file)
		visit(filepath.ToSlash(strings.TrimPrefix(file, filepath.Clean(root)+"/")), string(source))
		return err
	}))
}

func isStrict(file string) bool {
	return slices.ContainsFunc(strict, func(dir string) bool { return strings.HasPrefix(file, dir) })
}

const (
	mostColumns   = 100
	mostLines     = 450
	mostTestLines = 600
)

func TestFilesAreShort(t *testing.T) {
	t.Parallel()
	goFiles(t, func(file, source string) {
		if !isStrict(file) {
			return
		}
		most := mostLines
		if strings.HasSuffix(file, "_test.go") {
			most = mostTestLines
		}
		lines := strings.Split(source, "\n")
		assert.LessOrEqual(t, len(lines)-1, most, "%s is too long: give each subject its file", file)
		for i, line := range lines {
			assert.LessOrEqual(t, utf8.RuneCountInString(line), mostColumns, "%s:%d", file, i+1)
		}
	})
}

// everywhere are names that say the same in every package.
var everywhere = []string{"doc.go", "main.go", "main_test.go", "example_test.go", "export_test.go"}

// A name that is there once is found by its name.
func TestFileNamesAreUnique(t *testing.T) {
	t.Parallel()
	named := map[string][]string{}
	goFiles(t, func(file, _ string) { named[path.Base(file)] = append(named[path.Base(file)], file) })
	for name, files := range named {
		if !slices.Contains(everywhere, name) && slices.ContainsFunc(files, isStrict) {
			assert.Len(t, files, 1, "%s: name each file after its subject", name)
		}
	}
}
