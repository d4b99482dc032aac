package docs_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// factHeading is the heading of a fact, which gives it its anchor: ### F23 is #f23.
var factHeading = regexp.MustCompile(`(?m)^### (F[1-9][0-9]?)$`)

// factsThatAreThere returns the facts that have a heading.
func factsThatAreThere(t *testing.T) map[string]bool {
	t.Helper()
	there := map[string]bool{}
	for _, found := range factHeading.FindAllStringSubmatch(read(t, "docs/broker-facts.md"), -1) {
		require.False(t, there[found[1]], "two headings %s", found[1])
		there[found[1]] = true
	}
	require.Greater(t, len(there), 40)
	return there
}

func TestEveryFactThatIsCitedIsThere(t *testing.T) {
	t.Parallel()
	facts := factsThatAreThere(t)
	check := func(path, text string) {
		for _, cited := range fact.FindAllString(text, -1) {
			require.True(t, facts[cited], "%s cites %s", path, cited)
		}
	}
	goFiles(t, check)
	for _, document := range documents(t) {
		check(document, read(t, document))
	}
}

// A link to a fact leads to the fact that it names, and the index of the facts is whole.
func TestLinksToFactsLeadToThem(t *testing.T) {
	t.Parallel()
	facts := factsThatAreThere(t)
	link := regexp.MustCompile(`\[([^\]]*)\]\(([^)#]*broker-facts\.md)?#(f[0-9]+)\)`)
	for _, document := range documents(t) {
		for _, found := range link.FindAllStringSubmatch(read(t, document), -1) {
			named := strings.ToUpper(found[3])
			require.True(t, facts[named], "%s links to a fact that is missing: %s", document, found[0])
			require.True(t, found[2] != "" || document == "docs/broker-facts.md",
				"%s links to a fact as if it were on this page: %s", document, found[0])
			if fact.MatchString(found[1]) {
				require.Equal(t, named, fact.FindString(found[1]), "%s: %s", document, found[0])
			}
		}
	}
	_, index, _ := strings.Cut(read(t, "docs/broker-facts.md"), "\n## Index\n")
	index, _, _ = strings.Cut(index, "\n## ")
	for name := range facts {
		require.Contains(t, index, "\n| ["+name+"](#"+strings.ToLower(name)+") |")
	}
}
