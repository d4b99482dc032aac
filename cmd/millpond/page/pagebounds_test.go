package page_test

import (
	"fmt"
	"net/url"
	"os"
	"runtime"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/cmd/millpond/page"
	"github.com/millpond-go/millpond/internal/testing/rig"
)

const (
	manyLetters = 100_000
	manyPages   = 100
	mostMemory  = 128 << 20
	mostWait    = time.Second // measured: 38 ms
)

// Given 100 000 dead letters and 100 open pages, then the page answers within a second after the
// look, and holds less than 128 MiB.
func TestManyLettersAndPagesAreBounded(t *testing.T) {
	if os.Getenv("MILLPOND_LONG") == "" {
		t.Skip("needs MILLPOND_LONG, because it makes 100 000 letters")
	}
	h := newHouse(t)
	h.fillDead("orders.dlq", manyLetters)
	v := h.open(func(c *page.Config) { c.Interval = 5 * time.Second })
	for range manyPages {
		s := v.stream()
		t.Cleanup(s.close)
		s.await("event: now")
	}
	rig.AwaitDepth(t, h.url, "orders.dlq", manyLetters)
	v.get("/dead?queue=orders")
	before := heap()
	began := time.Now()
	var peak uint64
	v.post("/dead/look?queue=orders", url.Values{})
	rig.WaitFor(t, "the look has ended", func() bool {
		peak = max(peak, heap())
		return v.get("/dead?queue=orders").has("of 100 000 letters")
	})
	look := time.Since(began)
	after := heap()
	slowest := time.Duration(0)
	for _, query := range []string{
		"", "&page=1999", "&reason=exhausted", "&error=/10.0.0.[12]:/", "&since=1h", "&id=id-77777",
	} {
		began := time.Now()
		got := v.get("/dead?queue=orders" + query)
		slowest = max(slowest, time.Since(began))
		require.Equal(t, 200, got.StatusCode)
		require.True(t, got.has("letter"), query)
	}
	t.Logf("%d letters and %d open pages: look %v, slowest answer after it %v, heap %d MiB before, "+
		"%d MiB at most during the look, %d MiB after it", manyLetters, manyPages,
		look.Round(time.Millisecond), slowest.Round(time.Millisecond), before>>20, peak>>20, after>>20)
	require.Less(t, slowest, mostWait)
	require.Less(t, max(peak, after), uint64(mostMemory))
}

// heap is the memory in use, of the page, of the house's services and of this test together.
func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc + m.StackInuse
}

// fillDead publishes dead letters with 300 causes.
func (h *house) fillDead(queue string, n int) {
	h.t.Helper()
	conn, err := amqp.Dial(h.url)
	require.NoError(h.t, err)
	defer conn.Close()
	ch, err := conn.Channel()
	require.NoError(h.t, err)
	require.NoError(h.t, ch.Confirm(false))
	confirms := ch.NotifyPublish(make(chan amqp.Confirmation, n))
	at := time.Now().Add(-2 * time.Hour)
	for i := range n {
		msg := letter("orders", fmt.Sprintf("id-%d", i),
			fmt.Sprintf("%s: dial tcp 10.0.0.%d:443: connection refused", cause(i%300), i%250),
			at.Add(time.Duration(i)*70*time.Millisecond), []byte(fmt.Sprintf(`{"order":%d}`, i)), nil)
		require.NoError(h.t, ch.PublishWithContext(h.t.Context(), "", queue, false, false, msg))
	}
	for range n {
		c := <-confirms
		require.True(h.t, c.Ack)
	}
}

// cause is a word without digits.
func cause(i int) string {
	return "call " + string([]rune{rune('a' + i/26%26), rune('a' + i%26), 'x', 'y'})
}
