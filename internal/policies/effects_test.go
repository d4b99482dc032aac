package policies_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/audit"
	"github.com/millpond-go/millpond/internal/management"
	"github.com/millpond-go/millpond/internal/policies"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/topology"
)

var (
	old    = audit.Version{Major: 3, Minor: 10}
	four   = audit.Version{Major: 4}
	latest = audit.Version{Major: 4, Minor: 3}
)

var update = flag.Bool("update", false, "write the golden files anew")

// policy makes a policy of the management API.
func policy(name, applyTo string, priority int, definition string) management.Policy {
	var values management.Object
	if err := json.Unmarshal([]byte(definition), &values); err != nil {
		panic(err)
	}
	return management.Policy{
		Name: name, Pattern: ".*", ApplyTo: applyTo, Priority: priority, Definition: values,
	}
}

func user(list ...management.Policy) *policies.Set { return &policies.Set{User: list} }

// planOf is the plan of queue "orders", without the wait queue for messages that are set aside.
func planOf(t *testing.T, strategy topology.Strategy, delay time.Duration) audit.Plan {
	t.Helper()
	plan, err := strategy.Plan("orders", []time.Duration{delay})
	require.NoError(t, err)
	a := plan.Audited()
	a.Queues = slices.DeleteFunc(a.Queues, func(q audit.Queue) bool {
		return q.Delay > 0 && q.Delay != delay
	})
	return a
}

// A policy that the broker does not apply, because of a key or of apply-to, hides no policy of a
// lower priority.
func TestPolicyThatDoesNotApplyHidesNoOther(t *testing.T) {
	t.Parallel()
	low := policy("low", "queues", 0, `{"message-ttl":1}`)
	lazy := policy("lazy", "queues", 5, `{"queue-mode":"lazy"}`)
	limit := policy("limit", "queues", 5, `{"delivery-limit":5}`)
	leader := policy("leader", "all", 5, `{"queue-leader-locator":"balanced"}`)
	classic := policy("classic", "classic_queues", 5, `{"expires":1}`)
	exchanges := policy("exchanges", "exchanges", 9, `{"alternate-exchange":"x"}`)
	tie := policy("tie", "queues", 0, `{"expires":1}`)
	for name, c := range map[string]struct {
		kind   string
		policy management.Policy
		want   []string
	}{
		"quorum, lazy":   {audit.Quorum, lazy, []string{"low message-ttl"}},
		"classic, lazy":  {audit.Classic, lazy, []string{"lazy queue-mode"}},
		"unknown, lazy":  {"", lazy, []string{"lazy queue-mode", "low message-ttl"}},
		"quorum, limit":  {audit.Quorum, limit, []string{"limit delivery-limit"}},
		"classic, limit": {audit.Classic, limit, []string{"low message-ttl"}},
		"classic, by version": {
			audit.Classic, leader, []string{"leader queue-leader-locator", "low message-ttl"},
		},
		"quorum, leader":     {audit.Quorum, leader, []string{"leader queue-leader-locator"}},
		"classic_queues":     {audit.Classic, classic, []string{"classic expires"}},
		"not classic_queues": {audit.Quorum, classic, []string{"low message-ttl"}},
		"perhaps":            {"", classic, []string{"classic expires", "low message-ttl"}},
		"exchanges":          {audit.Quorum, exchanges, []string{"low message-ttl"}},
		"a tie":              {audit.Quorum, tie, []string{"low message-ttl", "tie expires"}},
	} {
		var got []string
		applied := user(low, c.policy).Of("orders", c.kind)
		for _, r := range applied.Rules {
			got = append(got, r.Policy.Name+" "+r.Key)
		}
		require.Equal(t, c.want, got, name)
	}
	unreadable := policy("strange", "queues", 9, `{"expires":1}`)
	unreadable.Pattern = "(?<!x)$"
	applied := user(unreadable, low).Of("orders", audit.Quorum)
	require.Len(t, applied.Unreadable, 1)
	require.Equal(t, `policy "strange"`, applied.Unreadable[0].Source)
	require.Contains(t, applied.Definition(), "message-ttl")
}

// sampleValues are harmful values of keys, where there are any.
var sampleValues = map[string]string{
	"message-ttl": "2000", "expires": "60000", "max-length": "10", "max-length-bytes": "1000000",
	"overflow": `"drop-head"`, "delivery-limit": "5", "dead-letter-exchange": `"events"`,
	"dead-letter-routing-key": `"sink"`, "dead-letter-strategy": `"at-most-once"`,
	"alternate-exchange": `"events"`, "consumer-timeout": "60000",
	"consumer-disconnected-timeout": "600000", "ha-mode": `"all"`,
	"delayed-retry-type": `"all","delayed-retry-min":1000,"delayed-retry-max":60000`,
}

