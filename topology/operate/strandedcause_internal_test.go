package operate

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/management"
	"github.com/millpond-go/millpond/topology"
)

// A message at a level of topology.Levels goes on by one binding alone: another one of the exchange
// is no way.
func TestOneBindingOfALevelLeadsOn(t *testing.T) {
	t.Parallel()
	plan, err := topology.Levels{}.Plan("orders", nil)
	require.NoError(t, err)
	levels := 0
	for _, b := range plan.Bindings {
		if !level.MatchString(b.Exchange) {
			continue
		}
		levels++
		missing, leadsOn := wayFrom(b.Exchange,
			strings.NewReplacer("*", "0", "#", "orders").Replace(b.RoutingKey), "orders")
		require.Contains(t, missing, b.RoutingKey)
		for _, other := range plan.Bindings {
			var bound management.Bound
			bound.RoutingKey = other.RoutingKey
			if other.Exchange == b.Exchange {
				require.Equal(t, other == b, leadsOn(bound), "%v of %v", other, b)
			}
		}
	}
	require.Positive(t, levels)
}
