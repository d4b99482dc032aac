package history_test

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/cmd/millpond/internal/history"
	"github.com/millpond-go/millpond/topology/operate"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func view(queues ...operate.Main) operate.View { return operate.View{Mains: queues} }

func queue(name string, dead, ready, consumers int) operate.Main {
	count := func(n int) operate.Count { return operate.Count{N: n, Source: operate.SourceManagement} }
	in := float64(ready) / 2
	return operate.Main{
		Queue: operate.Queue{Name: name, Ready: count(ready), Consumers: count(consumers), In: &in},
		Waits: []operate.Wait{{Queue: operate.Queue{In: &in}}}, DeadLetters: count(dead),
		Dead: make([]operate.Dead, 1),
	}
}

// Given 3 000 queues whose hour is full, then they need less than 32 MiB, and no more later.
func TestMemory(t *testing.T) { //nolint:paralleltest // measures
	var all []operate.Main
	for n := range 3000 {
		all = append(all, queue(fmt.Sprintf("service-%04d", n), 3, 4, 1))
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	h := new(history.History)
	for n := range history.Points + 9 {
		h.Look(noon.Add(time.Duration(n)*history.Step), view(all...), nil)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	used := int64(after.HeapAlloc) - int64(before.HeapAlloc)
	t.Logf("%d queues: %.1f MiB", len(all), float64(used)/(1<<20))
	require.Less(t, used, int64(32<<20))
	require.Len(t, h.Chart("service-0007", noon.Add((history.Points+8)*history.Step)).Times,
		history.Points)
	runtime.KeepAlive(all)
}

// Given looks at a queue that grows, loses its consumer and vanishes, then the hour is as it was.
func TestHour(t *testing.T) {
	t.Parallel()
	h := new(history.History)
	look := func(at time.Duration, queues ...operate.Main) map[operate.IncidentKind]operate.Incident {
		found := map[operate.IncidentKind]operate.Incident{}
		for _, i := range h.Look(noon.Add(at), view(queues...), nil) {
			found[i.Kind] = i
		}
		return found
	}
	const dead, down = operate.IncidentDead, operate.IncidentUnconsumed
	i := look(0, queue("q", 10, 0, 1))[dead]
	require.True(t, i.Since.IsZero() && i.GrownSince.IsZero(), "nothing is known at the first look")
	i = look(5*time.Second, queue("q", 12, 0, 1))[dead]
	require.Equal(t, noon, i.Since)
	require.True(t, i.Longer, "it was there before the first look")
	require.Equal(t, []any{2, noon, 5}, []any{i.Grown, i.GrownSince, i.Urgency})
	all := look(15*time.Second, queue("q", 12, 4, 0))
	require.Equal(t, noon.Add(15*time.Second), all[down].Since)
	require.False(t, all[down].Longer)
	for at := 30 * time.Second; at <= 20*time.Minute; at += history.Step {
		all = look(at, queue("q", 12, 4, 0))
	}
	require.Equal(t, noon.Add(15*time.Second), all[down].Since)
	require.Equal(t, []any{0, noon.Add(10 * time.Minute), 7},
		[]any{all[dead].Grown, all[dead].GrownSince, all[dead].Urgency}, "it grows no more")
	require.NotContains(t, look(21*time.Minute), down)
	require.Equal(t, noon.Add(23*time.Minute), look(23*time.Minute, queue("q", 11, 4, 0))[down].Since,
		"it is another incident")

	c := h.Chart("q", noon.Add(23*time.Minute))
	require.Equal(t, noon.Unix(), c.Times[0])
	last := len(c.Times) - 1
	require.Nil(t, c.Columns["dead"][last-1], "it was gone")
	for name, want := range map[string]float64{"dead": 11, "ready": 4, "in": 2, "retries": 2} {
		require.InDelta(t, want, *c.Columns[name][last], 0, name)
	}
	require.Nil(t, c.Columns["out"][last])
	require.Equal(t, []int{0, 0, 0, 12, 12, 11}, h.Dead("q", 6, noon.Add(23*time.Minute)))
}

// Given two queues that share their wait queue and their dead letters, then these count once.
func TestAllQueuesTogether(t *testing.T) {
	t.Parallel()
	a, b := queue("a", 3, 4, 1), queue("b", 3, 4, 1)
	a.Dead[0].Total, a.Dead[0].Name, b.Dead[0].Name = a.DeadLetters, "dlq", "dlq"
	a.Waits[0].Name, b.Waits[0].Name = "wait", "wait"
	h := new(history.History)
	h.Look(noon, view(a, b), nil)
	c := h.Chart(history.All, noon)
	for name, want := range map[string]float64{
		"dead": 3, "ready": 8, "in": 4, "retries": 2,
	} {
		require.InDelta(t, want, *c.Columns[name][0], 0, name)
	}
	require.Nil(t, c.Columns["out"][0], "not known of any queue")
}
