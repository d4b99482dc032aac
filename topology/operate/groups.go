package operate

import (
	"cmp"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/millpond-go/millpond/internal/excerpt"
	"github.com/millpond-go/millpond/internal/keys"
)

const (
	// maxGroups, maxCounts and maxName bound the memory of GroupByError.
	maxGroups = 1000
	maxCounts = 20
	maxName   = 255
	// others counts letters in place of names and groups that there is no room for.
	others = "(others)"
)

// Group is a group of dead letters with the same Fingerprint.
type Group struct {
	// ID is the ID of the fingerprint, which Filter.Group takes. It is empty for "(others)".
	ID string `json:"group,omitempty"`
	// Error is the error with placeholders; "(others)" for letters that came after a thousand groups.
	Error string `json:"error"`
	Count int    `json:"count"`
	// First and Last are the earliest and the latest DeadAt; zero where no letter has one.
	First time.Time `json:"first,omitzero"`
	Last  time.Time `json:"last,omitzero"`
	// Queues, Handlers and Reasons count the letters by queue, handler and reason; "" stands for a
	// letter that names none. Each has at most twenty names, and "(others)" for letters with more.
	Queues   map[string]int `json:"queues"`
	Handlers map[string]int `json:"handlers"`
	Reasons  map[string]int `json:"reasons"`
	// Sample is the first of the letters.
	Sample Sample `json:"sample"`
}

// Sample is a letter as an example of its group.
type Sample struct {
	ID string `json:"id"`
	// Position in the queue when it was looked at, 1 for the oldest.
	Position int `json:"position"`
	// Error as it is, cut at header.MaxErrorBytes.
	Error string `json:"error,omitempty"`
}

// GroupByError reads letters, as Dead returns them, and groups them by Fingerprint, the largest
// group first. Its memory is bounded for any number of letters, causes and names.
func GroupByError(letters iter.Seq2[Letter, error]) ([]Group, error) {
	groups := map[string]*Group{}
	for l, err := range letters {
		if err != nil {
			return nil, err
		}
		id, cause := Fingerprint(l)
		if groups[id] == nil && len(groups) >= maxGroups {
			id, cause = "", others
		}
		g := groups[id]
		if g == nil {
			g = &Group{
				ID: id, Error: cause, Queues: map[string]int{}, Handlers: map[string]int{},
				Reasons: map[string]int{}, Sample: Sample{
					ID: l.ID, Position: l.Position,
					// A copy, because the error may be part of a long history.
					Error: strings.Clone(excerpt.Of(l.Error, keys.MaxErrorBytes)),
				},
			}
			groups[id] = g
		}
		g.add(l)
	}
	sorted := make([]Group, 0, len(groups))
	for _, g := range groups {
		sorted = append(sorted, *g)
	}
	slices.SortFunc(sorted, func(a, b Group) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Error, b.Error))
	})
	return sorted, nil
}

func (g *Group) add(l Letter) {
	g.Count++
	countName(g.Queues, l.Queue)
	countName(g.Handlers, l.Handler)
	countName(g.Reasons, string(l.Reason))
	if l.DeadAt.IsZero() {
		return
	}
	if g.First.IsZero() || l.DeadAt.Before(g.First) {
		g.First = l.DeadAt
	}
	if l.DeadAt.After(g.Last) {
		g.Last = l.DeadAt
	}
}

func countName(counts map[string]int, name string) {
	name = excerpt.Of(name, maxName)
	if _, there := counts[name]; !there {
		if name = strings.Clone(name); len(counts) >= maxCounts {
			name = others
		}
	}
	counts[name]++
}
