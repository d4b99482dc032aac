package consumer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/attached"
	"github.com/millpond-go/millpond/internal/clock"
	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/internal/publisher"
	"github.com/millpond-go/millpond/internal/wire"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology/wait"
)

// Republish publishes a copy of the delivery behind msg to a wait queue of at least delay
// and returns nil when the broker has confirmed it. See middleware.Republisher.
func (g *Group) Republish(
	ctx context.Context, msg *message.Message, delay time.Duration, state header.RetryState,
) (middleware.Republished, error) {
	d, err := g.delivery(ctx, msg)
	if err != nil {
		return middleware.Republished{}, fmt.Errorf("republish: %w", err)
	}
	if err := d.republish(ctx, delay, &state); err != nil {
		err = fmt.Errorf("republish message of queue %q: %w", d.sub.cfg.Queue, err)
		return middleware.Republished{}, err
	}
	d.sub.noteRounding(delay)
	return d.republished, nil
}

// DeadLetter publishes a copy of the delivery behind msg to the dead-letter queue and
// returns nil when the broker has confirmed it. See middleware.Republisher.
func (g *Group) DeadLetter(
	ctx context.Context, msg *message.Message, state header.RetryState,
) error {
	d, err := g.delivery(ctx, msg)
	if err != nil {
		return fmt.Errorf("dead-letter: %w", err)
	}
	if err := d.deadLetter(ctx, state); err != nil {
		return fmt.Errorf("dead-letter message of queue %q: %w", d.sub.cfg.Queue, err)
	}
	return nil
}

// delivery returns the delivery behind msg, if a Subscription of the group has made it.
func (g *Group) delivery(ctx context.Context, msg *message.Message) (*delivery, error) {
	d := deliveryIn(ctx)
	if d == nil || d.sub.cfg.Group != g || attached.Of(ctx, msg) != &d.Delivery {
		return nil, middleware.ErrNotDelivered
	}
	return d, nil
}

// republish publishes a copy of the delivery to a wait queue and waits for the confirm. It
// modifies state. A message whose headers leave no room for the headers of a retry is
// dead-lettered. A message that can wait in its own queue needs no copy.
func (d *delivery) republish(
	ctx context.Context, delay time.Duration, state *header.RetryState,
) error {
	if d.pending.IsOpen() {
		if settled, err := d.earlier(ctx); settled {
			return err
		}
	}
	if d.keepInQueue(delay, state) {
		return nil
	}
	now := clock.Now()
	route, msg, err := d.waiting(now, delay, state)
	if err != nil {
		return d.notRepublished(ctx, now, *state, err)
	}
	d.republished, d.died = middleware.Republished{Delay: route.Delay}, nil
	if route.Delay < delay {
		d.republished.Delay = d.sub.cfg.Waits.Copied(delay)
	}
	err = d.publish(ctx, &route, msg, false)
	if isAtOnce(&route) && isDeclined(err) {
		return d.republish(ctx, delay, state)
	}
	return d.sub.outage.note(d, err)
}

// notRepublished dead-letters the message if err says that its copy is too large. As a separate
// function it does not enlarge the stack frame of republish.
func (d *delivery) notRepublished(
	ctx context.Context, now time.Time, state header.RetryState, err error,
) error {
	if !errors.Is(err, ErrTooLarge) {
		return err
	}
	d.sub.logger.Error("Message cannot be retried, dead-lettering it", err, d.logFields())
	state.Reason, state.DeadAt = header.ReasonOversized, now
	state.WaitingSince = time.Time{}
	err = d.deadLetter(ctx, state)
	d.republished = middleware.Republished{Reason: state.Reason}
	return err
}

