package discover_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/operate/discover"
)

// Several pages, on a real broker: none is missing, also right after it was declared.
func pages(p place) {
	ch := testbroker.Channel(p.t, p.url)
	for i := range 1203 {
		_, err := ch.QueueDeclare(fmt.Sprintf("other.%04d", i), true, false, false, true, nil)
		require.NoError(p.t, err)
	}
	plan := p.provision("other.0700", topology.PerQueue{}, time.Second, time.Minute)
	shared := p.provision("zebra", topology.Shared{}, time.Second, time.Minute)
	v := p.find()
	require.Len(p.t, v.Mains, 2)
	requirePlan(p.t, plan, v.Mains[0].Plan)
	requirePlan(p.t, shared, v.Mains[1].Plan)
}

// many answers as the management API of a vhost with very many queues, of which it keeps none.
type many struct {
	t        testing.TB
	queues   int // in all
	services int // of which millpond has, each with a dead-letter queue and six wait queues
	last     topology.Plan
}

// queue returns the queue of a number. Numbers are in the order of names.
func (m *many) queue(n int) map[string]any {
	type object = map[string]any
	counted := object{
		"type": "quorum", "durable": true, "auto_delete": false, "exclusive": false, "messages": 7,
		"messages_ready": 7, "messages_unacknowledged": 0, "messages_dlx": 0, "consumers": 2,
		"arguments": object{"x-queue-type": "quorum"},
	}
	service, part := n/8, n%8
	name := fmt.Sprintf("company.team.service-%06d", service)
	if service >= m.services {
		counted["name"] = fmt.Sprintf("%s.events-%d", name, part)
		return counted
	}
	if m.last.Queue != name {
		var err error
		m.last, err = topology.PlanFor(topology.PerQueue{}, name, backoff.List(sixDelays))
		require.NoError(m.t, err)
	}
	counted["name"] = name
	if part > 0 {
		q := m.last.Queues[part-1]
		counted["name"], counted["arguments"], counted["consumers"] = q.Name, q.Arguments, 0
	}
	return counted
}

var sixDelays = []time.Duration{
	time.Second, 5 * time.Second, 30 * time.Second, 2 * time.Minute, 10 * time.Minute, time.Hour,
}

func (m *many) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	total := m.queues
	item := m.queue
	if !strings.HasPrefix(r.URL.Path, "/api/queues/") {
		total, item = 0, nil
	}
	page, paged := strconv.Atoi(r.URL.Query().Get("page"))
	if paged != nil {
		_, _ = w.Write([]byte("[]"))
		return
	}
	items := []any{}
	for n := (page - 1) * 500; n < min(page*500, total); n++ {
		items = append(items, item(n))
	}
	require.NoError(m.t, json.NewEncoder(w).Encode(map[string]any{
		"items": items, "total_count": total, "filtered_count": total, "page": page,
		"item_count": len(items), "page_size": 500, "page_count": (total + 499) / 500,
	}))
}

// live counts the bytes on the heap without garbage.
func live() uint64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}

// It is not parallel: it measures the memory of the process.
func TestMemoryFor50000Queues(t *testing.T) {
	for _, c := range []struct {
		services int
		most     uint64 // MiB
	}{{200, 40}, {6250, 150}} {
		t.Run(fmt.Sprint(c.services, " services"), func(t *testing.T) {
			m := &many{t: t, queues: 50_000, services: c.services}
			server := httptest.NewServer(m)
			defer server.Close()
			api := "http://guest:guest@" + server.Listener.Addr().String()
			debug.FreeOSMemory()
			before := live()
			end, highest := make(chan struct{}), make(chan uint64)
			go func() {
				peak := before
				for {
					select {
					case <-end:
						highest <- peak - before
						return
					case <-time.After(50 * time.Millisecond):
						peak = max(peak, live())
					}
				}
			}()
			start := time.Now()
			v, err := discover.Find(t.Context(), api, "/")
			took := time.Since(start)
			close(end)
			peak := <-highest
			require.NoError(t, err)
			kept := live() - before
			require.Len(t, v.Mains, c.services)
			require.NoError(t, v.Mains[c.services-1].PlanErr)
			require.Len(t, v.Mains[c.services-1].Waits, 6)
			const mib = 1 << 20
			t.Logf("%d queues, %d main queues: %.1f MiB while they are read, %.1f MiB in the result, %v",
				m.queues, c.services, float64(peak)/mib, float64(kept)/mib, took)
			require.Less(t, peak/mib, c.most)
			require.Less(t, kept/mib, c.most)
			runtime.KeepAlive(v)
		})
	}
}
