package topology

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"strconv"
	"strings"

	"github.com/millpond-go/millpond/internal/link"
)

// harmlessLimit is the delivery limit from which looking counts as harmless.
const harmlessLimit = 1 << 20

// limitKey is the delivery limit in a policy.
const limitKey = "delivery-limit"

// The ways out where policies are not seen.
const (
	nameManagement = "name the management API (WithManagement, --management)"
	sayNoPolicies  = "if you know that no policy sets delivery-limit on it, say so (WithoutPolicyCheck, --no-policies)"
)

// mayPeek returns ErrUnsafePeek unless it is proven that the delivery limit of a
// queue is out of reach, or that the queue has none. The queues that are known spare
// questions.
func (c *Client) mayPeek(ctx context.Context, conn *link.Conn, queue string, known ...Queue) error {
	f, applied, err := c.declaredAndRuled(ctx, conn, queue, known)
	switch {
	case err != nil:
		return err
	case f.kind == Classic, f.kind == stream:
		return nil // neither counts deliveries
	case f.kind == "":
		return fmt.Errorf("%w: its type could not be seen: grant the read permission, or %s", ErrUnsafePeek, nameManagement)
	case f.kind != Quorum:
		return fmt.Errorf("%w: it is a queue of type %q, which is not known here", ErrUnsafePeek, f.kind)
	case !f.known:
		return fmt.Errorf("%w: its arguments could not be seen: grant the configure permission, or %s", ErrUnsafePeek, nameManagement)
	}
	argument, set := wholeNumber(f.arguments["x-"+limitKey])
	if set && argument < harmlessLimit && (argument >= 0 || !f.version.atLeast(4, 0)) { // F30: -1 acts like 0 before 4.0
		return fmt.Errorf("%w: its argument x-delivery-limit is %d, and each look at a message counts; no policy raises that: move the messages to another queue, with a shovel for example", ErrUnsafePeek, argument)
	}
	needsPolicy := !set && f.version.atLeast(4, 0) // against the default of 20
	if !c.opts.noPolicies {
		if applied.err != nil {
			return fmt.Errorf("%w: it is a quorum queue, and its policies could not be seen: %w; or, %s", ErrUnsafePeek, applied.err, sayNoPolicies)
		}
		for _, r := range applied.unreadable {
			if n, limits := wholeNumber(r.policy.Definition[limitKey]); limits && n >= 0 && n < harmlessLimit || !limits && needsPolicy {
				return fmt.Errorf("%w: it is a quorum queue, and the pattern %q of %s cannot be read here, so that the policy may apply: write the pattern without lookaheads and backreferences, or, %s",
					ErrUnsafePeek, r.policy.Pattern, r.source, sayNoPolicies)
			}
		}
	}
	var problems, commands []string
	for _, r := range applied.rules {
		if n, ok := wholeNumber(r.value); r.key == limitKey && ok && n >= 0 && n < harmlessLimit {
			problems = append(problems, fmt.Sprintf("%s sets delivery-limit to %d", r.source, n))
			commands = append(commands, exemption(applied.vhost, queue, &r))
		}
	}
	if len(problems) == 0 && needsPolicy && !applied.surely(limitKey) {
		if applied.err != nil {
			return fmt.Errorf("%w: it has no x-delivery-limit, so that its limit is %d by default, and each look at a message counts; where a policy raises the limit, %s",
				ErrUnsafePeek, defaultDeliveryLimit, nameManagement)
		}
		problems = append(problems, fmt.Sprintf("its delivery limit is %d by default", defaultDeliveryLimit))
		commands = append(commands, exemption(applied.vhost, queue, applied.user()))
	}
	if len(problems) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %s, and each look at a message counts; exempt the queue: %s", ErrUnsafePeek, strings.Join(problems, ", "), strings.Join(commands, "; "))
}

// ruled are the policies that apply to a queue, and their vhost.
type ruled struct {
	appliedPolicies
	vhost string
	err   error // why they are not known
}

