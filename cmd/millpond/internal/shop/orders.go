package shop

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology/inorder"
)

// ErrBroken is an error that no retry mends.
var ErrBroken = errors.New("cannot parse total")

// Orders is a service of the queue orders that notes the bodies of messages that were handled.
type Orders struct {
	*House
	config  rig.Config
	mu      sync.Mutex
	handled []string
}

// Orders starts the service. handler fails messages by their bodies; nil fails none.
func (h *House) Orders(c rig.Config, handler func(body string) error) *Orders {
	h.T.Helper()
	o := &Orders{House: h, config: c}
	o.config.Queue, o.config.Handle = "orders", o.Note(handler)
	o.config.RetryOptions = []middleware.Option{
		middleware.WithClassifier(middleware.PermanentErrors(ErrBroken)),
	}
	o.Start()
	return o
}

// Start starts the service again after a stop.
func (o *Orders) Start() { o.T.Helper(); o.Serve(o.config) }

// Note returns a handler that notes the bodies that handler has handled, each once.
func (o *Orders) Note(handler func(body string) error) func(*message.Message) error {
	return func(msg *message.Message) error {
		body := string(msg.Payload)
		if handler != nil {
			if err := handler(body); err != nil {
				return err
			}
		}
		o.mu.Lock()
		defer o.mu.Unlock()
		if !slices.Contains(o.handled, body) {
			o.handled = append(o.handled, body)
		}
		return nil
	}
}

// Handled returns the bodies that were handled, in their order.
func (o *Orders) Handled() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.handled)
}

// AwaitHandled waits until n messages were handled.
func (o *Orders) AwaitHandled(n int) {
	o.T.Helper()
	rig.WaitFor(o.T, fmt.Sprintf("%d orders to be handled", n), func() bool {
		return len(o.Handled()) == n
	})
}

// AwaitBodies waits until these messages were handled, in this order.
func (o *Orders) AwaitBodies(bodies ...string) {
	o.T.Helper()
	o.AwaitHandled(len(bodies))
	require.Equal(o.T, bodies, o.Handled())
}

// AwaitDead waits for n dead letters.
func (o *Orders) AwaitDead(n int) { o.T.Helper(); rig.AwaitDepth(o.T, o.URL, "orders.dlq", n) }

// Place publishes the orders from one number up to another.
func (o *Orders) Place(from, to int) { o.T.Helper(); o.Post("orders", Numbered(from, to)...) }

// Numbered returns the orders from one number up to another.
func Numbered(from, to int) (orders []amqp.Publishing) {
	for n := from; n < to; n++ {
		m := rig.Message(fmt.Sprintf(`{"order":%d}`, n))
		m.MessageId = fmt.Sprint("order-", n)
		orders = append(orders, m)
	}
	return orders
}

// Keyed publishes orders of a key.
func (o *Orders) Keyed(key string, bodies ...string) {
	o.T.Helper()
	for _, body := range bodies {
		m := rig.Message(body)
		m.MessageId = "id-" + strings.ReplaceAll(body, " ", "-")
		m.Headers = amqp.Table{"key": key}
		o.Post("orders", m)
	}
}

// InOrder is a service of orders by keys, in which a dead letter blocks its key.
func InOrder() rig.Config {
	return rig.Config{
		Policy: backoff.None{},
		Configure: rig.WithQueue(amqp.Table{
			"x-queue-type": "quorum", "x-single-active-consumer": true, "x-delivery-limit": int64(1 << 30),
		}),
		Strategy: inorder.Strategy{Block: true, KeyBy: func(msg *message.Message) string {
			return msg.Metadata.Get("key")
		}},
	}
}

// Bad fails the bodies that begin with "bad " until mended reports true.
func Bad(mended func() bool) func(body string) error {
	return func(body string) error {
		if strings.HasPrefix(body, "bad ") && !mended() {
			return errors.New("no such customer")
		}
		return nil
	}
}
