package shop

import (
	"context"
	"fmt"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/budget"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/middleware/outage"
	"github.com/millpond-go/millpond/topology"
)

// World is a virtual host with twelve services and all kinds of trouble. It counts its messages.
type World struct {
	*House
	Queues   []string                  // of the services
	Sharing  map[string]string         // queues with the same value share their wait queues
	Dead     map[string]map[string]int // letters by queue and cause
	Waiting  map[string]int            // by the queue that they wait for, also if it is gone
	Behind   int                       // messages of the queue keyed that wait behind a dead letter
	Stranded map[string]int            // by the queue that they waited for
}

const (
	// Causes is the number of causes, without the one of the blocked key.
	Causes = 16
	// Blocked is the cause of the letter that blocks the key.
	Blocked = "no such customer"
	// Brake is stopped, with the queue Braked; the service of Down is, too.
	Brake, Braked, Down = "payments", "prices", "stock"
	// Orphan is a wait queue with messages whose queue is gone.
	Orphan = "vanished.wait.1h"
)

// Cause returns the text that the tool shows of a cause.
func Cause(n int) string { return fmt.Sprintf("call of service %c failed: status #", 'a'+n) }

// reasons of dead letters, in turn.
var reasons = []header.Reason{
	header.ReasonExhausted, header.ReasonPermanent, header.ReasonMaxAge, header.ReasonDeadline,
	header.ReasonOverBudget, header.ReasonCrashLoop, header.ReasonOversized,
	header.ReasonMisdirected, header.ReasonCancelled, header.ReasonUndecodable,
}

// NewWorld builds a world in a house.
func NewWorld(h *House) *World {
	h.T.Helper()
	w := &World{
		House: h, Dead: map[string]map[string]int{}, Waiting: map[string]int{},
		Sharing: map[string]string{
			"returns": "far", Down: "far", "gone": "far", "mail": "millpond", "news": "millpond",
		},
		Stranded: map[string]int{"old": 3},
	}
	h.Furnish() // orders, invoices and mail
	far := topology.Shared{Prefix: "far"}
	brake, err := budget.New(budget.Config{
		Share: 0.5, Delay: time.Second, Brake: outage.Brake{Name: Brake},
	})
	require.NoError(h.T, err)
	long := "a name with spaces, of many characters " + strings.Repeat("x", 100)
	for _, c := range []rig.Config{
		{Queue: "orders"},
		{Queue: "invoices"},
		{Queue: "mail"},
		{Queue: "news", Strategy: topology.Levels{Max: 2 * time.Hour}},
		{Queue: "parcels", Strategy: topology.PerAttempt{}},
		{Queue: "returns", Strategy: far},
		{Queue: Down, Strategy: far},
		{
			Queue: Braked, Strategy: topology.PerQueue{Type: topology.Classic},
			RetryOptions: []middleware.Option{middleware.WithBudget(brake)},
		},
		{Queue: "größe & preis/%2F"},
		{Queue: `<b>"quoted"</b> 'q'`},
		{Queue: long, Strategy: topology.PerAttempt{}},
	} {
		w.Queues = append(w.Queues, c.Queue)
		if h.Services[c.Queue] == nil {
			h.Serve(c)
		}
	}
	for i, queue := range w.Queues {
		w.dies(i, queue)
		w.waits(queue, (i+1)%4)
	}
	w.keyed()
	w.vanishes(rig.Config{Queue: "vanished"}, 2)
	w.vanishes(rig.Config{Queue: "gone", Strategy: far}, 2)
	h.Strand(rig.Config{Queue: "old", Strategy: topology.Levels{Max: 2 * time.Hour}},
		"millpond.stranded", w.Stranded["old"])
	shared, err := rig.OpenOperator(h.T, h.URL).StopBrake(context.Background(), Brake, "anna",
		"it moves", time.Hour)
	require.NoError(h.T, err)
	require.True(h.T, shared)
	h.Services[Down].Stop()
	for queue := range w.Dead {
		rig.AwaitDepth(h.T, h.URL, queue+".dlq", w.DeadOf(queue))
	}
	return w
}

// DeadOf is the number of dead letters of a queue.
func (w *World) DeadOf(queue string) (n int) {
	for _, count := range w.Dead[queue] {
		n += count
	}
	return n
}

// WaitingOf is the number of messages that wait in the wait queues of a queue, with the messages of
// queues that share them.
func (w *World) WaitingOf(queue string) (n int) {
	for other, count := range w.Waiting {
		if other == queue || w.Sharing[queue] != "" && w.Sharing[other] == w.Sharing[queue] {
			n += count
		}
	}
	return n
}

// dies makes letters of all causes, with payloads of 1 to 20 KiB.
func (w *World) dies(i int, queue string) {
	w.T.Helper()
	w.Dead[queue] = map[string]int{}
	var letters []amqp.Publishing
	for cause := range Causes {
		for n := range (i + cause) % 3 {
			size := 1<<10 + (i*97+cause*1217+n*5000)%(19<<10)
			m := Letter(queue, fmt.Sprintf("%d-%d-%d", i, cause, n),
				fmt.Sprintf("call of service %c failed: status %d", 'a'+cause, 500+n), time.Now(),
				fmt.Appendf(nil, `{"pad":%q}`, strings.Repeat("x", size-10)), amqp.Table{"tenant": "north"})
			m.Headers[header.DeadReason] = string(reasons[(i+cause)%len(reasons)])
			letters = append(letters, m)
			w.Dead[queue][Cause(cause)]++
		}
	}
	w.Post(queue+".dlq", letters...)
}

// waits lets n messages wait for an hour.
func (w *World) waits(queue string, n int) {
	w.T.Helper()
	for range n {
		w.Send(queue, "waits")
	}
	rig.WaitFor(w.T, "the messages to wait", func() bool {
		return w.Services[queue].Logs.Said("Message will be retried") == n
	})
	if n > 0 {
		w.Waiting[queue] += n
	}
}

// vanishes deletes the queue of a service for which n messages wait.
func (w *World) vanishes(c rig.Config, n int) {
	w.T.Helper()
	service := w.Serve(c)
	w.waits(c.Queue, n)
	service.Stop()
	rig.DeleteQueue(w.T, w.URL, c.Queue)
	rig.DeleteQueue(w.T, w.URL, c.Queue+".dlq")
}

// keyed makes a service in order, of which a dead letter blocks a key.
func (w *World) keyed() {
	w.T.Helper()
	c := InOrder()
	c.Queue = "keyed"
	c.Handle = new(Orders).Note(Bad(func() bool { return false }))
	w.Serve(c)
	w.Queues = append(w.Queues, c.Queue)
	for i, body := range []string{"bad 1", "second", "third"} {
		w.Post(c.Queue, amqp.Publishing{
			MessageId: fmt.Sprint("keyed-", i), Body: []byte(body), Headers: amqp.Table{"key": "k 1"},
		})
	}
	w.Dead[c.Queue], w.Behind = map[string]int{Blocked: 1}, 2
}
