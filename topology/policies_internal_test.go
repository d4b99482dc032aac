package topology

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/management"
)

func TestPatternsOfPolicies(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		pattern, name string
		want          bool
	}{
		{".*", "orders", true},
		{"^orders$", "orders", true},
		{"^orders$", "orders.dlq", false},
		{"dlq", "orders.dlq", true},
		{`^(?!amq\.).*`, "orders", true},
		{`^(?!amq\.).*`, "amq.topic", false},
		{`^(?!(amq|sys)\.)(?=orders)`, "orders.dlq", true},
		{`^(?!.*\.dlq$).*$`, "orders.dlq", false},
		{`^(?!.*\.dlq$).*$`, "orders", true},
		{`^(?=orders).*dlq`, "orders.dlq", true},
		{`^(?=orders).*dlq`, "parcels.dlq", false},
	} {
		got, err := matchesName(c.pattern, c.name)
		require.NoError(t, err, c.pattern)
		require.Equal(t, c.want, got, "%s %s", c.pattern, c.name)
	}
	for _, pattern := range []string{`(?<!dlq)$`, `^(?!a)b|c`, `^(?![(])x`, `a(?=b)`, `(a)\1`, `a++`, `(`, `^(?!(`} {
		_, err := matchesName(pattern, "orders")
		require.Error(t, err, pattern)
	}
}

// A policy that the broker does not apply, because of a key or of what it is for, hides
// none of a lower priority.
func TestPolicyThatDoesNotApplyHidesNoOther(t *testing.T) {
	t.Parallel()
	of := func(kind QueueType, list ...management.Policy) []string {
		var sources []string
		applied := (&policies{user: list}).of("orders", kind)
		for _, r := range applied.rules {
			sources = append(sources, r.policy.Name+" "+r.key)
		}
		return sources
	}
	low := policy("low", "queues", 0, `{"message-ttl":1}`)
	lazy := policy("lazy", "queues", 5, `{"queue-mode":"lazy"}`)
	limit := policy("limit", "queues", 5, `{"delivery-limit":5}`)
	leader := policy("leader", "all", 5, `{"queue-leader-locator":"balanced"}`)
	classic := policy("classic", "classic_queues", 5, `{"expires":1}`)
	exchanges := policy("exchanges", "exchanges", 9, `{"alternate-exchange":"x"}`)
	tie := policy("tie", "queues", 0, `{"expires":1}`)
	for name, c := range map[string]struct{ got, want []string }{
		"quorum, lazy":        {of(Quorum, low, lazy), []string{"low message-ttl"}},
		"classic, lazy":       {of(Classic, low, lazy), []string{"lazy queue-mode"}},
		"unknown, lazy":       {of("", low, lazy), []string{"lazy queue-mode", "low message-ttl"}},
		"quorum, limit":       {of(Quorum, low, limit), []string{"limit delivery-limit"}},
		"classic, limit":      {of(Classic, low, limit), []string{"low message-ttl"}},
		"classic, by version": {of(Classic, low, leader), []string{"leader queue-leader-locator", "low message-ttl"}},
		"quorum, leader":      {of(Quorum, low, leader), []string{"leader queue-leader-locator"}},
		"classic_queues":      {of(Classic, low, classic), []string{"classic expires"}},
		"not classic_queues":  {of(Quorum, low, classic), []string{"low message-ttl"}},
		"perhaps":             {of("", low, classic), []string{"classic expires", "low message-ttl"}},
		"exchanges":           {of(Quorum, exchanges, low), []string{"low message-ttl"}},
		"a tie":               {of(Quorum, low, tie), []string{"low message-ttl", "tie expires"}},
	} {
		require.Equal(t, c.want, c.got, name)
	}
	unreadable := policy("strange", "queues", 9, `{"expires":1}`)
	unreadable.Pattern = "(?<!x)$"
	applied := (&policies{user: []management.Policy{unreadable, low}}).of("orders", Quorum)
	require.Len(t, applied.unreadable, 1)
	require.Equal(t, `policy "strange"`, applied.unreadable[0].source)
	require.True(t, slices.ContainsFunc(applied.rules, func(r policyRule) bool { return r.key == "message-ttl" }))
}
