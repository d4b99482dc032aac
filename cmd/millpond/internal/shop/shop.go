// Package shop has the scenes that the tests of the tool and of its page share: services on a real
// RabbitMQ, with dead letters, waiting and stranded messages.
package shop

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
)

// House is a virtual host with services.
type House struct {
	T        testing.TB
	Node     *testbroker.Node
	URL, API string // of AMQP and of the management API
	Services map[string]*rig.Service
}

// Open returns an empty house on a broker that no other test uses meanwhile.
func Open(t testing.TB) *House {
	t.Helper()
	node, api := testbroker.Managed(t, "")
	return &House{T: t, Node: node, URL: node.URL(), API: api, Services: map[string]*rig.Service{}}
}

// Serve starts a service. By default it has a quorum queue, retries after 200 ms and after an hour,
// and fails as Handle does.
func (h *House) Serve(c rig.Config) *rig.Service {
	h.T.Helper()
	c.URL, c.Keep = h.URL, true
	if c.Handle == nil {
		c.Handle = Handle
	}
	if c.Policy == nil {
		c.Policy = backoff.List{200 * time.Millisecond, time.Hour}
	}
	configure := c.Configure
	if configure == nil {
		configure = Unlimited
	}
	c.Configure = func(cfg *wamqp.Config) {
		configure(cfg)
		rig.Picky(cfg)
	}
	s := rig.Start(h.T, c)
	h.Services[c.Queue] = s
	return s
}

// Queues are the queues of Furnish.
var Queues = []string{"orders", "invoices", "mail"}

// Furnish starts three services: orders with PerQueue, invoices with Shared wait queues of the
// prefix shop, and mail with Levels.
func (h *House) Furnish() {
	h.T.Helper()
	rig.DeclareExchange(h.T, h.URL, "events", "topic")
	h.Serve(rig.Config{Queue: "orders"})
	h.Serve(rig.Config{
		Queue:     "invoices",
		Strategy:  topology.Shared{Type: topology.Classic, Prefix: "shop", Via: []string{"events"}},
		Configure: rig.OnTopic("events", "invoice.*"),
	})
	h.Serve(rig.Config{Queue: "mail", Strategy: topology.Levels{Max: 2 * time.Hour}})
}

// Unlimited makes the queue a quorum queue that drops nothing, on RabbitMQ 4, too (F2).
func Unlimited(cfg *wamqp.Config) {
	cfg.Queue.Arguments = amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": int32(1 << 30)}
}

// ErrClosed is the error of a handler that fails.
var ErrClosed = errors.New("the shop is closed")

// Handle fails as the body of the message says: "waits" waits an hour, "is stranded 3" two seconds,
// and "is permanent 7" is dead at once, because there is no customer 7. Others are handled.
func Handle(msg *message.Message) error {
	body := string(msg.Payload)
	switch number, permanent := strings.CutPrefix(body, "is permanent "); {
	case body == "waits":
		return middleware.RetryAfter(ErrClosed, time.Hour)
	case strings.HasPrefix(body, "is stranded"):
		return middleware.RetryAfter(ErrClosed, 2*time.Second)
	case permanent:
		return middleware.Permanent(fmt.Errorf("no customer %s", number))
	}
	return nil
}

// Send publishes messages to a queue. Their ids are the queue and the body.
func (h *House) Send(queue string, bodies ...string) {
	h.T.Helper()
	exchange, key := "", queue
	if queue == "invoices" {
		exchange, key = "events", "invoice.new"
	}
	for _, body := range bodies {
		m := rig.Message(body)
		m.MessageId = queue + "-" + strings.ReplaceAll(body, " ", "-")
		rig.Publish(h.T, h.URL, exchange, key, m)
	}
}

// Strand makes n stranded messages: the queue of the service is deleted while they wait for it. It
// returns when the stranded queue has them.
func (h *House) Strand(c rig.Config, stranded string, n int) {
	h.T.Helper()
	c.Handle = nil
	s := h.Serve(c)
	for i := range n {
		h.Send(c.Queue, fmt.Sprint("is stranded ", i))
	}
	rig.WaitFor(h.T, "the messages to wait", func() bool {
		return s.Logs.Said("Message will be retried") == n
	})
	s.Stop()
	rig.DeleteQueue(h.T, h.URL, c.Queue)
	rig.DeleteQueue(h.T, h.URL, c.Queue+".dlq")
	rig.AwaitDepth(h.T, h.URL, stranded, n)
}

// Dead returns a message as the library writes it to a dead-letter queue, with these notes.
func Dead(queue string, notes header.RetryState, m amqp.Publishing) amqp.Publishing {
	return noted(m, notes.DeadHeaders(queue))
}

// Waiting returns a message as the library writes it to a wait queue, with these notes.
func Waiting(queue string, notes header.RetryState, m amqp.Publishing) amqp.Publishing {
	return noted(m, notes.Headers(queue))
}

// noted adds headers; those that the message has stay.
func noted(m amqp.Publishing, notes map[string]string) amqp.Publishing {
	headers := amqp.Table{}
	for key, value := range notes {
		headers[key] = value
	}
	maps.Copy(headers, m.Headers)
	m.Headers, m.DeliveryMode = headers, amqp.Persistent
	return m
}

// Letter is a dead letter that has failed twice, the last time at this time.
func Letter(queue, id, text string, at time.Time, body []byte, more amqp.Table) amqp.Publishing {
	return Dead(queue, header.RetryState{
		Failures: 2, Reason: header.ReasonExhausted, Class: header.ClassRetryable, Handler: "handler",
		Error: text, DeadAt: at, OriginRoutingKey: queue,
		History: []header.AttemptError{
			{Attempt: 1, At: at.Add(-time.Minute), Handler: "handler", Error: "first " + text},
			{Attempt: 2, At: at, Handler: "handler", Error: text},
		},
	}, amqp.Publishing{MessageId: id, Body: body, ContentType: "application/json", Headers: more})
}

// Post publishes messages to a queue and waits until all are confirmed.
func (h *House) Post(queue string, messages ...amqp.Publishing) {
	h.T.Helper()
	rig.Post(h.T, h.URL, queue, messages...)
}
