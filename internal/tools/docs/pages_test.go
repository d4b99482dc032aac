package docs_test

import (
	"fmt"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// gettingStarted is the page that TestGettingStarted runs as a whole.
const gettingStarted = "docs/getting-started.md"

// documents returns the Markdown files of the repository. A file in testdata is data.
func documents(t *testing.T) []string {
	t.Helper()
	var found []string
	require.NoError(t, filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := e.Name()
		if e.IsDir() && (name == "testdata" || name == "bin" || name[0] == '.' && path != root) {
			return filepath.SkipDir
		}
		if filepath.Ext(name) == ".md" {
			found = append(found, strings.TrimPrefix(filepath.ToSlash(path), root))
		}
		return nil
	}))
	require.Contains(t, found, "README.md")
	require.Contains(t, found, "docs/decisions/0001-republish-confirm-ack.md")
	return found
}

// block is a fenced piece of a page.
type block struct {
	kind, before, text string // its language, the line of text above it, its lines
	line               int    // of the fence
}

// page is a Markdown file in its parts.
type page struct {
	path   string
	blocks []block
	prose  []string        // a line of the file each; empty for a line of a block
	faults []string        // of its form
	names  map[string]bool // the anchors, when they are known
}

var fence = regexp.MustCompile("^( *)(```+|~~~+)(.*)$")

// readPage takes a text apart.
func readPage(path, text string) *page {
	p := &page{path: path}
	var open *block
	indent, mark, above := "", "", ""
	for i, line := range strings.Split(text, "\n") {
		found := fence.FindStringSubmatch(line)
		switch {
		case open == nil && found != nil:
			indent, mark = found[1], found[2]
			open = &block{kind: strings.TrimSpace(found[3]), before: above, line: i + 1}
		case open != nil && found != nil && found[2] == mark && found[3] == "":
			p.blocks = append(p.blocks, *open)
			open = nil
		case open != nil:
			open.text += strings.TrimPrefix(line, indent) + "\n"
		default:
			p.prose = append(p.prose, line)
			if strings.TrimSpace(line) != "" {
				above = line
			}
			continue
		}
		p.prose = append(p.prose, "")
	}
	if open != nil {
		p.fault(open.line, "a fence is not closed")
	}
	return p
}

// pagesOf reads every page.
func pagesOf(t *testing.T) map[string]*page {
	t.Helper()
	pages := map[string]*page{}
	for _, path := range documents(t) {
		pages[path] = readPage(path, read(t, path))
	}
	return pages
}

// blocks returns the fenced pieces of a text in their order.
func blocks(text string) []block { return readPage("", text).blocks }

// language is the first word of a fence.
func (b block) language() string {
	first, _, _ := strings.Cut(b.kind, " ")
	return first
}

func (p *page) fault(line int, format string, args ...any) {
	p.faults = append(p.faults, fmt.Sprintf("%s:%d: ", p.path, line)+fmt.Sprintf(format, args...))
}

func (p *page) report(t *testing.T) {
	t.Helper()
	for _, fault := range p.faults {
		t.Error(fault)
	}
}

// Every relative link of a page leads to a file and to an anchor that is there. Pictures are there
// and say in words what they show. Nothing is fetched: an address elsewhere is only read.
func TestLinksLeadSomewhere(t *testing.T) {
	t.Parallel()
	pages := pagesOf(t)
	links := 0
	for _, name := range slices.Sorted(maps.Keys(pages)) {
		links += len(pages[name].links())
		pages[name].checkLinks(pages)
		pages[name].report(t)
	}
	require.Greater(t, links, 100)
}

