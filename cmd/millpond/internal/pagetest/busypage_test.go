package pagetest

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/cmd/millpond/internal/shop"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/operate"
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

// settle declares n queues more, each with a dead-letter queue.
func (h *house) settle(n int) {
	h.t.Helper()
	operator, err := operate.Open(h.t.Context(), h.URL)
	require.NoError(h.t, err)
	defer func() { require.NoError(h.t, operator.Close()) }()
	channel := testbroker.Channel(h.t, h.URL)
	for i := range n {
		name := fmt.Sprint("service-", i)
		_, err := channel.QueueDeclare(name, true, false, false, false, nil)
		require.NoError(h.t, err)
		plan, err := topology.PlanFor(topology.Shared{Type: topology.Classic}, name,
			backoff.List{time.Minute})
		require.NoError(h.t, err)
		require.NoError(h.t, operator.Declare(h.t.Context(), plan))
	}
}

// number is that of a variable of the environment, if it is set.
func number(t *testing.T, variable string, usual int) int {
	text := os.Getenv(variable)
	if text == "" {
		return usual
	}
	n, err := strconv.Atoi(text)
	require.NoError(t, err)
	return n
}

// Given 100 000 letters and 100 open pages, then the page answers in less than 300 ms after the
// look, as a rule. MILLPOND_LETTERS is another number of letters, MILLPOND_QUEUES of queues.
func manyLetters(t *testing.T, y *yard) {
	letters := 10_000
	if long {
		letters = 100_000
	}
	letters = number(t, "MILLPOND_LETTERS", letters)
	h := y.newHouse(t)
	h.settle(number(t, "MILLPOND_QUEUES", 20))
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
	if long {
		limit = 300 * time.Millisecond
	}
	var answers []time.Duration
	for _, path := range []string{
		"/", "/dead?queue=orders", "/dead?queue=orders&error=refused", "/dead?queue=orders&page=50",
		"/dead?queue=orders&id=order-99", "/waiting", "/stranded", "/queue?queue=orders", "/brakes",
	} {
		began = time.Now()
		b.visit(path)
		answers = append(answers, time.Since(began))
		t.Logf("%s: %v", path, time.Since(began).Round(time.Millisecond))
	}
	slices.Sort(answers)
	now, peak := h.server.memory()
	t.Logf("%d letters and %d open pages: looked at in %v; memory of the server in MiB: %d before, "+
		"%d after, %d at most", letters, openPages, took.Round(time.Millisecond), before, now, peak)
	require.Less(t, answers[len(answers)/2], limit)
	require.LessOrEqual(t, peak, 160)
}

// follow holds a stream of events open, as an open page does.
func (s *server) follow() {
	s.t.Helper()
	request, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet,
		s.site+"/events?part=now&part=queues&part=running", nil)
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
