package discover

import (
	"maps"
	"slices"
	"strings"
)

// lineSuffix is behind the name of the main queue in the name of its line.
const lineSuffix = ".line"

// isLine reports whether a queue has the arguments of a line. A dead-letter queue has no single
// active consumer.
func isLine(q queue) bool {
	return onlyKeeps(q) && q.arguments["x-single-active-consumer"] == true
}

// lines finds the lines of queues that are handled in order, by name and arguments.
func (d *derivation) lines() {
	for _, name := range slices.Sorted(maps.Keys(d.queues)) {
		of, named := strings.CutSuffix(name, lineSuffix)
		if !named || of == "" || !isLine(d.queues[name]) {
			continue
		}
		if _, there := d.queues[of]; !there {
			d.tell("", "queue %q has the name and the arguments of the line of queue %q, which does not "+
				"exist: its messages wait until the queue and its service are back", name, of)
			continue
		}
		m, _ := d.main(of)
		line := d.counts(name)
		m.Line, m.Plan.Line = &line, name
	}
}
