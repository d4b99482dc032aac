package policies

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/audit"
	"github.com/millpond-go/millpond/internal/excerpt"
)

// Severity says how much a Finding matters.
type Severity string

// Critical: messages can be lost, or retries do not work. Warning: it works, with a limit.
const (
	Critical Severity = "critical"
	Warning  Severity = "warning"
)

// Finding is the harm that one key of a policy does to one queue or exchange.
type Finding struct {
	Severity Severity
	// Kind is "queue" or "exchange".
	Kind, Name, Text string
	// Group is the same for the same key of the same policy on queues of the same role.
	Group string
}

// String is the finding in one line.
func (f Finding) String() string { return Line(string(f.Severity), f.Kind, f.Name, f.Text) }

// Line writes a finding in one line, with every character escaped that is not printable; name may
// be empty.
func Line(severity, kind, name, text string) string {
	if name != "" {
		kind = fmt.Sprintf("%s %q", kind, name)
	}
	return excerpt.OneLine(fmt.Sprintf("%s: %s: %s", severity, kind, text))
}

// Judge names the harm that the policies do to a plan, in the order of the plan, and the policies
// whose pattern cannot be read. known are the queues that exist, as the broker describes them; the
// other queues, and those of unknown type, are taken to be as the plan declares them.
func (p *Set) Judge(
	plan audit.Plan, known map[string]audit.Facts, version audit.Version, vhost string,
) (findings []Finding, unreadable []string) {
	strange := map[string]bool{} // policies with a key that is not known
	for _, s := range subjects(plan, known, version) {
		if s.kind == "exchange" {
			s.applied = p.ofExchange(s.name)
		} else {
			s.applied = p.Of(s.name, s.queueType)
		}
		s.policy = s.applied.Definition()
		for _, r := range s.applied.Unreadable {
			unreadable = append(unreadable, r.Source)
		}
		for _, r := range s.applied.Rules {
			about := fmt.Sprintf("%s sets %s to %s", r.Source, r.Key, valueText(r.Value))
			f := Finding{Kind: s.kind, Name: s.name, Group: r.Source + r.Key + string(s.role)}
			if _, known := policyKeys[r.Key]; !known {
				if !strange[r.Source+r.Key] {
					strange[r.Source+r.Key] = true
					f.Severity, f.Text = Warning, about+", here or also elsewhere in the plan, a key that "+
						"this version of millpond does not know: look up its effect on a queue whose "+
						"messages must not be lost"
					findings = append(findings, f)
				}
				continue
			}
			var text string
			if f.Severity, text = s.judge(r); text != "" {
				f.Text = fmt.Sprintf("%s: %s; %s", about, text, s.exemption(r, vhost))
				findings = append(findings, f)
			}
		}
	}
	slices.Sort(unreadable)
	return findings, slices.Compact(unreadable)
}

// judge asks the table.
func (s *subject) judge(r Rule) (Severity, string) {
	key := policyKeys[r.Key]
	about := key.keep
	switch {
	case s.kind == "exchange":
		about = key.exchange
	case s.role == audit.RoleMain:
		about = key.main
	case s.role == audit.RoleWait:
		about = key.wait
	}
	if about == nil {
		return "", ""
	}
	return about(s, r)
}

