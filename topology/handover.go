package topology

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/audit"
	"github.com/millpond-go/millpond/internal/publisher"
	"github.com/millpond-go/millpond/internal/wire"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
)

// republish writes to notes. It has a copy of the delivery confirmed in a wait queue. One whose own
// headers leave no room for our notes cannot come back; it is dead-lettered.
func (d *delivery) republish(ctx context.Context, delay time.Duration, notes *header.RetryState) error {
	if d.pending.IsOpen() {
		if settled, err := d.earlier(ctx); settled {
			return err
		}
	}
	now := time.Now()
	route, msg, err := d.waiting(now, delay, notes)
	if err != nil {
		return d.notRepublished(ctx, now, *notes, err)
	}
	d.Republished = middleware.Republished{Delay: route.Delay}
	if route.Delay < delay {
		d.Republished.Delay = d.sub.given(delay)
	}
	return d.sub.outage.note(d, d.publish(ctx, route, msg, false))
}

// notRepublished dead-letters the message where err says that its copy is too large.
// Apart, as what is rarely done: what it keeps on the stack would be copied for
// every message as its stack grows.
func (d *delivery) notRepublished(ctx context.Context, now time.Time, notes header.RetryState, err error) error {
	if !errors.Is(err, ErrTooLarge) {
		return err
	}
	d.sub.logger.Error("Message cannot be retried, dead-lettering it", err, d.LogFields())
	notes.Reason, notes.DeadAt = header.ReasonOversized, now
	err = d.deadLetter(ctx, notes)
	d.Republished = middleware.Republished{Reason: notes.Reason}
	return err
}

// waiting returns the copy that waits, and where.
func (d *delivery) waiting(now time.Time, delay time.Duration, notes *header.RetryState) (Route, *amqp.Publishing, error) {
	route, err := d.plan().Route(Retry{
		Delay: delay, Attempt: notes.Failures,
		Exchange: d.raw.Exchange, RoutingKey: d.raw.RoutingKey,
	})
	if err != nil {
		return Route{}, nil, err
	}
	if notes.FirstSeen.IsZero() {
		notes.FirstSeen = now
	}
	notes.NotBefore = time.Time{}
	if route.Delay < delay {
		notes.NotBefore = now.Add(delay)
		d.sub.sayRounds(delay, route.Delay)
	}
	headers := notes.Headers(d.Queue)
	if note := d.plan().Via.note(d, notes.Failures > d.State.Failures, notes.NotBefore.IsZero()); note != "" {
		headers[header.Via] = note
	}
	lowered := d.sub.plan.lowersPriority(d.raw.Priority)
	if lowered {
		headers[header.Priority] = strconv.Itoa(int(d.raw.Priority))
		d.sub.sayLowered(d.raw.Priority)
	}
	msg, err := d.compose(header.IsLive, headers, notes.Metadata, liveShrinking, waitingRoom(d.sub.subscriber.frame, route))
	if lowered {
		msg.Priority = normalPriority
	}
	return route, msg, err
}

// sayRounds says once that a delay is longer than all wait queues.
func (s *subscription) sayRounds(delay, longest time.Duration) {
	s.rounds.Do(func() {
		s.logger.Info("A delay is longer than every wait queue: the message passes through its queue once a round; "+
			"add a longer one with topology.ForPolicy, or bound what RetryAfter and RetryAfterHeader may ask for",
			watermill.LogFields{"delay": delay, "longest": longest})
	})
}

// deadLetter has a copy of the delivery confirmed in the dead-letter queue.
func (d *delivery) deadLetter(ctx context.Context, notes header.RetryState) error {
	if d.pending.IsOpen() {
		if settled, err := d.earlier(ctx); settled {
			return err
		}
	}
	msg, alone := d.dead(message.SubscriberNameFromCtx(ctx), notes)
	return d.sub.outage.note(d, d.publish(ctx, d.plan().Dead, msg, alone))
}

// earlier waits for the outcome of the copy that an earlier try has published. A
// second copy beside it would be handled as well, so settled is false, and another
// copy is due, only where the first one is known not to be stored or its channel has
// ended. A copy that is confirmed counts, also where its notes are those of the
// earlier try.
func (d *delivery) earlier(ctx context.Context) (settled bool, err error) {
	err = d.sub.outage.note(d, d.pending.Await(ctx))
	switch {
	case err == nil, d.pending.IsOpen():
		return true, err
	case d.ctx.Err() != nil: // the broker has the delivery back, or gets it back
		return true, errors.Join(err, context.Cause(d.ctx))
	}
	return false, err
}

// dead returns the dead letter, and whether it leaves no room for the nonce. It
// also carries the keys of Watermill's PoisonQueue, for tools that know those.
func (d *delivery) dead(subscriber string, notes header.RetryState) (msg *amqp.Publishing, alone bool) {
	headers := notes.DeadHeaders(d.Queue)
	headers[wmiddleware.ReasonForPoisonedKey] = headers[header.DeadError]
	headers[wmiddleware.PoisonedTopicKey] = d.sub.topic
	headers[wmiddleware.PoisonedHandlerKey] = notes.Handler
	headers[wmiddleware.PoisonedSubscriberKey] = subscriber
	msg, err := d.compose(header.IsState, headers, notes.Metadata, deadShrinking, deadRoom(d.sub.subscriber.frame))
	if err != nil {
		return d.bare(notes.Reason)
	}
	return msg, false
}

