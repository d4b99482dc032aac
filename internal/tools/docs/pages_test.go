package docs_test

import (
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

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