// exemption is the way out of a rule. Of two policies only the one with the higher priority
// applies. So the command repeats all keys of the policy that do no harm. It is the same for all
// findings of the queue and the policy. Without any limit the default of 20 would count, and no
// policy may be empty (F39).
func (s *subject) exemption(r Rule, vhost string) string {
	if r.Operator {
		return "no policy overrules an operator policy: change it, " +
			"or keep its pattern from matching this name"
	}
	if r.Key == "ha-mode" { // without mirrors there is one copy
		return `use a quorum queue, or add "ha-promote-on-failure":"when-synced" to the policy`
	}
	rest := maps.Clone(map[string]any(r.Policy.Definition))
	for _, other := range s.applied.Rules {
		if other.Operator {
			continue
		}
		r.Policy.Priority = max(r.Policy.Priority, other.Policy.Priority)
		_, set := rest[other.Key]
		switch {
		case !set || !s.harmful(other):
		case other.Key == "ha-mode":
			rest["ha-promote-on-failure"] = "when-synced"
		case other.Key == audit.LimitKey:
			rest[audit.LimitKey] = audit.LargeLimit
		default:
			delete(rest, other.Key)
		}
	}
	if len(rest) == 0 {
		rest = map[string]any{"max-length": harmlessLength}
	}
	return "exempt it by a policy of a higher priority: " + audit.SetPolicy(
		vhost, s.kind, s.name, "exempt-"+s.kind, r.Policy.Priority+1, rest)
}

// harmful reports whether a finding names the rule: here, or as Facts.Drops.
func (s *subject) harmful(r Rule) bool {
	if _, limited := s.limited(r); r.Key == audit.LimitKey && limited && s.gone() == deleted {
		return true
	}
	_, harm := s.judge(r)
	return harm != ""
}

// RaiseLimit is the command that raises the delivery limit of one queue and leaves all else as it
// is. above is a rule of the policy that applies to the queue now, nil for none: at most one policy
// of each kind applies, so the command repeats its other keys with a higher priority.
func RaiseLimit(vhost, queue string, above *Rule) string {
	definition, priority := map[string]any{}, 0
	if above != nil {
		maps.Copy(definition, above.Policy.Definition)
		priority = above.Policy.Priority + 1
	}
	definition[audit.LimitKey] = audit.LargeLimit
	command := audit.SetPolicy(vhost, "queue", queue, "limit", priority, definition)
	if above != nil && above.Operator {
		command = strings.Replace(command, "set_policy", "set_operator_policy", 1)
	}
	return command
}

// valueText writes the value of a policy's key.
func valueText(value any) string {
	text, _ := json.Marshal(value) // never fails: it came as JSON
	return string(text)
}

// subject is one queue or exchange of a plan, as policies find it.
type subject struct {
	kind, name string     // kind is "queue" or "exchange"
	role       audit.Role // of a queue
	delay      time.Duration
	queueType  string         // "" where it is not known
	arguments  map[string]any // from the broker, else from the plan
	missing    bool           // the broker has not said that it exists
	version    audit.Version
	applied    Applied
	policy     map[string]any // all that applies together
	rejects    bool           // the queue holds rejected messages, as the plan wants it
}

// subjects returns the queues and exchanges of the plan that policies may change, also before
// they exist.
func subjects(p audit.Plan, known map[string]audit.Facts, version audit.Version) []*subject {
	var list []*subject
	for _, q := range p.Members() {
		kind, _ := q.Arguments["x-queue-type"].(string)
		s := &subject{
			kind: "queue", name: q.Name, role: q.Role, delay: q.Delay,
			queueType: kind, arguments: q.Arguments, missing: true, version: version,
			rejects: q.Role == audit.RoleMain && p.RejectMin > 0,
		}
		if k := known[q.Name]; k.Kind != "" {
			s.queueType, s.arguments, s.missing = k.Kind, k.Arguments, false
		}
		list = append(list, s)
	}
	taken := map[string]bool{"": true}
	add := func(name string, role audit.Role, arguments amqp.Table) {
		if !taken[name] {
			taken[name] = true
			list = append(list, &subject{
				kind: "exchange", name: name, role: role, arguments: arguments, version: version,
			})
		}
	}
	for _, e := range p.Exchanges {
		add(e.Name, "", e.Arguments)
	}
	for _, e := range p.Exchanges { // an alternate exchange may have an alternate exchange too (F39)
		alternate, _ := e.Arguments["alternate-exchange"].(string)
		add(alternate, "", nil)
	}
	add(p.DeadExchange, audit.RoleDead, nil) // the user's
	return list
}
