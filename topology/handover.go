package topology

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/publisher"
	"github.com/millpond-go/millpond/internal/wire"
	"github.com/millpond-go/millpond/middleware"
)

// republish has a copy of the delivery confirmed in a wait queue. One whose own
// headers leave no room for our notes cannot come back; it is dead-lettered.
func (d *delivery) republish(ctx context.Context, delay time.Duration, notes middleware.Notes) error {
	now := time.Now()
	route, err := d.plan().Route(Retry{
		Delay: delay, Attempt: notes.Failures,
		OriginExchange: notes.OriginExchange, OriginRoutingKey: notes.OriginRoutingKey,
	})
	if err != nil {
		return err
	}
	if notes.FirstSeen.IsZero() {
		notes.FirstSeen = now
	}
	notes.NotBefore = time.Time{}
	if route.Delay < delay {
		notes.NotBefore = now.Add(delay)
	}
	headers := notes.Headers(d.Queue)
	room := d.sub.subscriber.frame - frameOverhead - nonceReserve - brokerReserve
	msg, err := d.compose(middleware.IsLiveKey, headers, notes.Metadata, liveShrinking, room)
	if err != nil {
		d.sub.logger.Error("Message cannot be retried, dead-lettering it", err, d.logFields())
		notes.Reason, notes.DeadAt = middleware.ReasonOversized, now
		return d.deadLetter(ctx, notes)
	}
	return d.publish(ctx, route, msg)
}

// deadLetter has a copy of the delivery confirmed in the dead-letter queue. It
// also carries the keys of Watermill's PoisonQueue, for tools that know those.
func (d *delivery) deadLetter(ctx context.Context, notes middleware.Notes) error {
	headers := notes.DeadHeaders(d.Queue)
	headers[wmiddleware.ReasonForPoisonedKey] = headers[middleware.DeadErrorKey]
	headers[wmiddleware.PoisonedTopicKey] = d.sub.topic
	headers[wmiddleware.PoisonedHandlerKey] = notes.Handler
	headers[wmiddleware.PoisonedSubscriberKey] = message.SubscriberNameFromCtx(ctx)
	msg, err := d.compose(middleware.IsNoteKey, headers, notes.Metadata, deadShrinking, d.sub.subscriber.frame-frameOverhead-nonceReserve)
	if err != nil { // better without a note than not at all
		msg = wire.Publishing(&d.raw, middleware.IsNoteKey, nil)
	}
	return d.publish(ctx, d.plan().Dead, msg)
}

// compose returns the delivery with notes and the metadata that travels beside
// it, of which as much is left out as does not fit in room: first what fit leaves
// out, then the metadata as well.
func (d *delivery) compose(drop func(string) bool, notes, metadata map[string]string, order []string, room int) (amqp.Publishing, error) {
	msg := wire.Publishing(&d.raw, drop, notes)
	for key, value := range metadata {
		// A header that a handler only read keeps its type.
		if arrived, ok := d.raw.Headers[key]; ok && wire.Text(arrived) != value || !ok && value != "" {
			msg.Headers[key] = value
		}
	}
	err := fit(&msg, notes, order, room)
	if err != nil && len(metadata) > 0 {
		return d.compose(drop, notes, nil, order, room)
	}
	return msg, err
}

// publish has msg confirmed on a route. What has vanished of ours is declared
// again: a queue or binding (the message is returned) or an exchange (the channel
// is closed with 404).
func (d *delivery) publish(ctx context.Context, route Route, msg amqp.Publishing) error {
	p := d.sub.subscriber.client.publisher
	err := p.Publish(ctx, route.Exchange, route.RoutingKey, msg)
	var returned *publisher.ReturnedError
	if !errors.As(err, &returned) && !isCode(err, amqp.NotFound) {
		return err
	}
	if d.sub.subscriber.client.opts.provisioned {
		return fmt.Errorf("what was provisioned for retries is missing, and WithPreProvisioned declares nothing: %w", err)
	}
	d.sub.logger.Info("Something of ours has vanished, declaring it again",
		watermill.LogFields{"exchange": route.Exchange, "routing_key": route.RoutingKey})
	if declareErr := declare(ctx, p.Do, d.plan().forRoute(route), d.sub.logger); declareErr != nil {
		return errors.Join(err, declareErr)
	}
	return p.Publish(ctx, route.Exchange, route.RoutingKey, msg)
}
