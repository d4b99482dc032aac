package operate

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/millpond-go/millpond/middleware/header"
)

// Incident is one thing in a vhost that a person should know of. It is plain data.
type Incident struct {
	Kind IncidentKind `json:"kind"`
	// Urgency is 1 for messages in danger, 2 for a queue without its consumers, 3 for messages that
	// have left their way, 4 for blocked keys, 5 for dead letters that grow, 6 for stopped brakes, and
	// 7 for the rest, such as dead letters that do not grow.
	Urgency int `json:"urgency"`
	// Queue is the queue that it is about: the main queue, also where that is gone, a stranded queue,
	// or a wait queue that leads nowhere. It is empty for a brake, which has stopped Queues.
	Queue  string   `json:"queue,omitempty"`
	Brake  string   `json:"brake,omitempty"`
	Queues []string `json:"queues,omitempty"`
	// Key is the key that is blocked, as IncidentOptions.KeyText writes it.
	Key string `json:"key,omitempty"`
	// Text is a sentence without a dot, in which "it" is the queue or the brake.
	Text string `json:"text"`
	// Since is when it began; zero where that is not known. Longer says that it began before.
	Since  time.Time `json:"since,omitzero"`
	Longer bool      `json:"longer,omitempty"`
	// Grown is by how much its messages have grown since GrownSince, which is zero where that is not
	// known. It is negative where they have become fewer.
	Grown      int       `json:"grown,omitempty"`
	GrownSince time.Time `json:"grown_since,omitzero"`

	weight int    // orders incidents of one urgency, the largest first
	part   string // of the queue, that it is about
}

// IncidentKind says what an Incident is about.
type IncidentKind string

const (
	// IncidentPolicy: a policy deletes or misdirects messages of the queue.
	IncidentPolicy IncidentKind = "policy"
	// IncidentGone: messages wait for a queue that does not exist.
	IncidentGone IncidentKind = "gone"
	// IncidentUnconsumed: the queue has no consumer, and no brake has stopped it.
	IncidentUnconsumed IncidentKind = "unconsumed"
	// IncidentStranded: messages have lost their queue and are in a stranded queue.
	IncidentStranded IncidentKind = "stranded"
	// IncidentAstray: a wait queue leads to no queue, or to another than it should.
	IncidentAstray IncidentKind = "astray"
	// IncidentHeld: messages are past their wait, and the broker cannot place them.
	IncidentHeld IncidentKind = "held"
	// IncidentBlocked: a dead letter blocks a key of a queue that is handled in order.
	IncidentBlocked IncidentKind = "blocked"
	// IncidentLine: the line of a queue that is handled in order is near its bound.
	IncidentLine IncidentKind = "line"
	// IncidentDead: the queue has dead letters.
	IncidentDead IncidentKind = "dead"
	// IncidentBrake: a brake is stopped.
	IncidentBrake IncidentKind = "brake"
	// IncidentUnknown: the queue that keeps the dead letters is not known.
	IncidentUnknown IncidentKind = "unknown"
)

// ID is the same for the same incident in each View.
func (i Incident) ID() string {
	return string(i.Kind) + "\x00" + cmp.Or(i.Queue, i.Brake) + "\x00" + i.Key + i.part
}

// Concerns reports whether a queue is the incident's, or stopped by its brake.
func (i Incident) Concerns(queue string) bool {
	return i.Queue == queue || slices.Contains(i.Queues, queue)
}

// IncidentOptions have facts that one View cannot show.
type IncidentOptions struct {
	// Since returns when an incident began, and whether it began before that. It is asked where the
	// broker does not tell. Default: it is not known.
	Since func(Incident) (at time.Time, longer bool)
	// Grown returns by how much the dead letters of a queue have grown since a time, which is zero if
	// that is not known. Default: the broker's rates tell whether they grow.
	Grown func(queue string) (by int, since time.Time)
	// KeyText writes a key. Default: strconv.Quote.
	KeyText func(key string) string
}

