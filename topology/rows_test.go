package topology_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"

	"github.com/millpond-go/millpond/internal/testing/rig"

	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/topology"
)

var bothKinds = []topology.QueueType{topology.Quorum, topology.Classic}

// ways are the strategies that the scenario rows are run on, in the order of the
// table.
var ways = []struct {
	name  string
	kinds []topology.QueueType
	plain func(t testing.TB, kind topology.QueueType) topology.Strategy
	// through returns messages through an exchange; nil where that is the plain one.
	through func(t testing.TB, kind topology.QueueType, exchange string) topology.Strategy
}{
	{name: "PerQueue", kinds: bothKinds, plain: func(_ testing.TB, kind topology.QueueType) topology.Strategy {
		return topology.PerQueue{Type: kind}
	}},
	{name: "PerAttempt", kinds: bothKinds, plain: func(_ testing.TB, kind topology.QueueType) topology.Strategy {
		return topology.PerAttempt{Type: kind}
	}},
	{name: "Shared", kinds: bothKinds, plain: func(t testing.TB, kind topology.QueueType) topology.Strategy { return rig.Shared(t, kind) }},
	{name: "Levels", kinds: bothKinds, plain: func(t testing.TB, kind topology.QueueType) topology.Strategy { return rig.Levels(t, kind) }},
	{name: "PerQueue Via", kinds: bothKinds[:1], through: func(t testing.TB, kind topology.QueueType, exchange string) topology.Strategy {
		return topology.PerQueue{Type: kind, Via: exchange, Prefix: testbroker.Queue(t)}
	}},
	{name: "PerAttempt Via", kinds: bothKinds[:1], through: func(t testing.TB, kind topology.QueueType, exchange string) topology.Strategy {
		return topology.PerAttempt{Type: kind, Via: exchange, Prefix: testbroker.Queue(t)}
	}},
	{name: "Shared Via", kinds: bothKinds, through: func(t testing.TB, kind topology.QueueType, exchange string) topology.Strategy {
		s := rig.Shared(t, kind)
		s.Via = exchange
		return s
	}},
}

// The five scenario rows on every strategy that can express them, with a table.
func TestRows(t *testing.T) {
	t.Parallel()
	rows := []struct {
		name string
		run  func(*testing.T, topology.Strategy)
		// cannot says why a strategy cannot express the row; "" if it can.
		cannot func(way string) string
	}{
		{"outbox", outboxRow, func(way string) string {
			if strings.Contains(way, "Via") {
				return "siblings on the exchange get each retry"
			}
			return ""
		}},
		{"goqueue", goqueueRow, func(string) string { return "" }},
		{"shared", sharedRow, func(way string) string {
			if strings.HasPrefix(way, "Per") {
				return "no wait queue is shared"
			}
			return ""
		}},
		{"adr", adrRow, func(string) string { return "" }},
		{"block", blockRow, func(way string) string {
			switch {
			case way == "Levels":
				return "the routing key carries the delay"
			case !strings.Contains(way, "Via"):
				return "returns to the one queue that failed"
			}
			return ""
		}},
	}
	var mu sync.Mutex
	results := map[string]string{}
	t.Cleanup(func() {
		var table strings.Builder
		w := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
		fmt.Fprint(w, "strategy")
		for _, row := range rows {
			fmt.Fprint(w, "\t"+row.name)
		}
		for _, way := range ways {
			for _, kind := range way.kinds {
				fmt.Fprintf(w, "\n%s %s", way.name, kind)
				for _, row := range rows {
					fmt.Fprint(w, "\t"+results[row.name+way.name+string(kind)])
				}
			}
		}
		_ = w.Flush()
		t.Logf("the scenario rows on every strategy:\n%s", table.String())
	})
	for _, row := range rows {
		for _, way := range ways {
			for _, kind := range way.kinds {
				key := row.name + way.name + string(kind)
				if reason := row.cannot(way.name); reason != "" {
					results[key] = "not expressible: " + reason
					continue
				}
				results[key] = "not run"
				t.Run(row.name+"/"+way.name+" "+string(kind), func(t *testing.T) {
					t.Parallel()
					t.Cleanup(func() {
						mu.Lock()
						defer mu.Unlock()
						results[key] = "pass"
						if t.Failed() {
							results[key] = "FAIL"
						}
					})
					strategy := topology.Strategy(nil)
					if way.plain != nil {
						strategy = way.plain(t, kind)
					} else {
						strategy = way.through(t, kind, rig.TopicExchange(t))
					}
					row.run(t, strategy)
				})
			}
		}
	}
}
