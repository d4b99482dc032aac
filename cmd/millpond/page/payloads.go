package page

import (
	"encoding/hex"
	"maps"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/cmd/millpond/internal/lettertext"
	"github.com/millpond-go/millpond/cmd/millpond/internal/overview"
	"github.com/millpond-go/millpond/topology/operate"
)

// payload is a payload as a page shows it.
type payload struct {
	Form string // how it is shown: JSON, text, bytes
	Text string
	Size int
	// Cut is the number of bytes that are not shown.
	Cut int
	// Hidden says that masks are set and the payload is no JSON.
	Hidden bool
	Masked bool
}

// shownBytes of a payload are shown as text, and shownHex as bytes.
const (
	shownBytes = 32 << 10
	shownHex   = 4 << 10
)

// payloadOf shows a payload of which body is the beginning.
func (h *Handler) payloadOf(body []byte, size int, asHex bool) payload {
	p := payload{Size: size, Masked: len(h.masks) > 0}
	whole := len(body) == size
	if whole && (!asHex || p.Masked) {
		if text, err := rewrite(body, h.masks, "  ", maxPretty); err == nil {
			p.Form, p.Text = "JSON", visible(string(text), true)
			return p
		}
	}
	if p.Masked {
		p.Hidden = true
		return p
	}
	if !asHex && isText(body) {
		shown := overview.Beginning(body, shownBytes)
		p.Form, p.Text, p.Cut = "text", visible(string(shown), true), size-len(shown)
		return p
	}
	shown := body[:min(len(body), shownHex)]
	p.Form, p.Text, p.Cut = "bytes", strings.TrimSuffix(hex.Dump(shown), "\n"), size-len(shown)
	return p
}

// isText reports whether most of a payload is text that people can read.
func isText(body []byte) bool {
	odd, all := 0, 0
	for _, r := range string(body[:min(len(body), shownBytes)]) {
		all++
		if r == utf8.RuneError || unicode.IsControl(r) && !strings.ContainsRune("\n\r\t", r) {
			odd++
		}
	}
	return odd*10 <= all
}

// shownPayload is the payload as filters may see it: with masks, nothing that a mask hides.
func (h *Handler) shownPayload(body []byte) []byte {
	if len(h.masks) == 0 {
		return body
	}
	text, err := rewrite(body, h.masks, "", len(body)+maxPretty)
	if err != nil {
		return nil
	}
	return text
}

// headerRow is a header of a message.
type headerRow struct {
	Name, Type, Value string
	// Own says that it is a header of the library or of the broker.
	Own bool
}

// maxHeader is the most of a header that a page shows.
const maxHeader = 2000

func headerRows(headers amqp.Table) []headerRow {
	var rows []headerRow
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		value := headers[name]
		rows = append(rows, headerRow{
			Name: oneLine(255, name), Type: lettertext.TypeName(value),
			Value: oneLine(maxHeader, operate.HeaderText(value)),
			Own: strings.HasPrefix(name, "millpond-") || strings.HasPrefix(name, "x-") ||
				strings.HasPrefix(name, "_watermill"),
		})
	}
	rank := map[bool]int{true: 1}
	slices.SortStableFunc(rows, func(a, b headerRow) int {
		return rank[a.Own] - rank[b.Own]
	})
	return rows
}
