package docs_test

import (
	"fmt"
	"path"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Every decision has the same form, and its title is its line in the index.
func TestDecisionsHaveOneForm(t *testing.T) {
	t.Parallel()
	index := read(t, "docs/decisions/README.md")
	number := 0
	for _, document := range documents(t) {
		name := path.Base(document)
		if path.Dir(document) != "docs/decisions" || name == "README.md" {
			continue
		}
		number++
		require.True(t, strings.HasPrefix(name, fmt.Sprintf("%04d-", number)),
			"%s is not decision %d", document, number)
		text := read(t, document)
		begin := fmt.Sprintf("# %d. ", number)
		require.True(t, strings.HasPrefix(text, begin), "%s does not begin with %q", document, begin)
		title, rest, _ := strings.Cut(strings.TrimPrefix(text, begin), "\n")
		require.Contains(t, index, fmt.Sprintf("\n%d. [%s](%s)\n", number, title, name))
		for _, heading := range []string{"Context", "Decision", "Consequences"} {
			_, after, found := strings.Cut(rest, "\n## "+heading+"\n")
			require.True(t, found, "%s has no heading %s in its place", document, heading)
			rest = after
		}
	}
	require.GreaterOrEqual(t, number, 37)
}
