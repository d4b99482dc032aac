package consumer

import (
	"cmp"
	"errors"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/publisher"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology/wait"
)

// This file has the first retry without a delay: the copy goes straight to the tail of the queue.

// comesAtOnce reports whether the copy goes straight to its queue. That is so only after the
// first failure, so that no message spins. Only the first publish is tried: if the queue is full
// or out of reach, the message waits as shortly as possible. During an outage no copy comes at
// once, because a copy in the queue does not show that messages can wait. With Via the copy
// would not pass the exchange of the user.
func (d *delivery) comesAtOnce(delay time.Duration, state *header.RetryState) bool {
	return !d.sub.cfg.Waits.InLine && !d.triedAtOnce &&
		delay == 0 && state.Failures == 1 && d.State.Failures == 0 &&
		len(d.sub.cfg.Waits.Via.Through) == 0 && !d.sub.outage.active.Load()
}

// route returns the route of a copy that waits or comes at once.
func (d *delivery) route(delay time.Duration, state *header.RetryState) (wait.Route, error) {
	if d.comesAtOnce(delay, state) {
		d.triedAtOnce = true
		return wait.Route{RoutingKey: d.Queue}, nil
	}
	return d.sub.cfg.Waits.Route(wait.Retry{
		Delay: delay, Asked: cmp.Or(state.Snoozed, state.Delay), Attempt: state.Failures,
		Exchange: d.raw.Exchange, RoutingKey: d.raw.RoutingKey,
	})
}

// isAtOnce reports whether a route of the method route passes no wait queue.
func isAtOnce(route *wait.Route) bool { return route.Delay == 0 }

// isOwn reports whether the route leads straight to the queue of the delivery.
func (d *delivery) isOwn(route *wait.Route) bool {
	return route.Exchange == "" && route.RoutingKey == d.Queue
}

// isDeclined reports whether the broker has answered that it has not stored a message.
func isDeclined(err error) bool {
	var returned *publisher.ReturnedError
	return errors.Is(err, publisher.ErrRefused) || errors.As(err, &returned) ||
		isCode(err, amqp.AccessRefused)
}