// The texts of all keys, on every part of a plan, by the versions that matter. The golden file is
// for a person to read.
func TestEveryPolicyIsNamedByItsEffect(t *testing.T) {
	t.Parallel()
	definitions := []string{
		`{"max-length":10,"overflow":"reject-publish"}`,
		`{"message-ttl":2000,"dead-letter-exchange":"events"}`, `{"later-key":"x\u001b[31m"}`,
	}
	for _, key := range policies.PolicyKeys {
		value, harmful := sampleValues[key]
		if !harmful {
			value = `"any"`
		}
		definitions = append(definitions, fmt.Sprintf(`{%q:%s}`, key, value))
	}
	var out strings.Builder
	said := map[string]bool{}
	judge := func(list *policies.Set, plan audit.Plan, main amqp.Table, version audit.Version) {
		kind, _ := main["x-queue-type"].(string)
		known := map[string]audit.Facts{"orders": {Kind: kind, Arguments: main}}
		findings, unreadable := list.Judge(plan, known, version, "shop")
		require.Empty(t, unreadable)
		for _, f := range findings {
			if text := f.String(); !said[text] {
				said[text] = true
				fmt.Fprintln(&out, text)
			}
		}
	}
	for _, strategy := range []topology.Strategy{
		topology.PerQueue{},
		topology.PerQueue{Type: topology.Classic},
		topology.Shared{},
		topology.PerQueue{Dead: topology.DeadLetters{Target: func(string) topology.Route {
			return topology.Route{Exchange: "graves"}
		}}},
	} {
		plan := planOf(t, strategy, 5*time.Second)
		main := amqp.Table{"x-queue-type": audit.Quorum, "x-delivery-limit": int64(audit.LargeLimit)}
		if plan.Queues[0].Arguments["x-queue-type"] == audit.Classic {
			main = amqp.Table{"x-queue-type": audit.Classic}
		}
		for i, e := range plan.Exchanges { // those with an argument are not named
			plan.Exchanges[i].Arguments = amqp.Table{"alternate-exchange": e.Name}
		}
		plan.Exchanges = append(plan.Exchanges, audit.Exchange{Name: "orders.open"}, audit.Exchange{
			Name: "orders.leads", Arguments: amqp.Table{"alternate-exchange": "elsewhere"},
		})
		for _, version := range []audit.Version{old, latest} {
			for _, definition := range definitions {
				judge(user(policy("admin's", "all", 3, definition)), plan, main, version)
				if strings.HasSuffix(definition, `:10}`) { // the other texts differ in their end alone
					ops := []management.Policy{policy("ops", "queues", 0, definition)}
					judge(&policies.Set{Operator: ops}, plan, main, version)
				}
			}
		}
	}
	const file = "testdata/policies.golden"
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(out.String()), 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err, "go test -update writes it")
	require.Equal(t, string(want), out.String())
	require.NotContains(t, out.String(), "\x1b")
}

// Values of keys that harm fewer parts of a plan than others, or none: "!" is critical. A setting
// of the queue that is as tight, or that the broker takes before the policy, is not the policy's.
func TestValuesOfPolicyKeysThatHarmLess(t *testing.T) {
	t.Parallel()
	quorum, classic := topology.PerQueue{}, topology.PerQueue{Type: topology.Classic}
	shared, own := topology.Shared{}, topology.PerQueue{}
	own.Dead.Arguments = amqp.Table{
		"x-max-length": int64(5), "x-overflow": "reject-publish", "x-message-ttl": int64(1000),
	}
	for name, c := range map[string]struct {
		strategy   topology.Strategy
		definition string
		version    audit.Version
		want       string
	}{
		"ttl longer than the wait": {quorum, `{"message-ttl":7200000}`, four, "main! dead!"},
		"length out of reach":      {quorum, `{"max-length":2147483647}`, four, ""},
		"overflow to dead letters": {quorum, `{"overflow":"reject-publish-dlx"}`, four, "wait!"},
		"overflow as we have it":   {quorum, `{"overflow":"reject-publish"}`, four, ""},
		"overflow, classic":        {classic, `{"overflow":"drop-head"}`, four, ""},
		"delivery limit":           {quorum, `{"delivery-limit":5}`, old, "main! wait dead!"},
		"no delivery limit":        {quorum, `{"delivery-limit":-1}`, four, ""},
		"routing key, own key": {
			quorum, `{"dead-letter-exchange":"x","dead-letter-routing-key":"sink"}`,
			four, "",
		},
		"alternate exchange, queues": {shared, `{"alternate-exchange":"x"}`, four, ""},
		"consumer timeout, long":     {quorum, `{"consumer-timeout":3600000}`, four, ""},
		"delayed retry, failures": {
			quorum, `{"delayed-retry-type":"failed","delayed-retry-min":500}`,
			latest, "main",
		},
		"delayed retry, off": {quorum, `{"delayed-retry-type":"disabled"}`, latest, ""},
		"own settings":       {own, `{"message-ttl":2000,"max-length":6}`, four, "main! wait wait!"},
		"own ttl":            {own, `{"message-ttl":999}`, four, "main! wait! dead!"},
		"own length":         {own, `{"max-length":4}`, four, "main! wait dead"}, // it refuses
		// It goes first on a quorum queue.
		"own overflow":                {own, `{"overflow":"drop-head"}`, four, "wait! dead!"},
		"mirrors that are not needed": {quorum, `{"ha-mode":"all"}`, old, "main"},
		"memory": {
			quorum, `{"max-in-memory-length":0,"target-group-size":5,"queue-leader-locator":"balanced"}`,
			four, "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			plan := planOf(t, c.strategy, time.Hour)
			roles := map[string]string{}
			for _, m := range plan.Members() {
				roles[m.Name] = string(m.Role)
			}
			findings, _ := user(policy("p", "queues", 0, c.definition)).Judge(plan, nil, c.version, "/")
			var got []string
			for _, f := range findings {
				role := roles[f.Name]
				if f.Severity == policies.Critical {
					role += "!"
				}
				got = append(got, role)
			}
			require.Equal(t, c.want, strings.Join(slices.Compact(got), " "), "%v", findings)
		})
	}
}

