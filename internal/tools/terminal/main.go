// Terminal draws the output of a command as an SVG, as a terminal would show it:
//
//	make demo 2>&1 | go run ./internal/tools/terminal -command 'make demo' >docs/demo.svg
//
// Of a long output it shows the beginning and the end, and the number of lines between them.
package main

import (
	"encoding/xml"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"unicode/utf8"
)

func main() {
	command := flag.String("command", "", "the command, for the first line")
	head := flag.Int("head", 24, "lines shown of the beginning")
	tail := flag.Int("tail", 30, "lines shown of the end")
	flag.Parse()
	said, err := io.ReadAll(os.Stdin)
	if err == nil {
		_, err = os.Stdout.WriteString(draw(*command, cut(string(said), *head, *tail)))
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "terminal: %v\n", err)
		os.Exit(1)
	}
}

// cut returns the lines to show.
func cut(said string, head, tail int) []string {
	lines := strings.Split(strings.Trim(said, "\n"), "\n")
	left := len(lines) - head - tail
	if left <= 1 {
		return lines
	}
	return slices.Concat(lines[:head], []string{fmt.Sprintf("⋮  %d lines left out", left)},
		lines[len(lines)-tail:])
}

const (
	lineHeight = 17
	charWidth  = 7.85 // of 13px in any common monospaced font, rounded up
	margin     = 16
	bar        = 28
)

// draw returns the picture. It is dark on every page, like a terminal.
func draw(command string, lines []string) string {
	if command != "" {
		lines = append([]string{"$ " + command}, lines...)
	}
	columns := 0
	for _, line := range lines {
		columns = max(columns, utf8.RuneCountInString(line))
	}
	width := int(float64(columns)*charWidth) + 2*margin
	height := len(lines)*lineHeight + bar + 2*margin
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d"`+
		` height="%d" role="img" aria-label="%s">
<rect width="%d" height="%d" rx="8" fill="#161b22" stroke="#444c56"/>
<circle cx="18" cy="16" r="5" fill="#f47067"/>`+
		`<circle cx="36" cy="16" r="5" fill="#e0af3a"/><circle cx="54" cy="16" r="5" fill="#57ab5a"/>
<g font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"`+
		` font-size="13" fill="#c9d1d9" xml:space="preserve">
`, width, height, width, height, escape("What "+command+" prints"), width, height)
	for i, line := range lines {
		fmt.Fprintf(&b, `<text x="%d" y="%d"%s>%s</text>`+"\n", margin, bar+margin+i*lineHeight+8,
			style(line), escape(line))
	}
	b.WriteString("</g>\n</svg>\n")
	return b.String()
}

// style makes the command and the last line stand out, and the gap step back.
func style(line string) string {
	switch {
	case strings.HasPrefix(line, "$ "), strings.HasPrefix(line, "published "):
		return ` fill="#7ee787" font-weight="bold"`
	case strings.HasPrefix(line, "⋮"):
		return ` fill="#8b949e"`
	}
	return ""
}

func escape(text string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(text)) // a Builder never fails
	return b.String()
}
