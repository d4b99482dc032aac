package topology

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// policyFinding is a finding about one key of a policy.
type policyFinding struct {
	Finding
	group string // the same for the same key of the same policy on queues of the same role
}

// knownQueue is a queue that exists, as far as the broker has said what it is.
type knownQueue struct {
	kind      QueueType
	arguments map[string]any
}

// subjects are the queues and exchanges of a plan that policies may change, whether they
// exist or not: those that are not known are as the plan declares them.
func (p Plan) subjects(known map[string]knownQueue, version brokerVersion) []subject {
	var list []subject
	for _, q := range p.members() {
		text, _ := q.Arguments["x-queue-type"].(string)
		s := subject{kind: "queue", name: q.Name, role: q.role, delay: q.Delay, queueType: QueueType(text), arguments: q.Arguments, missing: true, version: version}
		if k, ok := known[q.Name]; ok {
			s.queueType, s.arguments, s.missing = k.kind, k.arguments, false
		}
		list = append(list, s)
	}
	taken := map[string]bool{}
	add := func(s subject) {
		if s.name != "" && !taken[s.name] {
			taken[s.name] = true
			s.kind, s.version = "exchange", version
			list = append(list, s)
		}
	}
	for _, e := range p.Exchanges {
		add(subject{name: e.Name, arguments: e.Arguments})
	}
	// An alternate exchange has one, too (F39).
	for _, e := range p.Exchanges {
		alternate, _ := e.Arguments["alternate-exchange"].(string)
		add(subject{name: alternate})
	}
	add(subject{name: p.Dead.Exchange, role: RoleDead}) // the user's
	return list
}

// judge names what the policies change for the worse, in the order of the plan, and the
// policies whose pattern cannot be read.
func (p *policies) judge(subjects []subject, vhost string) (findings []policyFinding, unreadable []string) {
	strange := map[string]bool{} // policies with a key that is not known
	for _, s := range subjects {
		if s.kind == "exchange" {
			s.applied = p.ofExchange(s.name)
		} else {
			s.applied = p.of(s.name, s.queueType)
		}
		s.policy = s.applied.definition()
		for _, r := range s.applied.unreadable {
			unreadable = append(unreadable, r.source)
		}
		for _, r := range s.applied.rules {
			about := fmt.Sprintf("%s sets %s to %s", r.source, r.key, valueText(r.value))
			f := policyFinding{Finding{Problem: Overruled, Kind: s.kind, Name: s.name}, r.source + r.key + string(s.role)}
			if _, known := policyKeys[r.key]; !known {
				if !strange[r.source+r.key] {
					strange[r.source+r.key] = true
					f.Severity = Warning
					f.Text = about + ", here or also elsewhere in the plan, a key that this version of millpond does not know: look up what the key does to a queue whose messages must not be lost"
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
func (s *subject) judge(r policyRule) (Severity, string) {
	key := policyKeys[r.key]
	about := key.keep
	switch {
	case s.kind == "exchange":
		about = key.exchange
	case s.role == RoleMain:
		about = key.main
	case s.role == RoleWait:
		about = key.wait
	}
	if about == nil {
		return "", ""
	}
	return about(s, r)
}

// exemption is the way out of a rule. Of two policies the one with the higher priority
// applies alone, so that the command repeats all keys of the policy but this one and
// those that lose messages. Without any limit the default of 20 would count, and no
// policy may be empty (F39).
func (s *subject) exemption(r policyRule, vhost string) string {
	if r.operator {
		return "no policy overrules an operator policy: change it, or keep its pattern from matching this name"
	}
	if r.key == "ha-mode" { // without mirrors there is one copy
		return "use a quorum queue, or add \"ha-promote-on-failure\":\"when-synced\" to the policy"
	}
	rest := maps.Clone(map[string]any(r.policy.Definition))
	for _, other := range s.applied.rules {
		severity, _ := s.judge(other)
		if other.operator || other.key != r.key && (severity != Critical || other.key == "ha-mode") {
			continue
		}
		if delete(rest, other.key); other.key == limitKey {
			rest[limitKey] = deliveryLimit
		}
	}
	if len(rest) == 0 {
		rest = map[string]any{"max-length": harmlessLength}
	}
	definition, _ := json.Marshal(rest) // it came as JSON
	return "exempt it by a policy of a higher priority: " + strings.Join([]string{
		"rabbitmqctl set_policy --vhost", shellWord(vhost), "--apply-to", s.kind + "s", "--priority", strconv.Itoa(r.policy.Priority + 1),
		shellWord("millpond-exempt-" + s.kind + "-" + s.name), shellWord("^" + regexp.QuoteMeta(s.name) + "$"), shellWord(string(definition)),
	}, " ")
}

// policies names what policies change for the worse, also of what does not exist yet.
func (v *verifier) policies() {
	list := v.manager.policies()
	if list == nil {
		return
	}
	findings, unreadable := list.judge(v.plan.subjects(v.known, v.version), v.vhost)
	for _, f := range findings {
		v.findings = append(v.findings, f.Finding)
	}
	if len(unreadable) > 0 {
		v.find(Warning, Unchecked, "broker", "", "cannot tell whether these apply, because their patterns mean nothing to Go's regexp: %s; compare the patterns with the names of the plan", strings.Join(unreadable, ", "))
	}
}
