package page

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
)

// mask is a JSON path: the root $, then names, positions, and * for any of them. After .. any
// number of names and positions may stand.
type mask []step

type step struct {
	name string // or *
	deep bool   // any number of others may stand before it
}

// maskStep is a step of a JSON path: .name, ..name, ['name'], [0] or [*].
var maskStep = regexp.MustCompile(
	`^(?:(\.\.?)([^.\[\]'"\s*]+|\*)|(\.\.)?\[(?:'([^'\\]*)'|"([^"\\]*)"|([0-9]+|\*))\])`)

func parseMask(text string) (mask, error) {
	rest, ok := strings.CutPrefix(text, "$")
	if !ok || rest == "" {
		return nil, maskError(text)
	}
	var m mask
	for rest != "" {
		found := maskStep.FindStringSubmatch(rest)
		if found == nil {
			return nil, maskError(text)
		}
		m = append(m, step{
			name: found[2] + found[4] + found[5] + found[6], deep: found[1] == ".." || found[3] == "..",
		})
		rest = rest[len(found[0]):]
	}
	return m, nil
}

func maskError(text string) error {
	return fmt.Errorf("mask %q: write a JSON path of names, positions and *, as in $.card.number, "+
		"$.items[*]['e-mail'] or $..password", text)
}

// hides reports whether the path leads to the value at these names and positions.
func (m mask) hides(at []string) bool {
	if len(m) == 0 {
		return len(at) == 0
	}
	first := m[0]
	for i := range at {
		if (first.name == "*" || strings.EqualFold(first.name, at[i])) && m[1:].hides(at[i+1:]) {
			return true
		}
		if !first.deep {
			return false
		}
	}
	return false
}

const (
	masked = "(masked)"
	// maxDepth and maxPretty bound payloads that are indented.
	maxDepth  = 200
	maxPretty = 256 << 10
)

var errNoJSON = errors.New("it is no JSON")

// rewrite writes JSON with masks in place of the values that they hide. With indent it is indented.
// Names stay in their order, also names that are there twice.
func rewrite(body []byte, masks []mask, indent string, most int) ([]byte, error) {
	r := &rewriter{
		decoder: json.NewDecoder(bytes.NewReader(body)), masks: masks, indent: indent, most: most,
	}
	r.decoder.UseNumber()
	if err := r.value(nil); err != nil {
		return nil, err
	}
	if _, err := r.decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, errNoJSON
	}
	return r.out.Bytes(), nil
}

type rewriter struct {
	decoder *json.Decoder
	masks   []mask
	indent  string
	most    int
	out     bytes.Buffer
}

func (r *rewriter) value(at []string) error {
	hidden := false
	for _, m := range r.masks {
		hidden = hidden || m.hides(at)
	}
	if hidden {
		var skipped json.RawMessage
		if err := r.decoder.Decode(&skipped); err != nil {
			return errNoJSON
		}
		r.out.WriteString(`"` + masked + `"`)
		return nil
	}
	token, err := r.decoder.Token()
	if err != nil {
		return errNoJSON
	}
	if len(at) > maxDepth || r.out.Len() > r.most {
		return errors.New("it is too large or too deep")
	}
	open, isDelim := token.(json.Delim)
	if !isDelim {
		text, err := literal(token)
		r.out.Write(text)
		return err
	}
	r.out.WriteRune(rune(open))
	n := 0
	for ; r.decoder.More(); n++ {
		if n > 0 {
			r.out.WriteByte(',')
		}
		r.line(len(at) + 1)
		name := strconv.Itoa(n)
		if open == '{' {
			key, err := r.decoder.Token()
			if err != nil {
				return errNoJSON
			}
			name, _ = key.(string)
			text, err := literal(name)
			if err != nil {
				return err
			}
			r.out.Write(text)
			r.out.WriteByte(':')
			if r.indent != "" {
				r.out.WriteByte(' ')
			}
		}
		if err := r.value(append(at[:len(at):len(at)], name)); err != nil {
			return err
		}
	}
	if n > 0 {
		r.line(len(at))
	}
	end, err := r.decoder.Token()
	if err != nil {
		return errNoJSON
	}
	closing, _ := end.(json.Delim)
	r.out.WriteRune(rune(closing))
	return nil
}

func (r *rewriter) line(depth int) {
	if r.indent != "" {
		r.out.WriteString("\n" + strings.Repeat(r.indent, depth))
	}
}

// literal writes a text, a number, true, false or null as JSON.
func literal(token json.Token) ([]byte, error) {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(token)
	return bytes.TrimRight(out.Bytes(), "\n"), err
}
