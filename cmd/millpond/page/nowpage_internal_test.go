package page

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/topology/operate"
)

// A broker that has just begun to count is no reason for an alarm: a queue with an unknown number
// of messages is named in a note.
func TestUnknownCountsAreNoAlarm(t *testing.T) {
	t.Parallel()
	counted := func(name string, n int) operate.Orphan {
		w := operate.Orphan{For: "gone", Why: "its queue is gone"}
		if w.Name, w.Total = name, (operate.Count{N: n}); n >= 0 {
			w.Total.Source = operate.SourceManagement
		}
		return w
	}
	s := &sight{Vhost: operate.View{
		Stranded: []operate.Queue{{Name: "new.stranded", Total: operate.Count{N: -1}}},
		Orphans:  []operate.Orphan{counted("a", -1), counted("b", 0), counted("c", 3)},
	}}
	o := new(Handler).overview(s)
	require.Equal(t, []lost{
		{Queue: "c", Why: "its queue is gone", Count: counted("c", 3).Total},
	}, o.Lost)
	require.Equal(t, 2, o.LostUnknown)
	require.Equal(t, 1, o.LostEmpty)
}