// Incidents returns all that is wrong in the vhost, the most urgent first. Stopped brakes are in it
// if ViewOptions.Brakes asks for them, blocked keys if Keys does, and messages for a queue that is
// gone if Trouble does.
func (v View) Incidents(options IncidentOptions) []Incident {
	if options.KeyText == nil {
		options.KeyText = strconv.Quote
	}
	list := incidents{options: options, policies: map[string]bool{}}
	for _, g := range v.Gone {
		first, weight := "", 0
		if !g.First.IsZero() {
			first, weight = "; the first returns at "+timeText(g.First), -int(g.First.Unix())
		}
		if g.Fate == FateLost {
			weight += 2 * policyWeight
		}
		list.add(Incident{Kind: IncidentGone, Urgency: 1, Queue: g.Queue, weight: weight},
			"%s for it, and it is gone%s: %s", waits(g.Messages), first, map[Fate]string{
				FateLost:     "start its service in time, or they are LOST",
				FateStranded: "start its service in time, or they are stranded",
				FateHeld:     "they stay in their wait queue until its service starts",
			}[g.Fate])
	}
	for _, q := range v.Stranded {
		if q.Total.N > 0 {
			list.add(Incident{
				Kind: IncidentStranded, Urgency: 3, Queue: q.Name, weight: q.Total.N, Since: v.strandedAt(),
			}, "%s lost their queue while they waited", plural(q.Total.N, "message"))
		}
	}
	for _, o := range v.Orphans {
		if o.Total.N > 0 && !v.Announces(o) {
			list.add(Incident{Kind: IncidentAstray, Urgency: 3, Queue: o.Name, weight: o.Total.N},
				"%s in it and lead to no queue: %s", waits(o.Total.N), o.Why)
		}
	}
	for _, b := range v.Stopped {
		list.brake(b, v.QueuesOf(b.Name))
	}
	for i := range v.Mains {
		list.main(&v, &v.Mains[i])
	}
	slices.SortStableFunc(list.found, func(a, b Incident) int {
		return cmp.Or(cmp.Compare(a.Urgency, b.Urgency), cmp.Compare(b.weight, a.weight),
			strings.Compare(a.Queue, b.Queue))
	})
	return list.found
}

// ByUrgency returns the queues of Mains, those with incidents first, then by their dead letters. of
// has the incidents of each queue, the most urgent first.
func (v View) ByUrgency(all []Incident) (mains []Main, of map[string][]Incident) {
	of = map[string][]Incident{}
	for _, i := range all {
		for _, queue := range append([]string{i.Queue}, i.Queues...) {
			of[queue] = append(of[queue], i)
		}
	}
	urgency := func(m Main) int {
		if len(of[m.Name]) == 0 {
			return math.MaxInt
		}
		return of[m.Name][0].Urgency
	}
	mains = slices.Clone(v.Mains)
	slices.SortStableFunc(mains, func(a, b Main) int { // by name among the same
		return cmp.Or(cmp.Compare(urgency(a), urgency(b)),
			cmp.Compare(b.DeadLetters.N, a.DeadLetters.N))
	})
	return mains, of
}

// policyWeight is before messages for a queue that is gone, unless they will be lost.
const policyWeight = 1 << 40

// incidents collects incidents.
type incidents struct {
	options  IncidentOptions
	found    []Incident
	policies map[string]bool // by their findings
}

func (l *incidents) add(i Incident, format string, args ...any) {
	i.Text = fmt.Sprintf(format, args...)
	if i.Since.IsZero() && l.options.Since != nil {
		i.Since, i.Longer = l.options.Since(i)
	}
	l.found = append(l.found, i)
}

func waits(n int) string {
	return plural(n, "message") + map[bool]string{true: " waits", false: " wait"}[n == 1]
}

// strandedAt is when the first of the stranded messages that were looked at was stranded.
func (v View) strandedAt() (first time.Time) {
	for _, m := range v.Strays {
		if first.IsZero() || !m.DeadAt.IsZero() && m.DeadAt.Before(first) {
			first = m.DeadAt
		}
	}
	return first
}

func (l *incidents) brake(b header.BrakeState, queues []string) {
	text := "stopped"
	if b.Manual {
		text += " by hand"
	}
	if b.By != "" {
		text += " by " + b.By
	}
	if b.Manual {
		text += ", ends at " + timeText(b.Until)
	}
	if b.Cause != "" {
		text += ": " + b.Cause
	}
	switch {
	case b.Since.IsZero():
		text += "; the process that probes does not answer, so nothing more is known"
	case b.Unknown:
		text += "; processes say so, and the process that probes does not answer"
	case b.Manual:
	case b.Prober == "":
		text += "; no process probes"
	default:
		text += "; " + b.Prober + " probes"
	}
	i := Incident{Kind: IncidentBrake, Urgency: 6, Brake: b.Name, Queues: queues, Since: b.Since}
	l.add(i, "%s", text)
}

