package operate_test

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/operate"
)

const waitQueue = `{"name":"q.wait.1s","type":"quorum","arguments":{"x-queue-type":"quorum",
	"x-delivery-limit":2147483647,"x-message-ttl":1000,"x-dead-letter-strategy":"at-least-once",
	"x-overflow":"reject-publish","x-dead-letter-exchange":"","x-dead-letter-routing-key":"q"}}`

// A page that has fewer queues than it says is uncertain. Policies that cannot be seen are told.
// Without exchanges nothing is known: the error names the address, and never a vhost without
// millpond is shown.
func TestWhatCannotBeSeenIsTold(t *testing.T) {
	t.Parallel()
	var noExchanges atomic.Bool
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case noExchanges.Load() && strings.HasPrefix(r.URL.Path, "/api/exchanges/"):
			w.WriteHeader(http.StatusInternalServerError)
		case strings.HasPrefix(r.URL.Path, "/api/queues/") && r.URL.Query().Get("page") == "1":
			_, _ = w.Write([]byte(`{"total_count":3,"items":[` + waitQueue +
				`,{"name":"q","type":"quorum"}]}`))
		case r.URL.Query().Has("page"):
			_, _ = w.Write([]byte(`{"total_count":0,"items":[]}`))
		default:
			w.WriteHeader(http.StatusForbidden)
		}
	}))
	t.Cleanup(server.Close)
	v, err := viewOf(t, "http://me:secret@"+server.Listener.Addr().String(), nil)
	require.NoError(t, err)
	require.Len(t, v.Mains, 1)
	told(t, v, "", `queues of vhost "shop" were declared or deleted`)
	told(t, v, "", `the policies of vhost "shop" could not be seen`, "403")
	require.False(t, v.Mains[0].Ready.Known())
	require.Equal(t, -1, v.Mains[0].Ready.N)

	noExchanges.Store(true)
	address := server.Listener.Addr().String()
	v, err = viewOf(t, "http://me:secret@"+address, nil)
	rig.RequireTexts(t, err, "exchanges", "500", `look at vhost "shop"`, address)
	require.NotContains(t, err.Error(), "secret")
	require.Empty(t, v)
}

func viewOf(t *testing.T, api string, config *tls.Config) (operate.View, error) {
	return operate.At("shop", api, config).View(t.Context(), operate.ViewOptions{})
}

func TestHTTPSTrustsOnlyWhatItIsTold(t *testing.T) {
	t.Parallel()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"total_count":0,"items":[]}`))
	}))
	t.Cleanup(server.Close)
	server.Config.ErrorLog = nil
	url := "https://me:secret@" + server.Listener.Addr().String()
	_, err := viewOf(t, url, nil)
	require.ErrorContains(t, err, "certificate")
	config := server.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
	v, err := viewOf(t, url, config)
	require.NoError(t, err)
	require.True(t, v.Empty())
}

func TestManagementURL(t *testing.T) {
	t.Parallel()
	for amqpURL, want := range map[string]string{
		"amqp://me:p%40ss@localhost/shop":   "http://me:p%40ss@localhost:15672",
		"amqp://127.1.2.3:1234":             "http://guest:guest@127.1.2.3:15672",
		"amqp://me:secret@[::1]:5672/":      "http://me:secret@[::1]:15672",
		"amqps://me:secret@rabbit.shop/":    "https://me:secret@rabbit.shop:15671",
		"amqps://me:secret@127.0.0.1:5671/": "https://me:secret@127.0.0.1:15671",
		"AMQPS://me:secret@[2001:db8::1]":   "https://me:secret@[2001:db8::1]:15671",
	} {
		got, err := operate.ManagementURL(amqpURL, false)
		require.NoError(t, err, amqpURL)
		require.Equal(t, want, got)
	}
	for _, amqpURL := range []string{
		"amqp://me:secret@rabbit.shop/", "amqp://me:secret@10.0.0.1", "amqp://me:secret@localhost.shop/",
		"amqp://me:secret@[::2]/", "amqp://me:secret@0.0.0.0/",
	} {
		_, err := operate.ManagementURL(amqpURL, false)
		rig.RequireTexts(t, err, "in the clear", "https://user:password@", ":15671")
		require.NotContains(t, err.Error(), "secret")
	}
	got, err := operate.ManagementURL("amqp://me:secret@rabbit.shop/", true)
	require.NoError(t, err)
	require.Equal(t, "http://me:secret@rabbit.shop:15672", got)
	for _, bad := range []string{"", "http://host", "amqp://me:sec/ret@host", "amqp://host:99999999"} {
		_, err := operate.ManagementURL(bad, true)
		require.Error(t, err)
		require.NotContains(t, err.Error(), "ret@")
	}
}

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
	peak     uint64 // of the heap, while the reader waits for an answer
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
	m.peak = max(m.peak, live())
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
			m.peak = before
			start := time.Now()
			v, err := operate.At("/", api, nil).View(t.Context(), operate.ViewOptions{})
			took := time.Since(start)
			peak := m.peak - before
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
