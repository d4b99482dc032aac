package docs_test

import (
	"errors"
	"fmt"
	"io/fs"
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
	require.Contains(t, found, "docs/notes/decisions/0001-republish-confirm-ack.md")
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
	names  map[string]bool // the anchors, when they are known
}

var fence = regexp.MustCompile("^( *)(```+)(.*)$")

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

// Every link of a page leads to a file and to an anchor that is there, pictures say in words what
// they show, and a link leads to every page. Nothing is fetched: an address elsewhere is only read.
func TestLinksLeadSomewhere(t *testing.T) {
	t.Parallel()
	pages := pagesOf(t)
	linked := map[string]bool{"README.md": true}
	links := 0
	for name, p := range pages {
		for _, l := range p.links() {
			links++
			file, _, _ := strings.Cut(l.target, "#")
			there := path.Join(path.Dir(name), file)
			linked[there], linked[path.Join(there, "README.md")] = true, true
			assert.NoError(t, p.leads(l, pages), "%s:%d: link to %q", name, l.line, l.target)
		}
	}
	require.Greater(t, links, 100)
	for name := range pages {
		assert.True(t, linked[name], "no link leads to %s", name)
	}
}

// link is a link or a picture of a page.
type link struct {
	text, target string
	picture      bool
	line         int
}

var (
	inlineLink = regexp.MustCompile(`(!?)\[((?:[^\[\]]|!?\[[^\]]*\](?:\([^)]*\))?)*)\]\(([^)]*)\)`)
	otherLink  = regexp.MustCompile(`^ {0,3}\[[^\]^]+\]: |\]\[|<(?:https?:|img |source |a href)`)
	code       = regexp.MustCompile("(``+).*?``+|`[^`]*`")
)

// withoutCode replaces the code in a line by as many signs.
func withoutCode(line string) string {
	return code.ReplaceAllStringFunc(line, func(c string) string {
		return strings.Repeat("c", len(c))
	})
}

// links returns the links of a page. A link of another form than [text](target) has no target.
func (p *page) links() (found []link) {
	for i, line := range p.prose {
		line = withoutCode(line)
		for rest := []string{line}; len(rest) > 0; rest = rest[1:] {
			for _, m := range inlineLink.FindAllStringSubmatch(rest[0], -1) {
				found = append(found, link{m[2], strings.TrimSpace(m[3]), m[1] != "", i + 1})
				rest = append(rest, m[2]) // a picture that is a link
			}
		}
		if other := otherLink.FindString(line); other != "" {
			found = append(found, link{text: other, line: i + 1})
		}
	}
	return found
}

var (
	heading   = regexp.MustCompile(`^#{1,6} +(.*?) *#*$`)
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
	p.names = map[string]bool{}
	for _, line := range p.prose {
		if h := heading.FindStringSubmatch(line); h != nil {
			name := slug(h[1])
			for n := 1; p.names[name]; n++ {
				name = fmt.Sprint(slug(h[1]), "-", n)
			}
			p.names[name] = true
		}
		for _, m := range anchor.FindAllStringSubmatch(withoutCode(line), -1) {
			p.names[m[1]] = true
		}
	}
	return p.names
}

// leads returns why a link leads nowhere.
func (p *page) leads(l link, pages map[string]*page) error {
	to, err := url.Parse(l.target)
	if err != nil {
		return err
	}
	name := p.path
	if to.Path != "" {
		name = path.Join(path.Dir(p.path), to.Path)
	}
	_, missing := os.Stat(filepath.Join(root, name))
	own := strings.Contains(to.Host, "github") && strings.HasPrefix(to.Path, "/millpond-go/millpond")
	switch {
	case l.target == "":
		return fmt.Errorf("write it as [text](target), not %q", l.text)
	case strings.TrimSpace(l.text) == "":
		return errors.New("it has no text; a picture needs alt text")
	case to.Scheme == "https" && strings.Contains(to.Host, ".") && !own:
		return nil
	case to.Scheme != "" || path.IsAbs(to.Path) || strings.HasPrefix(name, "../"):
		return errors.New("write an https address, or a path relative to the page")
	case pages[name] == nil && missing != nil:
		return fmt.Errorf("there is no file %s", name)
	case l.picture && !slices.Contains([]string{".svg", ".png"}, path.Ext(name)):
		return errors.New("it is no picture")
	case to.Fragment == "":
		return nil
	case pages[name] == nil || !pages[name].anchors()[to.Fragment]:
		return fmt.Errorf("%s has no anchor #%s", name, to.Fragment)
	case path.Base(name) == "broker-facts.md" && fact.MatchString(l.text) &&
		to.Fragment != strings.ToLower(fact.FindString(l.text)):
		return errors.New("it leads to another fact")
	}
	return nil
}

// Each fault of a link is found where it is planted, and no other.
func TestFaultsOfLinksAreFound(t *testing.T) {
	t.Parallel()
	there := readPage("docs/there.md", "# There\n\n## F1: a `queue` & more\n\n<a id=\"f23\"></a>\n")
	for text, says := range map[string]string{
		"[a](there.md#f1-a-queue--more) [b](there.md#f23) [c](#page)":        "",
		"`[a](nowhere.md)` and ``[`b`](c)``":                                 "",
		"```text\n[a](nowhere.md)\n# b\n```":                                 "",
		"[a](https://example.org/x) ![queues](topology.svg) [F23](there.md)": "",
		"| a |\n|---|\n| [a](nowhere.md) |":                                  "there is no file",
		"[a](there.md#f2)":                                                   "no anchor #f2",
		"[a](../Makefile#help)":                                              "no anchor #help",
		"[a](../../x.md)":                                                    "relative to the page",
		"[a](https://github.com/millpond-go/millpond/blob/x.md)":             "relative to the page",
		"[a](http://example.org)":                                            "https",
		"[a][b]":                                                             "write it as",
		`<img src="topology.svg">`:                                           "write it as",
		"![](topology.svg)":                                                  "alt text",
		"![queues](there.md)":                                                "no picture",
		"[F2](notes/broker-facts.md#f23)":                                    "to another fact",
	} {
		p := readPage("docs/page.md", "# Page\n\n"+text+"\n")
		var err error
		for _, l := range p.links() {
			err = errors.Join(err, p.leads(l, map[string]*page{
				"docs/page.md": p, "docs/there.md": there, "docs/notes/broker-facts.md": there,
			}))
		}
		if says == "" {
			require.NoError(t, err, text)
		} else {
			require.ErrorContains(t, err, says, text)
		}
	}
}
