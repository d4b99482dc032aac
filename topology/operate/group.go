package operate

import (
	"cmp"
	"iter"
	"regexp"
	"slices"
	"time"

	"github.com/millpond-go/millpond/middleware/header"
)

// maxGroups bounds what GroupByError keeps in memory.
const maxGroups = 1000

// Group is dead letters with the same reason and much the same error.
type Group struct {
	Reason header.Reason
	// Error with every number in it written as #; "(others)" for those that came
	// after a thousand groups.
	Error string
	Count int
	// First and Last are when the oldest and the youngest were dead-lettered; zero
	// where none says so.
	First, Last time.Time
	// Example is the ID of one of them.
	Example string
}

// numbers are what tells one error from the next of its kind: digits, and what
// looks like an id of hexadecimal digits.
var numbers = regexp.MustCompile(`\b[0-9a-fA-F]*\d[0-9a-fA-F-]{7,}\b|\d+`)

// GroupByError goes through letters (Dead) and returns them by reason and error,
// the largest group first. Its memory is bounded.
func GroupByError(letters iter.Seq2[Letter, error]) ([]Group, error) {
	type key struct {
		reason header.Reason
		text   string
	}
	groups := map[key]*Group{}
	for l, err := range letters {
		if err != nil {
			return nil, err
		}
		k := key{l.Reason, numbers.ReplaceAllString(l.Error, "#")}
		if groups[k] == nil && len(groups) >= maxGroups {
			k = key{text: "(others)"}
		}
		g := groups[k]
		if g == nil {
			g = &Group{Reason: k.reason, Error: k.text, Example: l.ID}
			groups[k] = g
		}
		g.Count++
		if at := l.DeadAt; !at.IsZero() {
			if g.First.IsZero() || at.Before(g.First) {
				g.First = at
			}
			if at.After(g.Last) {
				g.Last = at
			}
		}
	}
	sorted := make([]Group, 0, len(groups))
	for _, g := range groups {
		sorted = append(sorted, *g)
	}
	slices.SortFunc(sorted, func(a, b Group) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Reason, b.Reason), cmp.Compare(a.Error, b.Error))
	})
	return sorted, nil
}
