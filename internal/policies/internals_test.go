package policies

import (
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// PolicyKeys are the keys of the table.
var PolicyKeys = slices.Sorted(maps.Keys(policyKeys))

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
	for _, pattern := range []string{
		`(?<!dlq)$`, `^(?!a)b|c`, `^(?![(])x`, `a(?=b)`, `(a)\1`, `a++`, `(`, `^(?!(`,
	} {
		_, err := matchesName(pattern, "orders")
		require.Error(t, err, pattern)
	}
}