// declaredAndRuled asks what a queue is, and which policies apply to it.
func (c *Client) declaredAndRuled(ctx context.Context, conn *link.Conn, queue string, known []Queue) (*queueFacts, *ruled, error) {
	m := c.manager(ctx)
	likely := Quorum.keepArguments()
	for _, q := range known {
		if q.Name == queue {
			likely = q.Arguments
		}
	}
	f, err := learnDeclared(ctx, conn.Do, queue, likely, serverVersion(conn), m)
	if err != nil {
		return nil, nil, err
	}
	r := &ruled{}
	if r.vhost, err = c.linkCfg.Vhost(); err != nil {
		return nil, nil, err
	}
	switch list := m.policies(); {
	case list != nil:
		r.appliedPolicies = list.of(queue, f.kind)
	case m == nil:
		r.err = errors.New("AMQP does not show them: " + nameManagement)
	case m.err != nil:
		r.err = m.err
	default:
		r.err = m.policyErr
	}
	return f, r, nil
}

// surely reports whether a policy that applies for certain sets a key. Of several with
// the same priority the broker chooses one.
func (a *appliedPolicies) surely(key string) bool {
	sets := map[bool]map[string]bool{false: {}, true: {}} // by operator, then by name
	for _, r := range a.rules {
		of := sets[r.operator]
		of[r.policy.Name] = of[r.policy.Name] || r.key == key && r.certain
	}
	for _, of := range sets {
		all := len(of) > 0
		for _, set := range of {
			all = all && set
		}
		if all {
			return true
		}
	}
	return false
}

// user returns a rule of the user policy that applies, nil where none does.
func (a *appliedPolicies) user() *policyRule {
	for _, r := range a.rules {
		if !r.operator {
			return &r
		}
	}
	return nil
}

// exemption is the command that raises the delivery limit of one queue and leaves all
// else as it is. At most one policy of each kind applies to a queue, so the command
// repeats what the policy of the rule says, with a higher priority.
func exemption(vhost, queue string, of *policyRule) string {
	definition := map[string]any{}
	words := []string{"rabbitmqctl", "set_policy", "--vhost", shellWord(vhost)}
	if of != nil {
		maps.Copy(definition, of.policy.Definition)
		if of.operator {
			words[1] = "set_operator_policy"
		}
		words = append(words, "--priority", strconv.Itoa(of.policy.Priority+1))
	}
	definition[limitKey] = deliveryLimit
	value, _ := json.Marshal(definition) // never fails
	return strings.Join(append(words, "--apply-to queues",
		shellWord("millpond-limit-"+queue), shellWord("^"+regexp.QuoteMeta(queue)+"$"), shellWord(string(value))), " ")
}

// bounds are the keys, of arguments with x- before them, under which messages leave a
// queue by themselves or come back to it late (F38).
var bounds = []string{"message-ttl", "max-length", "max-length-bytes", "delayed-retry-type"}

// givenBack is CheckGivenBack.
func (c *Client) givenBack(ctx context.Context, conn *link.Conn, queue string, missing int, known ...Queue) error {
	f, applied, err := c.declaredAndRuled(ctx, conn, queue, known)
	if err != nil {
		return err
	}
	policy := applied.definition()
	for _, key := range bounds {
		_, argument := f.arguments["x-"+key]
		if _, set := policy[key]; set || argument && f.known {
			return nil
		}
	}
	text := fmt.Sprintf("%d messages that were given back are not in it: another client has taken them, or the broker has deleted them", missing)
	switch unsafe := c.mayPeek(ctx, conn, queue, known...); {
	case unsafe != nil:
		return fmt.Errorf("%s: %v", text, unsafe) // not ErrUnsafePeek: the look was done
	case applied.err != nil:
		return fmt.Errorf("%s, by a policy that was not seen: %w", text, applied.err)
	}
	return errors.New(text)
}
