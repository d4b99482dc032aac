package topology

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"

	"github.com/millpond-go/millpond/internal/management"
)

// policies are those of a vhost, as they are now. They are matched here, because the
// management API shows the policies of one queue up to ten seconds late, and shows
// none for a queue that is younger (F35).
type policies struct {
	user, operator []management.Policy
}

// appliedPolicies are the policies that apply to one queue or exchange.
type appliedPolicies struct {
	// rules are the keys of all policies that apply, in the order of their names.
	rules []policyRule
	// unreadable names policies whose pattern cannot be matched here, and which may apply
	// too.
	unreadable []policyRule // without key and value
	operator   bool         // an operator policy is among them
}

// policyRule is one key of a policy that applies.
type policyRule struct {
	key      string
	value    any
	source   string // the policy, in words
	policy   management.Policy
	operator bool // it is an operator policy
	certain  bool // the policy applies, unless another of the same priority does
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
	if errors.Is(err, management.ErrNotFound) { // as 4.3 answers (F39)
		err = fmt.Errorf("%w: the user needs permissions in vhost %q, of which ^$ is enough", err, m.vhost)
	}
	m.policyErr = fmt.Errorf("management API: policies: %w", err)
	return nil
}

// of returns what applies to a queue, which need not exist. At most one policy and one
// operator policy do: those of the highest priority that match. Of several with that
// priority the broker chooses one, so that all of them are returned.
func (p *policies) of(queue string, kind QueueType) appliedPolicies {
	return p.applied(queue, func(c management.Policy) reach { return fitsQueue(c, kind) })
}

// ofExchange returns what applies to an exchange, which need not exist.
func (p *policies) ofExchange(exchange string) appliedPolicies {
	return p.applied(exchange, func(c management.Policy) reach {
		if c.ApplyTo == "all" || c.ApplyTo == "exchanges" {
			return applies
		}
		return appliesNot
	})
}

// reach says whether a policy applies where its pattern matches.
type reach int

const (
	appliesNot reach = iota
	// mayApply: the type of the queue or the key is not known. Such a policy hides none of a lower
	// priority.
	mayApply
	applies
)

// fitsQueue goes by what the policy is for and by its keys: the broker applies no
// policy that has a single key which the type of the queue does not support, and goes on
// to the next one (F39).
func fitsQueue(p management.Policy, kind QueueType) reach {
	only := QueueType("")
	switch p.ApplyTo {
	case "classic_queues", "quorum_queues":
		only = QueueType(strings.TrimSuffix(p.ApplyTo, "_queues"))
	case "streams":
		only = stream
	case "exchanges":
		return appliesNot
	}
	if only != "" && kind != "" && only != kind {
		return appliesNot
	}
	found := applies
	if only != "" && kind == "" {
		found = mayApply
	}
	for key := range p.Definition {
		known, ok := policyKeys[key]
		if !ok {
			known = policyKey{sometimes: []QueueType{kind}}
		}
		found = min(found, known.fits(kind))
	}
	return found
}

func (p *policies) applied(name string, fits func(management.Policy) reach) appliedPolicies {
	var a appliedPolicies
	for _, group := range []struct {
		list     []management.Policy
		word     string
		operator bool
	}{{p.user, "policy", false}, {p.operator, "operator policy", true}} {
		lowest := math.MinInt
		byPriority := slices.Clone(group.list)
		slices.SortStableFunc(byPriority, func(x, y management.Policy) int { return cmp.Compare(y.Priority, x.Priority) })
		for _, c := range byPriority {
			found := fits(c)
			if found == appliesNot || c.Priority < lowest {
				continue
			}
			source := fmt.Sprintf("%s %q", group.word, c.Name)
			matches, err := matchesName(c.Pattern, name)
			switch {
			case err != nil:
				a.unreadable = append(a.unreadable, policyRule{source: source, policy: c, operator: group.operator})
				continue
			case !matches:
				continue
			case found == applies:
				lowest = c.Priority
			}
			a.operator = a.operator || group.operator
			for _, key := range slices.Sorted(maps.Keys(c.Definition)) {
				a.rules = append(a.rules, policyRule{key, c.Definition[key], source, c, group.operator, found == applies})
			}
		}
	}
	return a
}

// matchesName reports whether a policy's pattern stands anywhere in a name. Of what the
// broker reads and Go does not, lookaheads at the beginning are matched, as in
// "^(?!amq\.).*", which many policies begin with.
func matchesName(pattern, name string) (bool, error) {
	for strings.HasPrefix(pattern, "^(?!") || strings.HasPrefix(pattern, "^(?=") {
		end := closing(pattern[1:])
		if end < 0 || hasAlternatives(pattern[1+end:]) {
			break
		}
		ahead, err := regexp.Compile("^(?:" + pattern[len("^(?!"):end] + ")")
		if err != nil {
			break
		}
		if ahead.MatchString(name) != (pattern[len("^(?")] == '=') {
			return false, nil
		}
		pattern = "^" + pattern[1+end:]
	}
	compiled, err := regexp.Compile(pattern)
	if err != nil {
		return false, errors.New("the pattern cannot be read")
	}
	return compiled.MatchString(name), nil
}

// closing returns the end of the group that a pattern begins with, behind its
// parenthesis; -1 where that cannot be told.
func closing(pattern string) int {
	depth := 0
	for i := 0; i < len(pattern); i++ {
		switch pattern[i] {
		case '\\':
			i++
		case '[':
			return -1 // a class may hold parentheses
		case '(':
			depth++
		case ')':
			if depth--; depth == 0 {
				return i + 1
			}
		}
	}
	return -1
}

// hasAlternatives reports whether a pattern may have a | outside of its groups.
func hasAlternatives(pattern string) bool {
	if strings.Contains(pattern, "[") { // a class may hold parentheses
		return strings.Contains(pattern, "|")
	}
	depth := 0
	for i := 0; i < len(pattern); i++ {
		switch pattern[i] {
		case '\\':
			i++
		case '(':
			depth++
		case ')':
			depth--
		case '|':
			if depth == 0 {
				return true
			}
		}
	}
	return false
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