// Given policies with critical and with lesser keys, then all findings about a queue and a policy
// print one command. After any of the commands no key harms the queue, and the other keys stay.
func TestAnyCommandExemptsAQueueFromAllHarm(t *testing.T) {
	t.Parallel()
	const both = `{"message-ttl":2000,"max-length":10,"expires":60000,"consumer-timeout":60000,` +
		`"delivery-limit":5,"delayed-retry-type":"all","queue-leader-locator":"balanced"}`
	tied := `{"max-length-bytes":1000,"max-length":20,"queue-leader-locator":"client-local"}`
	for name, c := range map[string]struct {
		strategy topology.Strategy
		list     *policies.Set
		version  audit.Version
		want     string // for the queue "orders"
		unknown  bool   // the type of the queue is not known
	}{
		"one policy": {
			topology.PerQueue{},
			user(policy("p", "queues", 3, both)), latest,
			`{"delivery-limit":2147483647,"queue-leader-locator":"balanced"}`, false,
		},
		"two of one priority": {
			topology.PerQueue{},
			user(policy("p", "queues", 3, both), policy("q", "queues", 3, tied)), latest, "", false,
		},
		"two of which one may apply": {
			topology.Shared{},
			user(policy("p", "queues", 3, `{"max-length":20}`),
				policy("q", "classic_queues", 5, `{"expires":1}`)), latest,
			`{"max-length":2147483647}`, true,
		},
		"mirrors": {
			topology.PerQueue{Type: topology.Classic},
			user(policy("p", "all", 0, `{"ha-mode":"all","message-ttl":2000}`)), old,
			`{"ha-mode":"all","ha-promote-on-failure":"when-synced"}`, false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			plan := planOf(t, c.strategy, time.Hour)
			kind, _ := plan.Queues[0].Arguments["x-queue-type"].(string)
			known := map[string]audit.Facts{"orders": {Kind: kind}}
			if c.unknown {
				delete(known, "orders")
			}
			judge := func(list *policies.Set) []policies.Finding {
				findings, _ := list.Judge(plan, known, c.version, "/")
				return slices.DeleteFunc(findings, func(f policies.Finding) bool {
					return strings.Contains(f.Text, "does not know")
				})
			}
			commands := map[string]string{} // by queue and policy
			for _, f := range judge(c.list) {
				_, command, ok := strings.Cut(f.Text, "rabbitmqctl ")
				if !ok {
					require.Contains(t, f.Text, `add "ha-promote-on-failure"`)
					continue
				}
				of, _, _ := strings.Cut(f.Name+" "+f.Text, " sets ")
				if before, more := commands[of]; more {
					require.Equal(t, before, command, of)
				}
				commands[of] = command
				words := rig.ShellWords(t, command)
				definition := words[len(words)-1]
				if f.Name == "orders" && c.want != "" {
					require.JSONEq(t, c.want, definition)
				}
				priority, err := strconv.Atoi(words[slices.Index(words, "--priority")+1])
				require.NoError(t, err)
				exempt := policy("exempt", "queues", priority, definition)
				exempt.Pattern = words[len(words)-2]
				for _, left := range judge(user(append(slices.Clone(c.list.User), exempt)...)) {
					require.NotEqual(t, f.Name, left.Name, "%s: %s", command, left)
				}
			}
			require.NotEmpty(t, commands)
		})
	}
}
