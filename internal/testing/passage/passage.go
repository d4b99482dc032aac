// Package passage says where a message has waited, by the notes of the broker. A test of a delay
// that asks it does not depend on the speed of the machine.
package passage

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/audit"
	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/internal/testing/frame"
	"github.com/millpond-go/millpond/topology"
)

// Queues returns the queues that a delivery has left since it was published last, in their order
// and as often as it has left them. A queue that it has left for another reason than the end of its
// wait is named with the reason. The library republishes no x-death (F3), so the queues belong to
// the last wait alone, and to its last round.
func Queues(d *amqp.Delivery) (names []string) {
	deaths, _ := d.Headers["x-death"].([]any)
	for _, death := range oldestFirst(d, deaths) {
		entry, _ := death.(amqp.Table)
		name, count := fmt.Sprint(entry["queue"]), 1
		if entry["reason"] != "expired" {
			name = fmt.Sprintf("%s (%v)", name, entry["reason"])
		}
		if n, ok := audit.WholeNumber(entry["count"]); ok {
			count = int(n)
		}
		names = append(names, slices.Repeat([]string{name}, count)...)
	}
	return names
}

// oldestFirst returns the entries of x-death in the order in which they were made. The newest comes
// first. RabbitMQ 3.10 turns the order of the older entries at each death (F1).
func oldestFirst(d *amqp.Delivery, deaths []any) []any {
	deaths = slices.Clone(deaths)
	if _, since4 := d.Headers["x-last-death-queue"]; !since4 {
		for i := range deaths {
			slices.Reverse(deaths[min(i+1, len(deaths)):])
		}
	}
	slices.Reverse(deaths)
	return deaths
}

// Waited returns how long the broker has kept a delivery back by a plan: the sum of its wait
// queues, the delay that DelayedExchange has asked for, or the delay of Native at the delivery
// count. The error names a queue that is no wait queue of the plan.
func Waited(p topology.Plan, d *amqp.Delivery) (waited time.Duration, err error) {
	count, _ := audit.WholeNumber(d.Headers["x-delivery-count"])
	if p.RejectMin > 0 && count > 0 {
		return min(time.Duration(count)*p.RejectMin, p.RejectMax), nil
	}
	plugin := slices.ContainsFunc(p.Exchanges, func(e topology.Exchange) bool {
		return e.Kind == audit.DelayedKind
	})
	if delay, ok := audit.WholeNumber(d.Headers["x-delay"]); ok && plugin {
		// The plugin turns the sign when the message is due.
		return time.Duration(max(delay, -delay)) * time.Millisecond, nil
	}
	for _, name := range Queues(d) {
		i := slices.IndexFunc(p.Queues, func(q topology.Queue) bool { return q.Name == name })
		if i < 0 || p.Queues[i].Delay == 0 {
			return waited, fmt.Errorf("queue %q is no wait queue of the plan", name)
		}
		waited += p.Queues[i].Delay
	}
	return waited, nil
}

// Rounds counts the waits that are followed by another round before the handler gets the message.
// No delivery to a handler tells of them: the Subscriber republishes the message itself.
type Rounds struct {
	mu    sync.Mutex
	heads []string // the content headers of the copies
}

// Of returns the number of such waits of the messages whose properties or headers contain a text.
func (r *Rounds) Of(text string) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, head := range r.heads {
		if strings.Contains(head, text) {
			n++
		}
	}
	return n
}

// Watch watches the connections that are dialed from now on with the configuration, without TLS.
func (r *Rounds) Watch(cfg *wamqp.ConnectionConfig) {
	config := amqp.Config{Locale: "en_US"}
	if cfg.AmqpConfig != nil {
		config = *cfg.AmqpConfig
	}
	dial := config.Dial
	if dial == nil {
		dial = net.Dial
	}
	config.Dial = func(network, addr string) (net.Conn, error) {
		conn, err := dial(network, addr)
		if err != nil {
			return nil, err
		}
		return frame.Watch(conn, r.sent, nil), nil
	}
	cfg.AmqpConfig = &config
}

// sent keeps the content headers of the copies that wait for another round.
func (r *Rounds) sent(f frame.Frame) {
	if f.Kind() == frame.KindHeader && strings.Contains(string(f), keys.NotBefore) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.heads = append(r.heads, string(f))
	}
}
