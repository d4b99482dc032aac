package topology

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/management"
)

var update = flag.Bool("update", false, "write the golden files anew")

// policy is one that the management API shows.
func policy(name, applyTo string, priority int, definition string) management.Policy {
	var values management.Object
	if err := json.Unmarshal([]byte(definition), &values); err != nil {
		panic(err)
	}
	return management.Policy{Name: name, Pattern: ".*", ApplyTo: applyTo, Priority: priority, Definition: values}
}

// sampleValues are harmful values of keys, where there are any.
var sampleValues = map[string]string{
	"message-ttl": "2000", "expires": "60000", "max-length": "10", "max-length-bytes": "1000000", "overflow": `"drop-head"`, "delivery-limit": "5",
	"dead-letter-exchange": `"events"`, "dead-letter-routing-key": `"sink"`, "dead-letter-strategy": `"at-most-once"`, "alternate-exchange": `"events"`,
	"consumer-timeout": "60000", "consumer-disconnected-timeout": "600000",
	"delayed-retry-type": `"all","delayed-retry-min":1000,"delayed-retry-max":60000`,
	"ha-mode":            `"all"`,
}

// The texts of all keys, on every part of a plan, by the versions that matter. The golden
// file is what a person reads.
func TestEveryPolicyIsNamedByItsEffect(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	versions := []brokerVersion{{3, 10}, {4, 3}}
	strategies := []Strategy{PerQueue{}, PerQueue{Type: Classic}, Shared{}}
	definitions := []string{`{"max-length":10,"overflow":"reject-publish"}`, `{"message-ttl":2000,"dead-letter-exchange":"events"}`, `{"later-key":"x\u001b[31m"}`}
	for _, key := range slices.Sorted(maps.Keys(policyKeys)) {
		value, harmful := sampleValues[key]
		if !harmful {
			value = `"any"`
		}
		definitions = append(definitions, fmt.Sprintf(`{%q:%s}`, key, value))
	}
	said := map[string]bool{}
	for _, strategy := range strategies {
		plan, err := strategy.Plan("orders", []time.Duration{5 * time.Second})
		require.NoError(t, err)
		main := amqp.Table{"x-queue-type": string(Quorum), "x-delivery-limit": int64(deliveryLimit)}
		if plan.Queues[0].Arguments["x-queue-type"] == string(Classic) {
			main = amqp.Table{"x-queue-type": string(Classic)}
		}
		for i, e := range plan.Exchanges { // those with an argument are not named
			plan.Exchanges[i].Arguments = amqp.Table{"alternate-exchange": e.Name}
		}
		plan.Exchanges = append(plan.Exchanges, Exchange{Name: "orders.open", Kind: "fanout"})
		kind, _ := main["x-queue-type"].(string)
		known := map[string]knownQueue{"orders": {QueueType(kind), main}}
		for _, version := range versions {
			for _, definition := range definitions {
				for _, ours := range []*policies{
					{user: []management.Policy{policy("admin's", "all", 3, definition)}},
					{operator: []management.Policy{policy("ops", "queues", 0, definition)}},
				} {
					findings, unreadable := ours.judge(plan.subjects(known, version), "shop")
					require.Empty(t, unreadable)
					for _, f := range findings {
						text := f.String()
						if ours.operator != nil && !strings.HasSuffix(definition, `:10}`) {
							continue // the text is that of a policy but for its end
						}
						if !said[text] {
							said[text] = true
							fmt.Fprintln(&out, text)
						}
					}
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

// Of each plan, the parts that a key of a policy harms, by its role: "!" is critical.
func TestPolicyKeysThatHarm(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		strategy   Strategy
		definition string
		version    brokerVersion
		want       string
	}{
		"ttl":                         {PerQueue{}, `{"message-ttl":2000}`, brokerVersion{4, 0}, "main! wait! dead!"},
		"ttl longer than the wait":    {PerQueue{}, `{"message-ttl":7200000}`, brokerVersion{4, 0}, "main! dead!"},
		"ttl, stranded":               {Shared{}, `{"message-ttl":2000}`, brokerVersion{4, 0}, "main! wait! stranded! dead!"},
		"expires":                     {PerQueue{}, `{"expires":60000}`, brokerVersion{4, 0}, "main! wait! dead!"},
		"length":                      {PerQueue{}, `{"max-length":10}`, brokerVersion{4, 0}, "main! wait dead!"},
		"length out of reach":         {PerQueue{}, `{"max-length":2147483647}`, brokerVersion{4, 0}, ""},
		"length, classic":             {PerQueue{Type: Classic}, `{"max-length":10}`, brokerVersion{4, 0}, "main! wait! dead!"},
		"length, refusing":            {PerQueue{}, `{"max-length":10,"overflow":"reject-publish"}`, brokerVersion{4, 0}, "main! wait dead"},
		"length, refusing, stranded":  {Shared{}, `{"max-length":10,"overflow":"reject-publish"}`, brokerVersion{4, 0}, "main! wait stranded! dead"},
		"overflow":                    {PerQueue{}, `{"overflow":"drop-head"}`, brokerVersion{4, 0}, "wait!"},
		"overflow to dead letters":    {PerQueue{}, `{"overflow":"reject-publish-dlx"}`, brokerVersion{4, 0}, "wait!"},
		"overflow as we have it":      {PerQueue{}, `{"overflow":"reject-publish"}`, brokerVersion{4, 0}, ""},
		"overflow, classic":           {PerQueue{Type: Classic}, `{"overflow":"drop-head"}`, brokerVersion{4, 0}, ""},
		"delivery limit":              {PerQueue{}, `{"delivery-limit":5}`, brokerVersion{3, 10}, "main! wait dead!"},
		"delivery limit, 4.3":         {PerQueue{}, `{"delivery-limit":5}`, brokerVersion{4, 3}, "main! wait dead!"},
		"no delivery limit":           {PerQueue{}, `{"delivery-limit":-1}`, brokerVersion{4, 0}, ""},
		"routing key, own key":        {PerQueue{}, `{"dead-letter-exchange":"x","dead-letter-routing-key":"sink"}`, brokerVersion{4, 0}, ""},
		"alternate exchange, queues":  {PerQueue{}, `{"alternate-exchange":"x"}`, brokerVersion{4, 0}, ""},
		"consumer timeout":            {PerQueue{}, `{"consumer-timeout":60000}`, brokerVersion{4, 0}, "main"},
		"consumer timeout, long":      {PerQueue{}, `{"consumer-timeout":3600000}`, brokerVersion{4, 0}, ""},
		"delayed retry":               {PerQueue{}, `{"delayed-retry-type":"all","delayed-retry-min":500}`, brokerVersion{4, 3}, "main wait dead"},
		"delayed retry, failures":     {PerQueue{}, `{"delayed-retry-type":"failed","delayed-retry-min":500}`, brokerVersion{4, 3}, "main"},
		"delayed retry, off":          {PerQueue{}, `{"delayed-retry-type":"disabled"}`, brokerVersion{4, 3}, ""},
		"mirrors":                     {PerQueue{Type: Classic}, `{"ha-mode":"all"}`, brokerVersion{3, 10}, "main wait dead"},
		"mirrors that are not needed": {PerQueue{}, `{"ha-mode":"all"}`, brokerVersion{3, 10}, "main"},
		"memory":                      {PerQueue{}, `{"max-in-memory-length":0,"target-group-size":5,"queue-leader-locator":"balanced"}`, brokerVersion{4, 0}, ""},
		"a key of later":              {PerQueue{}, `{"later":1}`, brokerVersion{4, 3}, "main"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			plan, err := c.strategy.Plan("orders", []time.Duration{time.Hour})
			require.NoError(t, err)
			plan.Queues = slices.DeleteFunc(plan.Queues, func(q Queue) bool { return q.Delay == minSnooze })
			roles := map[string]Role{}
			for _, m := range plan.members() {
				roles[m.Name] = m.role
			}
			list := &policies{user: []management.Policy{policy("p", "queues", 0, c.definition)}}
			findings, _ := list.judge(plan.subjects(nil, c.version), "/")
			var got []string
			for _, f := range findings {
				role := string(roles[f.Name])
				if f.Severity == Critical {
					role += "!"
				}
				got = append(got, role)
			}
			require.Equal(t, c.want, strings.Join(slices.Compact(got), " "), "%v", findings)
		})
	}
}

// A setting of the queue that is as tight or goes before the policy is not the policy's.
func TestArgumentsThatGoBeforeAPolicy(t *testing.T) {
	t.Parallel()
	own := DeadLetters{Arguments: amqp.Table{"x-max-length": int64(5), "x-overflow": "reject-publish", "x-message-ttl": int64(1000)}}
	plan, err := PerQueue{Dead: own}.Plan("orders", []time.Duration{time.Second})
	require.NoError(t, err)
	of := func(definition string) []string {
		list := &policies{user: []management.Policy{policy("p", "queues", 0, definition)}}
		findings, _ := list.judge(plan.subjects(nil, brokerVersion{4, 0}), "/")
		var texts []string
		for _, f := range findings {
			if f.Name == plan.Dead.RoutingKey {
				texts = append(texts, string(f.Severity)+" "+f.Text)
			}
		}
		return texts
	}
	require.Empty(t, of(`{"message-ttl":2000,"max-length":6}`))
	require.Len(t, of(`{"message-ttl":999}`), 1)
	require.Len(t, of(`{"max-length":4}`), 1)
	require.Contains(t, of(`{"max-length":4}`)[0], "warning", "it refuses")
	require.Contains(t, of(`{"overflow":"drop-head"}`)[0], "critical", "the policy goes before it on a quorum queue")
}

// Wait queues that leave the routing key to the message are named, others are not.
func TestRoutingKeyOfAPolicyIsCriticalWhereItApplies(t *testing.T) {
	t.Parallel()
	wait := WaitQueue("orders.wait", time.Second, Route{Exchange: "back"})
	plan := Plan{Queue: "orders", Queues: []Queue{wait}, Dead: Route{Exchange: "graves"}}
	list := &policies{user: []management.Policy{policy("p", "all", 0, `{"dead-letter-routing-key":"sink","alternate-exchange":"other"}`)}}
	findings, _ := list.judge(plan.subjects(nil, brokerVersion{4, 0}), "/")
	require.Len(t, findings, 2)
	require.Equal(t, Critical, findings[0].Severity)
	require.Contains(t, findings[0].Text, `leave with the routing key "sink"`)
	require.Equal(t, Warning, findings[1].Severity, "the dead-letter target is the user's")
	plan.Queues[0] = WaitQueue("orders.wait", time.Second, Route{Exchange: "back", RoutingKey: "orders"})
	findings, _ = list.judge(plan.subjects(nil, brokerVersion{4, 0}), "/")
	require.Len(t, findings, 1)
}

// An exchange without an alternate one of its own is named, and so is one that an
// argument leads to.
func TestAlternateExchangeOfAPolicyIsCritical(t *testing.T) {
	t.Parallel()
	plan := Plan{Queue: "orders", Exchanges: []Exchange{
		{Name: "open", Kind: "fanout"},
		{Name: "closed", Kind: "fanout", Arguments: amqp.Table{"alternate-exchange": "closed"}},
		{Name: "leads", Kind: "fanout", Arguments: amqp.Table{"alternate-exchange": "elsewhere"}},
	}}
	list := &policies{user: []management.Policy{policy("p", "all", 0, `{"alternate-exchange":"other"}`)}}
	findings, _ := list.judge(plan.subjects(nil, brokerVersion{4, 0}), "/")
	var names []string
	for _, f := range findings {
		require.Equal(t, Critical, f.Severity)
		require.Contains(t, f.Text, "--apply-to exchanges")
		names = append(names, f.Name)
	}
	require.Equal(t, []string{"open", "elsewhere"}, names)
	list.user[0].ApplyTo = "queues"
	findings, _ = list.judge(plan.subjects(nil, brokerVersion{4, 0}), "/")
	require.Empty(t, findings)
}
