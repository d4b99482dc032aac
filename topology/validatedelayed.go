package topology

import (
	"slices"
	"time"

	"github.com/millpond-go/millpond/internal/audit"
	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/internal/wire"
)

// delayedExchange checks an exchange of the delayed-message plugin.
func (v *validation) delayedExchange(e Exchange) {
	switch e.routesAs() {
	case "direct", "fanout", "topic", "headers":
	default:
		v.find("exchange %q is of the type %s, and its x-delayed-type is %v: set that to direct, "+
			"fanout, topic or headers", e.Name, e.Kind, e.Arguments["x-delayed-type"])
	}
	if alternate := e.Arguments["alternate-exchange"]; alternate != e.Name {
		v.find("exchange %q is of the type %s, and its alternate-exchange is %v, so that it or a "+
			"policy's gets a second copy of every message at once (F49): set alternate-exchange to %q",
			e.Name, e.Kind, alternate, e.Name)
	}
}

// delayedStep checks a route to an exchange of the delayed-message plugin.
func (v *validation) delayedStep(name string, e Exchange, r Route) {
	delay, whole := audit.WholeNumber(r.Headers["x-delay"])
	switch {
	case !whole || delay <= 0:
		v.find("%s: its header x-delay is %v, so that the message does not wait: set it to the Delay in "+
			"milliseconds", name, r.Headers["x-delay"])
	case delay > maxDelayed.Milliseconds():
		v.find("%s: its header x-delay is %d, and the plugin delivers a message at once if that is over "+
			"%d (F49): leave the wait step out, and the message waits in rounds", name, delay,
			maxDelayed.Milliseconds())
	case time.Duration(delay)*time.Millisecond != r.Delay:
		v.find("%s: its header x-delay is %d: set it to the Delay in milliseconds, %d", name, delay,
			r.Delay.Milliseconds())
	}
	if r.Hops != 0 {
		v.find("%s: it passes no wait queue, Hops is %d: set it to 0", name, r.Hops)
	}
	to := v.reach(r.Exchange, r.RoutingKey, v.headers(r, ""))
	if waits := v.waitQueuesOf(to); len(waits) > 0 {
		v.find("%s: it leads to wait queue %q, in which messages would wait again: let it lead to queue "+
			"%q", name, waits[0].Name, v.plan.Queue)
		return
	}
	for other := range to.exchanges {
		if other != r.Exchange && v.exchanges[other].delaysMessages() {
			v.find("%s: it leads on to exchange %q, which delays nothing again: let it lead to queue %q",
				name, other, v.plan.Queue)
		}
	}
	for _, b := range v.bindings[e.Name] {
		if b.ToExchange != "" {
			v.catches(b.ToExchange)
			continue
		}
		v.find("exchange %q leads straight to queue %q, so that a message whose queue is gone is lost "+
			"(F49): bind another exchange with an alternate-exchange between them", e.Name, b.Queue)
	}
	v.back(name, r, r.Exchange, r.RoutingKey)
}

// routeHeaders checks the headers that a route writes to its messages.
func (v *validation) routeHeaders(name string, r Route) {
	for key := range r.Headers {
		if wire.IsBrokers(key) || keys.IsState(key) || slices.Contains(reservedHeaders, key) {
			v.find("%s: its header %s belongs to the broker or to this library: leave it out", name, key)
		}
	}
	if err := r.Headers.Validate(); err != nil {
		v.find("%s: %w", name, err)
	}
}

// reservedHeaders are written to every copy.
var reservedHeaders = []string{keys.Publish}
