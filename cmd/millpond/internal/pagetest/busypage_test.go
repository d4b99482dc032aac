package pagetest

import (
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

// crowd makes a queue orders with n dead letters. Its service counts how often it handles each.
func (h *house) crowd(n int) (handled *sync.Map, count *atomic.Int64) {
	h.t.Helper()
	handled, count = new(sync.Map), new(atomic.Int64)
	h.serve(rig.Config{
		Queue: "orders", Policy: backoff.List{200 * time.Millisecond},
		Configure: func(c *wamqp.Config) {
			c.Queue.Arguments = amqp.Table{ // no look can delete a message
				"x-queue-type": "quorum", "x-delivery-limit": int64(math.MaxInt32),
			}
		},
		Handle: func(msg *message.Message) error {
			if _, twice := handled.LoadOrStore(string(msg.Payload), true); !twice {
				count.Add(1)
			}
			return nil
		},
	})
	ch := testbroker.Channel(h.t, h.url)
	require.NoError(h.t, ch.Confirm(false))
	var last *amqp.DeferredConfirmation
	for i := range n {
		var err error
		last, err = ch.PublishWithDeferredConfirm("", "orders.dlq", true, false, deadLetter("orders",
			fmt.Sprint("order-", i), "dial tcp 10.0.0.1:443: connection refused", time.Now(),
			fmt.Appendf(nil, `{"order":%d}`, i)))
		require.NoError(h.t, err)
	}
	require.True(h.t, last.Wait())
	rig.AwaitDepth(h.t, h.url, "orders.dlq", n)
	return handled, count
}

// slowly begins a replay of all letters of orders and returns to the action's page.
func slowly(b *tab, rate string) {
	b.t.Helper()
	m := mouse{b}
	b.visit("/act?queue=orders&error=refused")
	m.fill("First letters to watch", "0")
	m.fill("Letters a second", rate)
	m.press("Rehearse the replay")
	b.see("Nothing has moved yet")
	m.press("Replay")
	b.see("Stop", "left")
}

const progress = `document.querySelector("progress")?.value`

// Given two open pages, then both see an action that one of them starts, and that the other stops.
func twoPages(t *testing.T, y *yard) {
	h := y.newHouse(t)
	h.crowd(400)
	h.act()
	one, two := h.tab(), h.tab()
	two.visit("/")
	slowly(one, "20")
	two.see("Running: ")
	mouse{two}.press("Running: ")
	one.await(progress + " > 20")
	two.await(progress + " > 20")
	two.shot("running")
	mouse{two}.press("Stop")
	one.see("Stopped by")
	two.see("Rehearse the rest")
	one.visit("/")
	require.NotContains(t, one.text(), "Running: ")
}

// Given five kills of the server in the middle of a replay of 5 000 letters, then no letter is
// lost, and the page says each time how many are left.
func killed(t *testing.T, y *yard) {
	letters := 1_000
	if long {
		letters = 5_000
	}
	h := y.newHouse(t)
	_, count := h.crowd(letters)
	h.act()
	b := h.tab()
	b.tolerate("ERR_")
	slowly(b, "200")
	for kill := 1; kill <= 5; kill++ {
		b.await(progress + " > 30")
		h.server.kill()
		b.see("lost")
		left := testbroker.Depth(t, h.url, "orders.dlq")
		h.openAt(strings.TrimPrefix(b.site, "http://"), "--allow-actions", "--state", h.state)
		b.visit("/")
		b.see("Interrupted: ")
		b.shot(fmt.Sprint("interrupted-", kill))
		m := mouse{b}
		m.press("Interrupted: ")
		b.see("left")
		t.Logf("kill %d: %d letters left", kill, left)
		m.press("Rehearse the rest")
		b.see("Nothing has moved yet")
		if kill == 5 {
			break
		}
		m.press("Replay")
		b.see("Stop")
	}
	mouse{b}.press("Replay")
	b.ended()
	testbroker.WaitFor(t, "all letters to be handled", patience,
		func() bool { return count.Load() == int64(letters) })
	rig.AwaitDepth(t, h.url, "orders.dlq", 0)
	b.visit("/dead?queue=orders")
	mouse{b}.press("Look")
	b.see("No dead letters.")
	b.visit("/")
	require.NotContains(t, b.text(), "Running: ")
}

// openPages is how many pages are open at once.
const openPages = 100

// Given 100 000 letters and 100 open pages, then the page answers in less than a second after the
// look. MILLPOND_LETTERS is another number of letters.
func manyLetters(t *testing.T, y *yard) {
	letters := 10_000
	if long {
		letters = 100_000
	}
	if text := os.Getenv("MILLPOND_LETTERS"); text != "" {
		var err error
		letters, err = strconv.Atoi(text)
		require.NoError(t, err)
	}
	h := y.newHouse(t)
	h.crowd(letters)
	h.open()
	for range openPages {
		h.server.follow()
	}
	b := h.tab()
	b.visit("/dead?queue=orders")
	before, _ := h.server.memory()
	began := time.Now()
	mouse{b}.press("Look at the letters")
	testbroker.WaitFor(t, "the look", time.Duration(letters)*time.Millisecond+patience, func() bool {
		return strings.Contains(b.text(), "of "+thousands(letters)+" letters")
	})
	took := time.Since(began)
	limit := 10 * time.Second // other tests share the processors
	if os.Getenv("MILLPOND_LONG") != "" {
		limit = time.Second // measured: 97 to 337 ms
	}
	for _, path := range []string{
		"/", "/dead?queue=orders", "/dead?queue=orders&error=refused", "/dead?queue=orders&page=50",
		"/dead?queue=orders&id=order-99", "/waiting", "/stranded",
	} {
		began = time.Now()
		b.visit(path)
		t.Logf("%s: %v", path, time.Since(began).Round(time.Millisecond))
		require.Less(t, time.Since(began), limit, path)
	}
	now, peak := h.server.memory()
	t.Logf("%d letters and %d open pages: looked at in %v; memory of the server in MiB: %d before, "+
		"%d after, %d at most", letters, openPages, took.Round(time.Millisecond), before, now, peak)
	require.LessOrEqual(t, peak, 128)
}

// follow holds a stream of events open, as an open page does.
func (s *server) follow() {
	s.t.Helper()
	request, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, s.site+"/events", nil)
	require.NoError(s.t, err)
	answer, err := http.DefaultTransport.RoundTrip(request)
	require.NoError(s.t, err)
	require.Equal(s.t, http.StatusOK, answer.StatusCode)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = io.Copy(io.Discard, answer.Body)
	}()
	s.t.Cleanup(func() {
		_ = answer.Body.Close()
		<-ended
	})
}
