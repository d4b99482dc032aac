package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/millpond-go/millpond/cmd/millpond/internal/overview"
	"github.com/millpond-go/millpond/internal/excerpt"
)

// stdio are the standard streams of the tool.
type stdio struct {
	in          io.Reader
	out, err    io.Writer
	terminal    func(any) bool
	environment func(string) string
}

// isTerminal reports whether a file is a terminal; the null device is none.
func isTerminal(file any) bool {
	f, ok := file.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	if err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return false
	}
	null, err := os.Stat(os.DevNull)
	return err != nil || !os.SameFile(info, null)
}

// printJSON writes a value, indented.
func (s stdio) printJSON(value any) error { return s.encode(value, "  ") }

// printLine writes a value as one line of JSON.
func (s stdio) printLine(value any) error { return s.encode(value, "") }

func (s stdio) encode(value any, indent string) error {
	var text strings.Builder
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", indent)
	if err := encoder.Encode(value); err != nil {
		return err
	}
	_, err := io.WriteString(s.out, excerpt.JSON(text.String()))
	return err
}

// printSnakeJSON writes a value of the library in the tool's form: keys in lower case, delays as Go
// prints them.
func (s stdio) printSnakeJSON(value any) error {
	data, err := json.Marshal(value)
	if err != nil {
		return err
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	var plain any
	if err := decoder.Decode(&plain); err != nil {
		return err
	}
	return s.printJSON(snake(plain))
}

func snake(value any) any {
	switch v := value.(type) {
	case []any:
		for i := range v {
			v[i] = snake(v[i])
		}
	case map[string]any:
		renamed := make(map[string]any, len(v))
		for key, item := range v {
			if n, ok := item.(json.Number); ok && key == "Delay" {
				ns, _ := n.Int64() // a duration
				item = time.Duration(ns).String()
			}
			renamed[snakeKey(key)] = snake(item)
		}
		return renamed
	}
	return value
}

// snakeKey writes RoutingKey as routing_key. Keys that do not begin with a capital, such as
// arguments, stay.
func snakeKey(key string) string {
	var b strings.Builder
	for i, r := range key {
		if unicode.IsUpper(r) && i > 0 && key[0] >= 'A' && key[0] <= 'Z' {
			b.WriteByte('_')
		}
		if key[0] >= 'A' && key[0] <= 'Z' {
			r = unicode.ToLower(r)
		}
		b.WriteRune(r)
	}
	return b.String()
}

// table writes rows in columns, each cell on one line and cut.
func (s stdio) table(rows [][]string) error { return s.columns(rows, oneLine) }

// columns writes rows in columns, each cell as shown.
func (s stdio) columns(rows [][]string, show func(string) string) error {
	w := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		for i, cell := range row {
			if i > 0 {
				fmt.Fprint(w, "\t")
			}
			fmt.Fprint(w, show(cell))
		}
		fmt.Fprintln(w)
	}
	return w.Flush()
}

// The colours of a terminal.
const (
	red    = "31"
	yellow = "33"
	green  = "32"
)

// colour paints text where out is a terminal, unless NO_COLOR is set.
func (s stdio) colour(code, text string) string {
	if !s.terminal(s.out) || s.environment("NO_COLOR") != "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

// maxCell is the most of a text that a table shows.
const maxCell = 100

// harmless is text of a message or of the broker as one line without control characters.
func harmless(text string) string { return excerpt.OneLine(text) }

// oneLine is harmless text that is cut.
func oneLine(text string) string {
	clean := harmless(text)
	if utf8.RuneCountInString(clean) <= maxCell {
		return clean
	}
	return string([]rune(clean)[:maxCell-1]) + "…"
}

// orDash is text, or a dash where there is none.
func orDash(text string) string { return cmp.Or(text, "-") }

// when is a time as tables have it, in UTC.
func when(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return overview.At(t)
}

// plural is a number of messages.
func plural(n int, one string) string { return overview.Plural(n, one) }
