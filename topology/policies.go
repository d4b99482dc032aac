package topology

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"

	"github.com/millpond-go/millpond/internal/management"
)

// policies are those of a vhost, as they are now. They are matched here, because the
// management API shows the policies of one queue up to ten seconds late, and shows
// none for a queue that is younger (F35).
type policies struct {
	user, operator []management.Policy
}

// appliedPolicies are the policies that apply to one queue.
type appliedPolicies struct {
	// rules are the keys of all policies that apply, in the order of their names.
	rules []policyRule
	// unreadable names policies whose pattern cannot be matched here, and which may apply
	// too.
	unreadable []string
	operator   bool // an operator policy is among them
}

// policyRule is one key of a policy that applies.
type policyRule struct {
	key      string
	value    any
	source   string // the policy, in words
	policy   management.Policy
	operator bool // it is an operator policy
}

// policies asks for them; nil where they cannot be seen, and then policyErr says why.
func (m *manager) policies() *policies {
	switch {
	case m == nil || m.err != nil || m.policyErr != nil:
		return nil
	case m.seen != nil:
		return m.seen
	}
	ctx, cancel := context.WithTimeout(m.ctx, managementTimeout)
	defer cancel()
	user, err := m.api.Policies(ctx, m.vhost)
	if err == nil {
		var operator []management.Policy
		if operator, err = m.api.OperatorPolicies(ctx, m.vhost); err == nil {
			m.seen = &policies{user: user, operator: operator}
			return m.seen
		}
	}
	m.policyErr = fmt.Errorf("management API: policies: %w", err)
	return nil
}

// of returns what applies to a queue, which need not exist. At most one policy and one
// operator policy do: those of the highest priority that match. Of several with that
// priority the broker chooses one, so that all of them are returned.
func (p *policies) of(queue string, kind QueueType) appliedPolicies {
	var a appliedPolicies
	for _, group := range []struct {
		list     []management.Policy
		word     string
		operator bool
	}{{p.user, "policy", false}, {p.operator, "operator policy", true}} {
		var chosen []management.Policy
		for _, candidate := range group.list {
			matches, err := policyMatches(candidate, queue, kind)
			switch {
			case err != nil:
				a.unreadable = append(a.unreadable, fmt.Sprintf("%s %q", group.word, candidate.Name))
			case !matches:
			case len(chosen) > 0 && chosen[0].Priority > candidate.Priority:
			case len(chosen) > 0 && chosen[0].Priority < candidate.Priority:
				chosen = []management.Policy{candidate}
			default:
				chosen = append(chosen, candidate)
			}
		}
		for _, c := range chosen {
			for _, key := range slices.Sorted(maps.Keys(c.Definition)) {
				a.rules = append(a.rules, policyRule{
					key: key, value: c.Definition[key], source: fmt.Sprintf("%s %q", group.word, c.Name), policy: c, operator: group.operator,
				})
			}
		}
		a.operator = len(chosen) > 0 // the last group
	}
	return a
}

// policyMatches reports whether a policy is for a queue. A pattern may stand anywhere in
// the name. The broker reads patterns that Go does not, such as lookaheads.
func policyMatches(p management.Policy, queue string, kind QueueType) (bool, error) {
	switch p.ApplyTo {
	case "all", "queues", "":
	case "classic_queues", "quorum_queues", "streams":
		if kind != "" && p.ApplyTo != string(kind)+"_queues" && !(kind == stream && p.ApplyTo == "streams") {
			return false, nil
		}
	case "exchanges":
		return false, nil
	}
	pattern, err := regexp.Compile(p.Pattern)
	if err != nil {
		return false, errors.New("the pattern cannot be read")
	}
	return pattern.MatchString(queue), nil
}

// definition is what the broker makes of the rules: of two numbers the smaller, of
// which a negative one is none (F30), else the operator policy's.
func (a *appliedPolicies) definition() map[string]any {
	merged := map[string]any{}
	for _, r := range a.rules {
		before, set := merged[r.key]
		n, isNumber := wholeNumber(r.value)
		was, wasNumber := wholeNumber(before)
		if set && isNumber && wasNumber && (n < 0 || was >= 0 && was < n) {
			continue
		}
		merged[r.key] = r.value
	}
	return merged
}
