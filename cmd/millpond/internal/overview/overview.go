// Package overview counts the messages of each queue of a virtual host by their places, and names
// its trouble.
package overview

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/millpond-go/millpond/topology/operate"
	"github.com/millpond-go/millpond/topology/operate/discover"
)

// Row is a queue.
type Row struct {
	Queue                      string
	Ready, InProgress, Waiting operate.Count
	// WaitingShared says that other queues use the same wait queues: Waiting counts their messages,
	// too.
	WaitingShared   bool
	Dead, Consumers operate.Count
	Trouble         []string
	// Steps are the wait queues with messages, or whose messages are not known.
	Steps []discover.Wait `json:"-"`
}

// nearBound is the number of messages of a line from which it is near its default bound.
const nearBound = 8000

// Rows returns the queues of a virtual host, the queues in trouble first.
func Rows(v discover.Vhost) (rows []Row, inTrouble int) {
	rows = make([]Row, len(v.Mains))
	for i, main := range v.Mains {
		if rows[i] = Of(main); len(rows[i].Trouble) > 0 {
			inTrouble++
		}
	}
	slices.SortStableFunc(rows, func(a, b Row) int { // by name among the same
		return cmp.Or(cmp.Compare(min(len(b.Trouble), 1), min(len(a.Trouble), 1)),
			cmp.Compare(b.Dead.N, a.Dead.N))
	})
	return rows, inTrouble
}

// Of returns one queue.
func Of(main discover.Main) Row {
	none := operate.Count{Source: operate.SourceManagement}
	r := Row{
		Queue: main.Name, Ready: main.Ready, InProgress: main.Unacked, Consumers: main.Consumers,
		Waiting: none, Dead: none,
	}
	held := max(main.Held.N, 0)
	trouble := func(is bool, text string) {
		if is {
			r.Trouble = append(r.Trouble, text)
		}
	}
	for _, w := range main.Waits {
		if w.Total.N != 0 {
			r.Steps = append(r.Steps, w)
		}
		r.Waiting = Plus(r.Waiting, w.Total)
		r.WaitingShared = r.WaitingShared || w.Shared
		held += max(w.Held.N, 0)
	}
	if main.Line != nil {
		inLine := main.Line.Total
		if inLine.N > 0 {
			inLine.N-- // the process that leads keeps a message there
		}
		r.Waiting = Plus(r.Waiting, inLine)
		trouble(inLine.N >= nearBound,
			Plural(inLine.N, "message")+" in the line, which is near its bound: see its keys in order")
	}
	for _, d := range main.Dead {
		r.Dead = Plus(r.Dead, d.Total)
		held += max(d.Held.N, 0)
	}
	if len(main.Dead) == 0 {
		r.Dead = operate.Count{N: -1}
	}
	trouble(r.Dead.N > 0, Plural(r.Dead.N, "dead letter"))
	trouble(r.Consumers.Known() && r.Consumers.N == 0, "no consumer")
	trouble(held > 0, Plural(held, "message")+" held: their target is missing or full")
	trouble(len(main.Dead) == 0, "its dead-letter queue is not known: see --dlq")
	trouble(len(main.Dead) > 0 && main.PlanErr != nil, "a wait queue leads astray: see verify")
	return r
}

// Plural is a number of things.
func Plural(n int, one string) string {
	if n != 1 {
		one += "s"
	}
	return fmt.Sprint(n, " ", one)
}

// Digits writes a number with narrow spaces between thousands.
func Digits(n int) string {
	text := fmt.Sprint(n)
	for i := len(text) - 3; i > 0 && text[i-1] != '-'; i -= 3 {
		text = text[:i] + "\u202f" + text[i:]
	}
	return text
}

// Plus adds counts. The sum with an unknown count is unknown.
func Plus(a, b operate.Count) operate.Count {
	if !a.Known() || !b.Known() {
		return operate.Count{N: -1}
	}
	a.N += b.N
	return a
}

// NearBound reports whether the messages or the bytes of a line are near their bound.
func NearBound(s operate.OrderState) bool {
	near := func(n, most int) bool { return most > 0 && n >= most/5*4 }
	return near(s.Messages, s.MaxMessages) || near(s.Bytes, s.MaxBytes)
}

// Shares writes a name alone, and several with their counts, the largest first.
func Shares(
	counts map[string]int, name func(string) string, number func(int) string,
) string {
	const shown = 3
	names := slices.SortedFunc(maps.Keys(counts), func(x, y string) int {
		return cmp.Or(counts[y]-counts[x], strings.Compare(x, y))
	})
	var list []string
	for _, n := range names[:min(len(names), shown)] {
		text := name(n)
		if len(names) > 1 {
			text += " " + number(counts[n])
		}
		list = append(list, text)
	}
	if left := len(names) - shown; left > 0 {
		list = append(list, number(left)+" more")
	}
	return strings.Join(list, ", ")
}
