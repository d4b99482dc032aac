package pagetest

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/cmd/millpond/internal/shop"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

// crowd makes a queue orders with n dead letters.
func (h *house) crowd(n int) {
	h.t.Helper()
	h.Serve(rig.Config{Queue: "orders"})
	var letters []amqp.Publishing
	for i := range n {
		letters = append(letters, shop.Letter("orders", fmt.Sprint("order-", i),
			"dial tcp 10.0.0.1:443: connection refused", time.Now(),
			fmt.Appendf(nil, `{"order":%d}`, i), nil))
	}
	h.Post("orders.dlq", letters...)
	rig.AwaitDepth(h.t, h.URL, "orders.dlq", n)
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