// bare returns the dead letter with as little of ours as fits: better without a
// note than not at all.
func (d *delivery) bare(reason header.Reason) (msg *amqp.Publishing, alone bool) {
	room := deadRoom(d.sub.subscriber.frame)
	bare := wire.Publishing(&d.raw, header.IsState, map[string]string{header.DeadReason: string(reason)})
	msg = &bare
	if room.check(msg) == nil {
		return msg, false
	}
	room.bytes += nonceReserve
	room.headers++
	if room.check(msg) != nil {
		d.sub.logger.Info("Dead letter leaves no room for a note, and may be readable only once (broker fact F25)", d.LogFields())
		bare = wire.Publishing(&d.raw, header.IsState, nil)
	}
	return msg, true
}

// compose returns the delivery with notes and the metadata that travels beside
// it, of which as much is left out as does not fit into r: first what fit leaves
// out, then the metadata as well.
func (d *delivery) compose(drop func(string) bool, notes, metadata map[string]string, order []string, r room) (*amqp.Publishing, error) {
	composed := wire.Publishing(&d.raw, drop, notes)
	msg := &composed
	for key, value := range metadata {
		// A header that a handler only read keeps its type.
		if arrived, ok := d.raw.Headers[key]; ok && wire.Text(arrived) != value || !ok && value != "" {
			msg.Headers[key] = value
		}
	}
	err := fit(msg, notes, order, r)
	if err != nil && len(metadata) > 0 {
		return d.compose(drop, notes, nil, order, r)
	}
	return msg, err
}

// publish has msg confirmed on a route, on a channel of its own if it is to be alone.
func (d *delivery) publish(ctx context.Context, route Route, msg *amqp.Publishing, alone bool) error {
	c := d.sub.subscriber.client
	err := (&planned{&d.sub.plan, c.publisher, c.opts.provisioned, d.sub.logger, &d.pending, alone}).publish(ctx, route, msg)
	if err != nil && d.pending.IsOpen() {
		context.AfterFunc(d.ctx, d.pending.Release)
	}
	return err
}

// planned publishes on the routes of a plan.
type planned struct {
	plan        *Plan
	publisher   *publisher.Publisher
	provisioned bool
	logger      watermill.LoggerAdapter
	pending     *publisher.Pending // keeps a publish whose outcome is open; nil gives it up
	alone       bool               // on a channel of its own, without a nonce
}

// publish has msg confirmed on a route. A queue, binding or exchange of the plan that
// has vanished is declared again: the broker returns the message, or closes the
// channel with 404.
func (p *planned) publish(ctx context.Context, route Route, msg *amqp.Publishing) error {
	err := p.send(ctx, route, msg)
	if err == nil {
		return nil
	}
	return p.publishAgain(ctx, route, msg, err)
}

func (p *planned) send(ctx context.Context, route Route, msg *amqp.Publishing) error {
	if p.alone {
		return p.publisher.PublishAlone(ctx, p.pending, route.Exchange, route.RoutingKey, msg)
	}
	return p.publisher.PublishFor(ctx, p.pending, route.Exchange, route.RoutingKey, msg)
}

// publishAgain declares again what err says is gone, and publishes once more. It is
// apart for the same reason as notRepublished.
func (p *planned) publishAgain(ctx context.Context, route Route, msg *amqp.Publishing, err error) error {
	if isCode(err, amqp.AccessRefused) {
		return withWayOut(err)
	}
	var returned *publisher.ReturnedError
	switch {
	case errors.As(err, &returned) && !p.plan.leadsFrom(route.Exchange):
		return fmt.Errorf("exchange %q, which the plan does not declare, has no queue for routing key %q: bind one: %w", route.Exchange, route.RoutingKey, err)
	case errors.As(err, &returned):
	case isCode(err, amqp.NotFound) && p.plan.declares(route.Exchange):
	case isCode(err, amqp.NotFound) && route.Exchange != "":
		return fmt.Errorf("exchange %q may be missing, and the plan does not declare it: declare it: %w", route.Exchange, err)
	default:
		return err
	}
	if p.provisioned {
		return fmt.Errorf("what was provisioned for retries is missing, and WithPreProvisioned declares nothing: %w", err)
	}
	vanished := p.vanished(ctx, route, returned != nil)
	if declareErr := declare(ctx, p.publisher.Do, p.plan.forRoute(route), p.logger); declareErr != nil {
		return errors.Join(fmt.Errorf("%s has vanished: %w", vanished, err), declareErr)
	}
	p.logger.Error("A part of the plan had vanished and was declared again; if it is a wait queue, the messages that waited in it are "+
		"lost: find out what deletes it", err, watermill.LogFields{"vanished": vanished, "exchange": route.Exchange, "routing_key": route.RoutingKey})
	return p.send(ctx, route, msg)
}

// vanished names the part of the plan that is missing on a route: the exchange where
// the broker has said so, else the queue that the route leads to, or a binding on the
// way where that queue is there.
func (p *planned) vanished(ctx context.Context, route Route, returned bool) string {
	if !returned {
		return fmt.Sprintf("exchange %q", route.Exchange)
	}
	to := newRouting(*p.plan).reach(route.Exchange, route.RoutingKey, nil)
	for _, queue := range slices.Sorted(maps.Keys(to.queues)) {
		if _, err := audit.Passive(ctx, p.publisher.Do, queue); isCode(err, amqp.NotFound) {
			return fmt.Sprintf("queue %q", queue)
		}
	}
	return fmt.Sprintf("a binding of exchange %q", route.Exchange)
}

// leadsFrom reports whether messages that are published to the exchange reach a queue
// by what the plan declares.
func (p *Plan) leadsFrom(exchange string) bool {
	return exchange == "" || p.declares(exchange) ||
		slices.ContainsFunc(p.Bindings, func(b Binding) bool { return b.Exchange == exchange })
}

// declares reports whether the exchange is one of the plan.
func (p *Plan) declares(exchange string) bool {
	return slices.ContainsFunc(p.Exchanges, func(e Exchange) bool { return e.Name == exchange })
}