// main adds the incidents of a main queue.
func (l *incidents) main(v *View, m *Main) {
	of := func(kind IncidentKind, urgency, weight int) Incident {
		return Incident{Kind: kind, Urgency: urgency, Queue: m.Name, weight: weight}
	}
	for _, f := range m.Findings {
		if f.Problem == Overruled && f.Severity == Critical {
			harm, _, _ := strings.Cut(f.Text, "; ") // the way out follows
			i := of(IncidentPolicy, 1, policyWeight)
			i.part = fmt.Sprintf("%s %q: %s", f.Kind, f.Name, harm)
			if !l.policies[i.part] { // queues share others
				l.policies[i.part] = true
				l.add(i, "%s", i.part)
			}
		}
	}
	l.unconsumed(v, m)
	held := max(m.Held.N, 0)
	for _, w := range m.Waits {
		held += max(w.Held.N, 0)
	}
	for _, d := range m.Dead {
		held += max(d.Held.N, 0)
	}
	if held > 0 {
		l.add(of(IncidentHeld, 3, held), "%s past their wait and held: their target is missing or full",
			plural(held, "message"))
	}
	if len(m.Dead) > 0 && m.PlanErr != nil {
		l.add(of(IncidentAstray, 3, 0), "a wait queue leads astray: see verify")
	}
	if m.Line != nil && m.InLine().N >= nearBound {
		l.add(of(IncidentLine, 4, m.InLine().N), "%s in its line, which is near its bound",
			plural(m.InLine().N, "message"))
	}
	var blocked []OrderKey // by one dead letter each
	if m.Keys != nil {
		blocked = m.Keys.BlockedKeys()
	}
	for n, k := range blocked {
		i := of(IncidentBlocked, 4, k.Waiting)
		if n == mostKeys {
			l.add(i, "%s", plural(len(blocked)-mostKeys, "more blocked key"))
			break
		}
		i.Key, i.Since = l.options.KeyText(k.Key), k.Blocked
		l.add(i, "key %s is blocked by a dead letter, %d behind it", i.Key, k.Waiting)
	}
	if len(m.Dead) == 0 {
		l.add(of(IncidentUnknown, 7, 0), "its dead-letter queue is not known: see --dlq")
	}
	if m.DeadLetters.N > len(blocked) {
		l.dead(m, of(IncidentDead, 7, m.DeadLetters.N))
	}
}

// mostKeys is how many blocked keys of a queue are named.
const mostKeys = 3

func (l *incidents) unconsumed(v *View, m *Main) {
	braked := slices.ContainsFunc(v.Stopped, func(b header.BrakeState) bool {
		return slices.Contains(v.QueuesOf(b.Name), m.Name)
	})
	if !m.Consumers.Known() || m.Consumers.N > 0 || braked {
		return
	}
	i := Incident{Kind: IncidentUnconsumed, Urgency: 2, Queue: m.Name, weight: m.Ready.N}
	text := "no consumer, and nothing is in it"
	switch {
	case m.Ready.N > 0:
		text = fmt.Sprintf("no consumer for %s", plural(m.Ready.N, "ready message"))
	case m.Waiting.N > 0:
		some := waits(m.Waiting.N)
		if m.WaitingShared {
			some = "at most " + some
		}
		text = fmt.Sprintf("no consumer, and %s to come back", some)
	default:
		i.Urgency, i.weight = 7, 1
	}
	if !v.brakesKnown && len(v.Brakes) > 0 {
		text += ", or a brake is stopped"
	}
	l.add(i, "%s", text)
}

// dead adds the dead letters of a queue.
func (l *incidents) dead(m *Main, i Incident) {
	for _, c := range m.Causes {
		if i.Since.IsZero() || !c.First.IsZero() && c.First.Before(i.Since) {
			i.Since = c.First
		}
	}
	text := plural(m.DeadLetters.N, "dead letter")
	if l.options.Grown != nil {
		i.Grown, i.GrownSince = l.options.Grown(m.Name)
	}
	grows := i.Grown > 0
	if i.GrownSince.IsZero() {
		for _, d := range m.Dead {
			grows = grows || d.In != nil && *d.In > 0
		}
	}
	if grows {
		i.Urgency, i.weight = 5, max(i.Grown, 1)
	}
	if grows && l.options.Grown == nil { // the sentence would change when the numbers are known
		text += ", and more come now"
	}
	l.add(i, "%s", text)
}