// waiting returns the copy that waits, and its route. It modifies state.
func (d *delivery) waiting(
	now time.Time, delay time.Duration, state *header.RetryState,
) (wait.Route, *amqp.Publishing, error) {
	route, err := d.route(delay, state)
	waits := &d.sub.cfg.Waits
	if err != nil {
		return wait.Route{}, nil, err
	}
	if state.FirstSeen.IsZero() {
		state.FirstSeen = now
	}
	state.NotBefore = time.Time{}
	if route.Delay < delay {
		state.NotBefore = now.Add(delay)
		if waits.beyond(delay) {
			d.sub.logRounds(delay, route.Delay)
		}
	}
	if waits.InLine && delay > 0 {
		state.NotBefore = now.Add(delay)
	}
	failed, lastRound := state.Failures > d.State.Failures, state.NotBefore.IsZero()
	via := waits.Via.header(d, failed, lastRound)
	priority := uint8(NormalPriority)
	if waits.InLine {
		priority = 0 // so that nothing in the line overtakes
	}
	lowered := !isAtOnce(&route) && waits.SortsPriorities && d.raw.Priority > priority
	if lowered && !waits.InLine {
		d.sub.logLowered(d.raw.Priority)
	}
	msg, err := d.compose(live, state.Metadata, waitingRoom(d.sub.cfg.Frame, &route),
		func(headers amqp.Table, whole bool) {
			told := *state
			if !whole { // other headers take the place of the history
				told.History = nil
			}
			told.EachHeader(d.Queue, func(key, value string) { headers[key] = value })
			if !waits.straightBack() {
				headers[keys.OriginRoutingKey] = state.OriginRoutingKey
			}
			d.step.Copy(headers)
			if via != "" {
				headers[keys.Via] = via
			}
			maps.Copy(headers, route.Headers)
			if lowered {
				headers[keys.Priority] = strconv.Itoa(int(d.raw.Priority))
			}
		})
	if lowered {
		msg.Priority = priority
	}
	return route, msg, err
}

// beyond reports whether a delay that waits in rounds is longer than every wait queue.
func (w *Waits) beyond(delay time.Duration) bool {
	return w.Resolution > 0 || len(w.Steps) == 0 || delay > w.Steps[len(w.Steps)-1]
}

// leavesOut returns drop for a copy, which also leaves out the headers of the wait that is over.
func (w *Waits) leavesOut(drop func(key string) bool) func(key string) bool {
	if len(w.RouteHeaders) == 0 {
		return drop
	}
	return func(key string) bool { return drop(key) || slices.Contains(w.RouteHeaders, key) }
}

// straightBack reports whether messages come back through the default exchange. Then versions
// before v0.1.0 find the origin of a message without its headers, too.
func (w *Waits) straightBack() bool { return len(w.KeyKept) == 0 && len(w.Via.Through) == 0 }

// deadLetter publishes a copy of the delivery to the dead-letter queue and waits for the
// confirm.
func (d *delivery) deadLetter(ctx context.Context, state header.RetryState) error {
	if d.pending.IsOpen() {
		if settled, err := d.earlier(ctx); settled {
			return err
		}
	}
	if err := d.step.Dying(ctx, d.ctx); err != nil {
		return d.sub.outage.note(d, err)
	}
	d.died = &state
	msg, alone := d.dead(message.SubscriberNameFromCtx(ctx), state)
	return d.sub.outage.note(d, d.publish(ctx, &d.sub.cfg.Waits.Dead, msg, alone))
}

// earlier waits for the outcome of the copy that an earlier try has published. The handler
// would also get a second copy. So settled is false, and another copy is due, only if the
// first copy is known not to be stored or if its channel has ended. A confirmed copy counts
// also when its state is the state of the earlier try.
func (d *delivery) earlier(ctx context.Context) (settled bool, err error) {
	err = d.sub.outage.note(d, d.pending.Await(ctx))
	d.learn(err)
	switch {
	case err == nil, d.pending.IsOpen():
		return true, err
	case d.ctx.Err() != nil: // the broker has the delivery back, or gets it back
		return true, errors.Join(err, context.Cause(d.ctx))
	case errors.Is(err, publisher.ErrGivenUp):
		d.sub.logger.Info("A confirm is taken for lost, handing the message over again: there may be a "+
			"second copy", d.logFields())
	}
	return false, err
}

// dead returns the dead letter, and whether it leaves no room for the nonce. It also carries
// the keys of Watermill's PoisonQueue, for tools that know those.
func (d *delivery) dead(
	subscriber string, state header.RetryState,
) (msg *amqp.Publishing, alone bool) {
	msg, err := d.compose(dead, state.Metadata, deadRoom(d.sub.cfg.Frame),
		func(headers amqp.Table, _ bool) {
			own := state.DeadHeaders(d.Queue)
			for key, value := range own {
				headers[key] = value
			}
			headers[wmiddleware.ReasonForPoisonedKey] = own[header.DeadError]
			headers[wmiddleware.PoisonedTopicKey] = d.sub.cfg.Topic
			headers[wmiddleware.PoisonedHandlerKey] = state.Handler
			headers[wmiddleware.PoisonedSubscriberKey] = subscriber
			d.step.Dead(headers)
		})
	if err != nil {
		return d.bare(state.Reason)
	}
	return msg, false
}

