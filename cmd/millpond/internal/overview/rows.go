package overview

import (
	"cmp"
	"slices"
	"strings"

	"github.com/millpond-go/millpond/topology/operate"
)

// Row is a queue with its incidents.
type Row struct {
	operate.Main
	Incidents []operate.Incident
}

// Urgency is the one of its most urgent incident; 0 without any.
func (r Row) Urgency() int {
	if len(r.Incidents) == 0 {
		return 0
	}
	return r.Incidents[0].Urgency
}

// Rows returns the queues of a view, those with incidents first, then by their dead letters, and how
// many have incidents.
func Rows(v operate.View, incidents []operate.Incident) (rows []Row, inTrouble int) {
	of := map[string][]operate.Incident{}
	for _, i := range incidents {
		for _, queue := range append([]string{i.Queue}, i.Queues...) {
			of[queue] = append(of[queue], i)
		}
	}
	for _, m := range v.Mains {
		rows = append(rows, Row{m, of[m.Name]})
		inTrouble += min(len(of[m.Name]), 1)
	}
	slices.SortStableFunc(rows, func(a, b Row) int { // the fine ones last
		return cmp.Or(cmp.Compare((a.Urgency()+9)%10, (b.Urgency()+9)%10),
			cmp.Compare(b.DeadLetters.N, a.DeadLetters.N), strings.Compare(a.Name, b.Name))
	})
	return rows, inTrouble
}
