package topology

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/publisher"
	"github.com/millpond-go/millpond/internal/wire"
	"github.com/millpond-go/millpond/middleware"
)

// republish writes to notes. It has a copy of the delivery confirmed in a wait queue. One whose own
// headers leave no room for our notes cannot come back; it is dead-lettered.
func (d *delivery) republish(ctx context.Context, delay time.Duration, notes *middleware.Notes) error {
	now := time.Now()
	route, msg, err := d.waiting(now, delay, notes)
	if err != nil {
		return d.notRepublished(ctx, now, *notes, err)
	}
	d.Placed = middleware.Placed{Delay: route.Delay}
	if route.Delay < delay {
		d.Placed.Delay = d.sub.given(delay)
	}
	return d.sub.outage.note(d, d.publish(ctx, route, msg))
}

// notRepublished dead-letters the message where err says that its copy is too large.
// Apart, as what is rarely done: what it keeps on the stack would be copied for
// every message as its stack grows.
func (d *delivery) notRepublished(ctx context.Context, now time.Time, notes middleware.Notes, err error) error {
	if !errors.Is(err, ErrTooLarge) {
		return err
	}
	d.sub.logger.Error("Message cannot be retried, dead-lettering it", err, d.LogFields())
	notes.Reason, notes.DeadAt = middleware.ReasonOversized, now
	err = d.deadLetter(ctx, notes)
	d.Placed = middleware.Placed{Reason: notes.Reason}
	return err
}

// waiting returns the copy that waits, and where.
func (d *delivery) waiting(now time.Time, delay time.Duration, notes *middleware.Notes) (Route, *amqp.Publishing, error) {
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
	if note := d.plan().Return.note(d, notes.Failures > d.Notes.Failures, notes.NotBefore.IsZero()); note != "" {
		headers[middleware.ReturnKey] = note
	}
	lowered := d.sub.plan.lowersPriority(d.raw.Priority)
	if lowered {
		headers[middleware.PriorityKey] = strconv.Itoa(int(d.raw.Priority))
		d.sub.sayLowered(d.raw.Priority)
	}
	msg, err := d.compose(middleware.IsLiveKey, headers, notes.Metadata, liveShrinking, waitingRoom(d.sub.subscriber.frame, route))
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
func (d *delivery) deadLetter(ctx context.Context, notes middleware.Notes) error {
	msg, alone := d.dead(message.SubscriberNameFromCtx(ctx), notes)
	send := d.sub.subscriber.client.publisher.PublishOwn
	if alone {
		send = d.sub.subscriber.client.publisher.PublishAlone
	}
	return d.sub.outage.note(d, d.publishWith(ctx, send, d.plan().Dead, msg))
}

// dead returns the dead letter, and whether it leaves no room for the nonce. It
// also carries the keys of Watermill's PoisonQueue, for tools that know those.
func (d *delivery) dead(subscriber string, notes middleware.Notes) (msg *amqp.Publishing, alone bool) {
	headers := notes.DeadHeaders(d.Queue)
	headers[wmiddleware.ReasonForPoisonedKey] = headers[middleware.DeadErrorKey]
	headers[wmiddleware.PoisonedTopicKey] = d.sub.topic
	headers[wmiddleware.PoisonedHandlerKey] = notes.Handler
	headers[wmiddleware.PoisonedSubscriberKey] = subscriber
	msg, err := d.compose(middleware.IsNoteKey, headers, notes.Metadata, deadShrinking, deadRoom(d.sub.subscriber.frame))
	if err != nil {
		return d.bare(notes.Reason)
	}
	return msg, false
}

// bare returns the dead letter with as little of ours as fits: better without a
// note than not at all.
func (d *delivery) bare(reason middleware.Reason) (msg *amqp.Publishing, alone bool) {
	room := deadRoom(d.sub.subscriber.frame)
	bare := wire.Publishing(&d.raw, middleware.IsNoteKey, map[string]string{middleware.DeadReasonKey: string(reason)})
	msg = &bare
	if room.check(msg) == nil {
		return msg, false
	}
	room.bytes += nonceReserve
	room.headers++
	if room.check(msg) != nil {
		d.sub.logger.Info("Dead letter leaves no room for a note, and may be readable only once (broker fact F25)", d.LogFields())
		bare = wire.Publishing(&d.raw, middleware.IsNoteKey, nil)
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

// publish has msg confirmed on a route.
func (d *delivery) publish(ctx context.Context, route Route, msg *amqp.Publishing) error {
	return d.publishWith(ctx, d.sub.subscriber.client.publisher.PublishOwn, route, msg)
}

// sendFunc is PublishOwn or PublishAlone of a publisher.
type sendFunc func(ctx context.Context, exchange, routingKey string, msg *amqp.Publishing) error

// publishWith has msg confirmed on a route by send.
func (d *delivery) publishWith(ctx context.Context, send sendFunc, route Route, msg *amqp.Publishing) error {
	c := d.sub.subscriber.client
	return (&planned{&d.sub.plan, c.publisher, c.opts.provisioned, d.sub.logger}).publish(ctx, send, route, msg)
}

// planned publishes on the routes of a plan.
type planned struct {
	plan        *Plan
	publisher   *publisher.Publisher
	provisioned bool
	logger      watermill.LoggerAdapter
}

// publish has msg confirmed on a route by send. What has vanished of ours is
// declared again: a queue or binding (the message is returned) or an exchange
// (the channel is closed with 404).
func (p *planned) publish(ctx context.Context, send sendFunc, route Route, msg *amqp.Publishing) error {
	err := send(ctx, route.Exchange, route.RoutingKey, msg)
	if err == nil {
		return nil
	}
	return p.publishAgain(ctx, send, route, msg, err)
}

// publishAgain is apart for the same reason as notRepublished.
func (p *planned) publishAgain(ctx context.Context, send sendFunc, route Route, msg *amqp.Publishing, err error) error {
	if isCode(err, amqp.AccessRefused) {
		return withWayOut(err)
	}
	var returned *publisher.ReturnedError
	if !errors.As(err, &returned) && !isCode(err, amqp.NotFound) {
		return err
	}
	if p.provisioned {
		return fmt.Errorf("what was provisioned for retries is missing, and WithPreProvisioned declares nothing: %w", err)
	}
	p.logger.Info("Something of ours has vanished, declaring it again",
		watermill.LogFields{"exchange": route.Exchange, "routing_key": route.RoutingKey})
	if declareErr := declare(ctx, p.publisher.Do, p.plan.forRoute(route), p.logger); declareErr != nil {
		return errors.Join(err, declareErr)
	}
	return send(ctx, route.Exchange, route.RoutingKey, msg)
}