// bare returns the dead letter with as few additional headers as fit. A dead letter without
// any of them is better than no dead letter.
func (d *delivery) bare(reason header.Reason) (msg *amqp.Publishing, alone bool) {
	room := deadRoom(d.sub.cfg.Frame)
	drop := d.sub.cfg.Waits.leavesOut(keys.IsState)
	bare := wire.Publishing(&d.raw, drop, map[string]string{header.DeadReason: string(reason)})
	msg = &bare
	if room.check(msg) == nil {
		return msg, false
	}
	room.bytes += nonceReserve
	room.headers++
	if room.check(msg) != nil {
		d.sub.logger.Info("Dead letter leaves no room for its reason and may be readable only once "+
			"(broker fact F25)", d.logFields())
		bare = wire.Publishing(&d.raw, drop, nil)
	}
	return msg, true
}

// compose returns the delivery with the headers that write adds, and with the metadata that
// travels beside it. If they do not fit into r, it leaves out the history, then what k.fit leaves
// out, and then all metadata.
func (d *delivery) compose(
	k *kind, metadata map[string]string, r room, write func(headers amqp.Table, whole bool),
) (*amqp.Publishing, error) {
	for whole := true; ; whole = false {
		composed := wire.Publishing(&d.raw, d.sub.cfg.Waits.leavesOut(k.own), nil)
		msg := &composed
		write(msg.Headers, whole)
		for key, value := range metadata {
			if d.changes(key, value) {
				msg.Headers[key] = value
			}
		}
		err := r.check(msg)
		if err != nil && whole {
			continue
		}
		if err != nil {
			err = k.fit(msg, r)
		}
		if err != nil && len(metadata) > 0 {
			return d.compose(k, nil, r, write)
		}
		return msg, err
	}
}

// publish publishes msg on a route and waits for the confirm. If the broker says that a part
// of the route is missing, the part is declared again and msg published once more. A copy
// that must be alone has its own channel and no nonce.
func (d *delivery) publish(
	ctx context.Context, route *wait.Route, msg *amqp.Publishing, alone bool,
) error {
	d.during = d.sub.outage.begun.Load()
	d.life.know(open)
	err := d.send(ctx, route, msg, alone)
	if err != nil {
		if d.handlerEnded() {
			d.sub.places.hold(&d.place)
			d.turn.leave() // the process has survived the handler; the next one is tried
		}
		if isDeclined(err) && d.isOwn(route) {
			d.life.know(none)
			return err // the plan has no part that could be declared again
		}
		if err = d.sub.cfg.Waits.Redeclare(ctx, *route, err); err == nil {
			err = d.send(ctx, route, msg, alone)
		}
	}
	if d.learn(err); err != nil && d.pending.IsOpen() {
		context.AfterFunc(d.ctx, d.pending.Release)
	}
	return err
}

// learn notes the outcome of the copy.
func (d *delivery) learn(err error) {
	switch {
	case err == nil:
		d.life.know(stored)
	case !d.pending.IsOpen():
		d.life.know(none)
	}
}

// AfterWrite lets the next handler start, because the copy of this delivery is written. A
// suspect of the crash guard keeps its place. So does a message whose handler may still run, and
// the message of a probe.
func (d *delivery) AfterWrite() {
	if d.handlerEnded() && d.turn == nil && d.on.use != ToProbe && d.sub.places.written(&d.place) {
		d.sub.noteNarrow()
	}
}

// handlerEnded reports whether the Subscription or a DelayedRetry hands the message over. Else
// its handler runs and has called Republish itself.
func (d *delivery) handlerEnded() bool {
	return d.life.phase() == deciding || d.Progress() >= attached.Handing
}

func (d *delivery) send(
	ctx context.Context, route *wait.Route, msg *amqp.Publishing, alone bool,
) error {
	ctx, end := d.step.While(ctx, d.ctx)
	defer end()
	p := d.sub.cfg.Group.Publisher
	if alone {
		return p.PublishAlone(ctx, &d.pending, Target(route), msg)
	}
	return p.PublishFor(ctx, &d.pending, Target(route), msg)
}
