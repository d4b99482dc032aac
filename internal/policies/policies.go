// Package policies judges the policies of a broker, and asks the management API for them and for
// queues: which messages of a plan do policies delete, misdirect or delay? It plugs into package
// audit, so that a program which names no management API links neither. It changes nothing on the
// broker.
package policies

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"

	"github.com/millpond-go/millpond/internal/audit"
	"github.com/millpond-go/millpond/internal/management"
)

// Set has the policies of a vhost, as they are now. They are matched here, because the
// management API shows the policies of one queue up to ten seconds late, and shows none for a queue
// that is younger (F35).
type Set struct {
	User, Operator []management.Policy
}

// Applied are the policies that apply to one queue or exchange.
type Applied struct {
	// Rules are the keys of all policies that apply, in the order of their names.
	Rules []Rule
	// Unreadable are policies whose pattern cannot be matched here and which may apply too. They
	// have neither key nor value.
	Unreadable []Rule
	Operator   bool // an operator policy is among them
}

// Rule is one key of a policy that applies.
type Rule struct {
	Key      string
	Value    any
	Source   string // the policy, in words
	Policy   management.Policy
	Operator bool // it is an operator policy
	certain  bool // the policy applies, unless another of the same priority does
}

// reach says whether a policy applies where its pattern matches.
type reach int

const (
	appliesNot reach = iota
	// mayApply: the type of the queue or the key is not known. Such a policy hides no policy of a
	// lower priority.
	mayApply
	applies
)

// Of returns the policies that apply to a queue, which need not exist. At most one policy and one
// operator policy do: those with the highest priority that match. Of several with that priority the
// broker chooses one, and Of returns all of them.
func (p *Set) Of(queue, kind string) Applied {
	return p.applied(queue, func(c management.Policy) reach { return fitsQueue(c, kind) })
}

// ofExchange is Of for an exchange.
func (p *Set) ofExchange(exchange string) Applied {
	return p.applied(exchange, func(c management.Policy) reach {
		if c.ApplyTo == "all" || c.ApplyTo == "exchanges" {
			return applies
		}
		return appliesNot
	})
}

// fitsQueue reads apply-to and the keys of a policy. The broker does not apply a policy with a
// single key that the type of the queue does not support, and goes on to the next policy (F39).
func fitsQueue(p management.Policy, kind string) reach {
	only := map[string]string{
		"classic_queues": audit.Classic, "quorum_queues": audit.Quorum, "streams": audit.Stream,
	}[p.ApplyTo]
	found := applies
	switch {
	case p.ApplyTo == "exchanges", only != "" && kind != "" && only != kind:
		return appliesNot
	case only != "" && kind == "":
		found = mayApply
	}
	for key := range p.Definition {
		known, ok := policyKeys[key]
		if !ok {
			known = policyKey{sometimes: []string{kind}}
		}
		found = min(found, known.fits(kind))
	}
	return found
}

func (p *Set) applied(name string, fits func(management.Policy) reach) Applied {
	var a Applied
	for _, group := range []struct {
		list     []management.Policy
		word     string
		operator bool
	}{{p.User, "policy", false}, {p.Operator, "operator policy", true}} {
		lowest := math.MinInt
		byPriority := slices.Clone(group.list)
		slices.SortStableFunc(byPriority, func(x, y management.Policy) int {
			return cmp.Compare(y.Priority, x.Priority)
		})
		for _, c := range byPriority {
			found := fits(c)
			if found == appliesNot || c.Priority < lowest {
				continue
			}
			r := Rule{
				Source: fmt.Sprintf("%s %q", group.word, c.Name), Policy: c, Operator: group.operator,
				certain: found == applies,
			}
			matches, err := matchesName(c.Pattern, name)
			switch {
			case err != nil:
				a.Unreadable = append(a.Unreadable, r)
				continue
			case !matches:
				continue
			case found == applies:
				lowest = c.Priority
			}
			a.Operator = a.Operator || group.operator
			for _, r.Key = range slices.Sorted(maps.Keys(c.Definition)) {
				r.Value = c.Definition[r.Key]
				a.Rules = append(a.Rules, r)
			}
		}
	}
	return a
}

// matchesName reports whether the pattern of a policy matches anywhere in a name. The broker reads
// lookaheads and Go does not: lookaheads at the beginning are matched here, as in "^(?!amq\.).*",
// which many policies begin with.
func matchesName(pattern, name string) (bool, error) {
	for strings.HasPrefix(pattern, "^(?!") || strings.HasPrefix(pattern, "^(?=") {
		end := place(pattern[1:], ')')
		if end < 0 {
			break
		}
		rest := pattern[1+end:]
		if place(rest, '|') >= 0 || strings.Contains(rest, "[") && strings.Contains(rest, "|") {
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

// place returns the index behind the first end that is outside of all groups, or closes the first
// one; -1 if there is none, or if a character class before it may hold parentheses.
func place(pattern string, end byte) int {
	depth := 0
	for i := 0; i < len(pattern); i++ {
		switch pattern[i] {
		case '\\':
			i++
			continue
		case '[':
			return -1
		case '(':
			depth++
		case ')':
			depth--
		}
		if depth == 0 && pattern[i] == end {
			return i + 1
		}
	}
	return -1
}

// Definition merges the rules as the broker does: of two numbers the smaller, where a negative one
// counts as none (F30), else the value of the operator policy.
func (a *Applied) Definition() map[string]any {
	merged := map[string]any{}
	for _, r := range a.Rules {
		before, set := merged[r.Key]
		n, isNumber := audit.WholeNumber(r.Value)
		was, wasNumber := audit.WholeNumber(before)
		if set && isNumber && wasNumber && (n < 0 || was >= 0 && was < n) {
			continue
		}
		merged[r.Key] = r.Value
	}
	return merged
}

// Surely reports whether a policy that applies for certain sets a key. Of several with the same
// priority the broker chooses one, so that all of them must set it.
func (a *Applied) Surely(key string) bool {
	for _, operator := range []bool{false, true} {
		sets := map[string]bool{} // by the name of the policy
		for _, r := range a.Rules {
			if r.Operator == operator {
				sets[r.Policy.Name] = sets[r.Policy.Name] || r.Key == key && r.certain
			}
		}
		if len(sets) > 0 && !slices.Contains(slices.Collect(maps.Values(sets)), false) {
			return true
		}
	}
	return false
}

// User returns a rule of the user policy that applies, nil where none does.
func (a *Applied) User() *Rule {
	for _, r := range a.Rules {
		if !r.Operator {
			return &r
		}
	}
	return nil
}
