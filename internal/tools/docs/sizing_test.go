package docs_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/topology"
)

// parts counts queues, exchanges and bindings of plans.
type parts struct{ queues, exchanges, bindings int }

// sizing is a row of docs/sizing.md: the parts for n queues with m delays.
type sizing struct {
	strategy topology.Strategy
	row      string
	count    func(n, m int) parts
}

// The formulas of docs/sizing.md give the numbers of the plans.
func TestSizingCountsThePlans(t *testing.T) {
	t.Parallel()
	page := read(t, "docs/sizing.md")
	via := []string{"events", "invoices", "logs"}
	e := len(via)
	rows := []sizing{
		{
			topology.PerQueue{},
			"`PerQueue` | N × (M + 1) | 0 | 0",
			func(n, m int) parts { return parts{n * (m + 1), 0, 0} },
		},
		{
			topology.PerAttempt{},
			"`PerAttempt`, M queues of attempts | N × (M + 1) | N | N × M",
			func(n, m int) parts { return parts{n * (m + 1), n, n * m} },
		},
		{
			topology.Shared{},
			"`Shared` | M + 1 + N | M + 2 | M + 1 + N",
			func(n, m int) parts { return parts{m + 1 + n, m + 2, m + 1 + n} },
		},
		{
			topology.DelayedExchange{},
			"`DelayedExchange` | 1 + N | 3 | 2 + N",
			func(n, _ int) parts { return parts{1 + n, 3, 2 + n} },
		},
		{
			topology.Shared{Via: via},
			"`Shared` with `Via` of E exchanges | M + 1 + N | M + 2 + N × E | M + 1 + N × (1 + 2 × E)",
			func(n, m int) parts { return parts{m + 1 + n, m + 2 + n*e, m + 1 + n*(1+2*e)} },
		},
		{
			topology.PerQueue{Via: via},
			"`PerQueue` with `Via` of E exchanges | N × (M + 1) + 1 | N × (M + E) + 2 | " +
				"N × (M + 1 + 2 × E) + 1",
			func(n, m int) parts { return parts{n*(m+1) + 1, n*(m+e) + 2, n*(m+1+2*e) + 1} },
		},
	}
	for longest, l := range map[time.Duration]int{
		0: 32, 24 * time.Hour: 20, time.Hour: 16, time.Minute: 10,
	} {
		rows = append(rows, sizing{
			topology.Levels{Max: longest},
			"`Levels`, L levels | L + 1 + N | L + 2 | 3 × L - 1 + N",
			func(n, _ int) parts { return parts{l + 1 + n, l + 2, 3*l - 1 + n} },
		})
	}
	for _, r := range rows {
		require.Contains(t, page, "| "+r.row+" |\n")
		for _, delays := range []backoff.List{
			{2 * time.Second, 5 * time.Second, 15 * time.Second},
			{5 * time.Second, 30 * time.Second, 2 * time.Minute, 10 * time.Minute, time.Hour},
		} {
			for _, n := range []int{1, 10} {
				require.Equal(t, r.count(n, len(delays)), planned(t, r.strategy, n, delays),
					"%T, %d queues, %d delays", r.strategy, n, len(delays))
			}
		}
	}
}

// planned counts the parts of the plans of n queues, each once.
func planned(t *testing.T, strategy topology.Strategy, n int, policy backoff.Policy) parts {
	t.Helper()
	queues, exchanges, bindings := map[string]bool{}, map[string]bool{}, map[topology.Binding]bool{}
	for i := range n {
		plan, err := topology.PlanFor(strategy, fmt.Sprintf("orders-%d", i), policy)
		require.NoError(t, err)
		for _, q := range plan.Queues {
			queues[q.Name] = true
		}
		for _, e := range plan.Exchanges {
			exchanges[e.Name] = true
		}
		for _, b := range plan.Bindings {
			bindings[b] = true
		}
	}
	return parts{len(queues), len(exchanges), len(bindings)}
}
