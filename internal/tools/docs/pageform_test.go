package docs_test

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A page has one title, headings that differ, tables that are tables everywhere, and says of each
// fenced piece in which language it is.
func TestPagesAreWellFormed(t *testing.T) {
	t.Parallel()
	pages := pagesOf(t)
	for _, name := range slices.Sorted(maps.Keys(pages)) {
		pages[name].checkForm()
		pages[name].report(t)
	}
}

func (p *page) checkForm() {
	p.checkHeadings()
	p.checkTables()
	p.checkFacts()
	for _, b := range p.blocks {
		if b.kind == "" {
			p.fault(b.line, "a fence names no language: sh, go, text …")
		}
	}
}

func (p *page) checkHeadings() {
	if len(p.headings(1)) != 1 {
		p.fault(1, "%d titles (#): write one", len(p.headings(1)))
	} else if len(p.prose) == 0 || !strings.HasPrefix(p.prose[0], "# ") {
		p.fault(1, "the first line is not the title")
	}
	lines := map[string]int{}
	for i, line := range p.prose {
		h := heading.FindStringSubmatch(line)
		if h == nil {
			continue
		}
		name := slug(h[2])
		if lines[name] != 0 {
			p.fault(i+1, "heading %q is in line %d, too", h[2], lines[name])
		}
		lines[name] = i + 1
		if withoutCode(h[2]) != h[2] && strings.Contains(h[2], "](") {
			p.fault(i+1, "heading %q has code and a link", h[2])
		}
	}
}

var factLink = regexp.MustCompile(`\[F([0-9]+)\]\([^)]*broker-facts\.md#f([0-9]+)\)`)

// checkFacts looks for a fact of the broker that is no link: write [F23](broker-facts.md#f23).
func (p *page) checkFacts() {
	if p.path == "docs/broker-facts.md" {
		return
	}
	for i, line := range p.prose {
		line = factLink.ReplaceAllStringFunc(withoutCode(line), func(link string) string {
			if m := factLink.FindStringSubmatch(link); m[1] != m[2] {
				return link
			}
			return ""
		})
		for _, cited := range fact.FindAllString(line, -1) {
			p.fault(i+1, "%s is no link to its anchor in broker-facts.md", cited)
		}
	}
}

// cells counts the cells of a row. A | in code divides cells, too, unless it is written \|.
func cells(row string) int {
	row = strings.ReplaceAll(strings.TrimSpace(row), `\|`, "")
	row = strings.TrimSuffix(strings.TrimPrefix(row, "|"), "|")
	return strings.Count(row, "|") + 1
}

func (p *page) checkTables() {
	for i := 0; i < len(p.prose); i++ {
		first := i
		for i < len(p.prose) && strings.HasPrefix(strings.TrimSpace(p.prose[i]), "|") {
			i++
		}
		rows := p.prose[first:i]
		if len(rows) == 0 {
			continue
		}
		if len(rows) < 2 || strings.Trim(rows[1], "|:- ") != "" || !strings.Contains(rows[1], "-") {
			p.fault(first+1, "a table without a line |---| under its head")
			continue
		}
		for n, row := range rows {
			if cells(row) != cells(rows[0]) {
				p.fault(first+n+1, "%d cells in a table of %d columns", cells(row), cells(rows[0]))
			}
			if !strings.HasSuffix(strings.TrimSpace(row), "|") {
				p.fault(first+n+1, "a row does not end in |")
			}
		}
	}
}

// Each fault that these tests look for is found where it is planted, and nothing else is.
func TestFaultsOfPagesAreFound(t *testing.T) {
	t.Parallel()
	there := readPage("docs/there.md", "# There\n\n## F1: a `queue` & more\n\n<a id=\"f23\"></a>\n")
	for name, c := range map[string]struct{ text, says string }{
		"no fault":            {"[a](there.md#f1-a-queue--more) [b](there.md#f23)", ""},
		"code is no link":     {"`[a](nowhere.md)` and ``[`b`](c)``", ""},
		"a fence is no prose": {"```text\n[a](nowhere.md)\n# b\n```", ""},
		"in a list":           {"- one\n\n  ```sh\n  | x\n  ```", ""},
		"elsewhere":           {"[a](https://example.org/x) <https://example.org>", ""},
		"a picture":           {"![queues](topology.svg)", ""},
		"a definition":        {"[a][b] and [b][]\n\n[b]: there.md", ""},
		"a pipe in code":      {"| a |\n|---|\n| `x \\| y` |", ""},
		"the page itself":     {"## A part\n\n[a](#a-part)", ""},
		"no file":             {"[a](nowhere.md)", "there is no file docs/nowhere.md"},
		"no anchor":           {"[a](there.md#f2)", "has no anchor #f2"},
		"no anchor here":      {"[a](#a-part)", "has no anchor #a-part"},
		"in a table":          {"| a |\n|---|\n| [a](nowhere.md) |", "there is no file"},
		"a file's anchor":     {"[a](../Makefile#help)", "no page"},
		"outside":             {"[a](../../x.md)", "leaves the repository"},
		"absolute":            {"[a](/docs/there.md)", "relative to the page"},
		"this repository": {
			"[a](https://github.com/millpond-go/millpond/blob/x.md)", "write it relative",
		},
		"not secure":             {"[a](http://example.org)", "https"},
		"no host":                {"[a](https://)", "host"},
		"no definition":          {"[a][b]", "has no target"},
		"a definition to no end": {"[b]: nowhere.md", "there is no file"},
		"a space":                {"[a](the re.md)", "space"},
		"no picture":             {"![queues](nowhere.svg)", "there is no file"},
		"no alt text":            {"![](topology.svg)", "alt text"},
		"no alt text in a tag":   {`<img src="topology.svg">`, "alt text"},
		"no dark picture":        {`<source srcset="nowhere.svg">`, "there is no file"},
		"a page for a picture":   {"![queues](there.md)", "no picture"},
		"two titles":             {"# Again", "2 titles"},
		"a heading twice":        {"## A\n\n### A", `heading "A" is in line 3`},
		"a cell too many":        {"| a | b |\n|---|---|\n| a | b | c |", "3 cells in a table of 2"},
		"a cell too few":         {"| a | b |\n|---|---|\n| a |", "1 cells in a table of 2"},
		"a table in a list":      {"- x\n  | a |\n  |---|\n  | a | b |", "2 cells in a table of 1"},
		"a bare pipe in code":    {"| a |\n|---|\n| `x | y` |", "2 cells"},
		"no head":                {"| a | b |\n| c | d |", "without a line"},
		"an open row":            {"| a |\n|---|\n| b", "does not end"},
		"a fact's link":          {"[F23](broker-facts.md#f23)", ""},
		"a fact without a link":  {"as F23 says", "F23 is no link"},
		"another fact's link":    {"[F2](broker-facts.md#f23)", "F2 is no link"},
		"no language":            {"```\nx\n```", "names no language"},
		"an open fence":          {"```sh\nx", "not closed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := readPage("docs/page.md", "# Page\n\n"+c.text+"\n")
			p.checkForm()
			p.checkLinks(map[string]*page{
				"docs/page.md": p, "docs/there.md": there, "docs/broker-facts.md": there,
			})
			if c.says == "" {
				require.Empty(t, p.faults)
				return
			}
			require.Len(t, p.faults, 1)
			require.Contains(t, p.faults[0], c.says)
		})
	}
	p := readPage("docs/page.md", "Text\n\n# Page\n")
	p.checkForm()
	require.Len(t, p.faults, 1)
	require.Contains(t, p.faults[0], "first line")
}