// A reader who begins at the index comes to every page by its links.
func TestEveryPageIsReachable(t *testing.T) {
	t.Parallel()
	pages := pagesOf(t)
	reached := map[string]bool{}
	next := []string{"docs/README.md"}
	for len(next) > 0 {
		name := next[0]
		next = next[1:]
		if reached[name] || pages[name] == nil {
			continue
		}
		reached[name] = true
		for _, l := range pages[name].links() {
			file, _, _ := strings.Cut(l.target, "#")
			there := path.Join(path.Dir(name), file)
			next = append(next, there, path.Join(there, "README.md"))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(pages)) {
		assert.True(t, reached[name], "%s: no way of links leads here from docs/README.md", name)
	}
}

// link is a link or a picture of a page.
type link struct {
	text, target string
	picture      bool
	line         int
}

var (
	inlineLink = regexp.MustCompile(
		`(!?)\[((?:[^\[\]]|!?\[[^\]]*\](?:\([^)]*\))?)*)\]\(([^)]*)\)`)

	definition = regexp.MustCompile(`^ {0,3}\[([^\]^]+)\]: +(\S+)`)
	byName     = regexp.MustCompile(`\[([^\[\]]+)\]\[([^\[\]]*)\]`)
	autoLink   = regexp.MustCompile(`<(https?://[^>]*)>`)
	tag        = regexp.MustCompile(`<(img|source|a)\b([^>]*)>`)
	attribute  = regexp.MustCompile(`([a-z]+)="([^"]*)"`)
	code       = regexp.MustCompile("(``+).*?``+|`[^`]*`")
)

// withoutCode replaces the code in a line by as many signs.
func withoutCode(line string) string {
	return code.ReplaceAllStringFunc(line, func(c string) string {
		return strings.Repeat("c", len(c))
	})
}

// links returns the links of a page. A link by name has the target of its definition.
func (p *page) links() (found []link) {
	names := map[string]string{}
	for _, line := range p.prose {
		if d := definition.FindStringSubmatch(line); d != nil {
			names[strings.ToLower(d[1])] = d[2]
		}
	}
	for i, line := range p.prose {
		add := func(l link) { l.line = i + 1; found = append(found, l) }
		line = withoutCode(line)
		if d := definition.FindStringSubmatch(line); d != nil {
			add(link{text: d[1], target: d[2]})
			continue
		}
		for rest := []string{line}; len(rest) > 0; {
			inner := rest[0]
			rest = rest[1:]
			for _, m := range inlineLink.FindAllStringSubmatch(inner, -1) {
				target, _, _ := strings.Cut(strings.TrimSpace(m[3]), ` "`)
				add(link{text: m[2], target: target, picture: m[1] != ""})
				rest = append(rest, m[2]) // a picture that is a link
			}
		}
		for _, m := range byName.FindAllStringSubmatch(line, -1) {
			name := m[2]
			if name == "" {
				name = m[1]
			}
			add(link{text: m[1], target: names[strings.ToLower(name)]})
		}
		for _, m := range autoLink.FindAllStringSubmatch(line, -1) {
			add(link{text: m[1], target: m[1]})
		}
		for _, m := range tag.FindAllStringSubmatch(line, -1) {
			has := map[string]string{}
			for _, a := range attribute.FindAllStringSubmatch(m[2], -1) {
				has[a[1]] = a[2]
			}
			switch {
			case m[1] == "img":
				add(link{text: has["alt"], target: has["src"], picture: true})
			case m[1] == "source":
				add(link{text: "one of several", target: has["srcset"], picture: true})
			case has["href"] != "":
				add(link{text: "a tag", target: has["href"]})
			}
		}
	}
	return found
}

var heading = regexp.MustCompile(`^(#{1,6}) +(.*?) *#*$`)

// headings returns the texts of a page's headings of one level, or of all for 0.
func (p *page) headings(level int) (found []string) {
	for _, line := range p.prose {
		if h := heading.FindStringSubmatch(line); h != nil && (level == 0 || len(h[1]) == level) {
			found = append(found, h[2])
		}
	}
	return found
}

var (
	shownText = regexp.MustCompile(`!?\[([^\]]*)\]\([^)]*\)`)
	htmlTag   = regexp.MustCompile(`</?[a-z][^>]*>`)
	anchor    = regexp.MustCompile(`<a\s+(?:id|name)="([^"]+)"`)
)

// slug is the anchor that GitHub gives a heading.
func slug(heading string) string {
	text := shownText.ReplaceAllString(heading, "$1")
	text = htmlTag.ReplaceAllString(text, "")
	text = strings.NewReplacer("`", "", "*", "").Replace(text)
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-', r == '_', unicode.IsLetter(r), unicode.IsNumber(r), unicode.IsMark(r):
			return unicode.ToLower(r)
		}
		return -1
	}, strings.TrimSpace(text))
}

// anchors returns the places of a page that a link can name.
func (p *page) anchors() map[string]bool {
	if p.names != nil {
		return p.names
	}
	found := map[string]bool{}
	for _, h := range p.headings(0) {
		name := slug(h)
		for n := 1; found[name]; n++ {
			name = fmt.Sprint(slug(h), "-", n)
		}
		found[name] = true
	}
	for _, line := range p.prose {
		for _, m := range anchor.FindAllStringSubmatch(withoutCode(line), -1) {
			found[m[1]] = true
		}
	}
	p.names = found
	return found
}

// checkLinks adds the faults of a page's links.
func (p *page) checkLinks(pages map[string]*page) {
	for _, l := range p.links() {
		if strings.TrimSpace(l.text) == "" {
			p.fault(l.line, "%q has no text; a picture needs alt text", l.target)
		}
		if err := p.leads(l, pages); err != nil {
			p.fault(l.line, "link to %q: %v", l.target, err)
		}
	}
}

// leads returns why a link leads nowhere.
func (p *page) leads(l link, pages map[string]*page) error {
	to, err := url.Parse(l.target)
	switch {
	case l.target == "":
		return fmt.Errorf("[%s] has no target", l.text)
	case err != nil:
		return err
	case to.Scheme != "":
		return elsewhere(to)
	case strings.ContainsAny(l.target, " \t"):
		return fmt.Errorf("a space ends the target")
	case path.IsAbs(to.Path):
		return fmt.Errorf("write it relative to the page")
	}
	name := p.path
	if to.Path != "" {
		name = path.Join(path.Dir(p.path), to.Path)
	}
	if strings.HasPrefix(name, "../") {
		return fmt.Errorf("it leaves the repository")
	}
	if _, err := os.Stat(filepath.Join(root, name)); pages[name] == nil && err != nil {
		return fmt.Errorf("there is no file %s", name)
	}
	switch {
	case l.picture && !slices.Contains([]string{".svg", ".png", ".gif"}, path.Ext(name)):
		return fmt.Errorf("it is no picture")
	case to.Fragment == "":
		return nil
	case pages[name] == nil:
		return fmt.Errorf("an anchor in a file that is no page")
	case path.Base(name) == "broker-facts.md" && fact.MatchString(l.text) &&
		to.Fragment != strings.ToLower(fact.FindString(l.text)):
		return fmt.Errorf("it leads to another fact")
	case !pages[name].anchors()[to.Fragment]:
		return fmt.Errorf("%s has no anchor #%s", name, to.Fragment)
	}
	return nil
}

// elsewhere returns the fault of an address that has a scheme.
func elsewhere(to *url.URL) error {
	own := strings.HasPrefix(strings.ToLower(to.Path)+"/", "/millpond-go/millpond/")
	switch {
	case to.Scheme != "https":
		return fmt.Errorf("write an https address")
	case !strings.Contains(to.Host, "."):
		return fmt.Errorf("host %q is none", to.Host)
	case own && strings.Contains(to.Host, "github"):
		return fmt.Errorf("an absolute link to this repository: write it relative")
	}
	return nil
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
		"a fact's link":          {"[F23](broker-facts.md#f23)", ""},
		"another fact's link":    {"[F2](broker-facts.md#f23)", "to another fact"},
		"an open fence":          {"```sh\nx", "not closed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := readPage("docs/page.md", "# Page\n\n"+c.text+"\n")
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
}
