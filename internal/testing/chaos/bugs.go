package chaos

import (
	"context"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
)

// Bug is a mistake that is planted in the consumers, around the library. The checker must find it.
type Bug string

// The bugs. The zero value is none.
const (
	// AckEarly acks a message and publishes its copy a moment later.
	AckEarly Bug = "ack-early"
	// HardNack nacks with requeue when a message cannot be handed over at once, instead of holding it.
	// A quorum queue of 4.0 drops it after twenty nacks (F2); 3.10 has no such limit, and 4.3 does not
	// count nacks.
	HardNack Bug = "hard-nack"
	// AtMostOnce leaves the wait queues without at-least-once dead-lettering: a message that expires
	// while the leader dies is lost (F18).
	AtMostOnce Bug = "at-most-once"
	// PublishTwice publishes the copy for a message's second attempt twice, both confirmed.
	PublishTwice Bug = "publish-twice"
)

// Bugs lists all bugs.
var Bugs = []Bug{AckEarly, HardNack, AtMostOnce, PublishTwice}

func (b Bug) republisher(client *topology.Client) middleware.Republisher {
	switch b {
	case AckEarly:
		return ackEarly{client}
	case HardNack:
		return hardNack{client}
	case PublishTwice:
		return publishTwice{client}
	}
	return client
}

func (b Bug) subscriberOptions() []topology.SubscriberOption {
	if b == HardNack {
		return []topology.SubscriberOption{topology.WithRequeueOnNack()}
	}
	return nil
}

type ackEarly struct{ *topology.Client }

// moment makes the bug visible: only the process has the copy for so long.
const moment = 100 * time.Millisecond

func (r ackEarly) Republish(
	ctx context.Context, msg *message.Message, delay time.Duration, notes header.RetryState,
) (middleware.Republished, error) {
	msg.Ack()
	rest(ctx, moment)
	return r.Client.Republish(ctx, msg, delay, notes)
}

func (r ackEarly) DeadLetter(ctx context.Context, msg *message.Message, notes header.RetryState,
) error {
	msg.Ack()
	rest(ctx, moment)
	return r.Client.DeadLetter(ctx, msg, notes)
}

type hardNack struct{ *topology.Client }

// impatience is the time to wait for a confirm while the connection takes publishes.
const impatience = 500 * time.Millisecond

func (r hardNack) Republish(
	ctx context.Context, msg *message.Message, delay time.Duration, notes header.RetryState,
) (middleware.Republished, error) {
	var done middleware.Republished
	err := r.once(ctx, func(ctx context.Context) (err error) {
		done, err = r.Client.Republish(ctx, msg, delay, notes)
		return err
	})
	return done, err
}

func (r hardNack) DeadLetter(ctx context.Context, msg *message.Message, notes header.RetryState,
) error {
	return r.once(ctx, func(ctx context.Context) error { return r.Client.DeadLetter(ctx, msg, notes) })
}

// once makes every error final, so that the middleware does not hold the message.
func (r hardNack) once(ctx context.Context, try func(context.Context) error) error {
	err := r.Healthy()
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, impatience)
		defer cancel()
		err = try(ctx)
	}
	if err != nil {
		return errors.Join(middleware.ErrNotDelivered, err)
	}
	return nil
}

type publishTwice struct{ *topology.Client }

func (r publishTwice) Republish(
	ctx context.Context, msg *message.Message, delay time.Duration, notes header.RetryState,
) (middleware.Republished, error) {
	done, err := r.Client.Republish(ctx, msg, delay, notes)
	if err == nil && notes.Failures == 1 {
		return r.Client.Republish(ctx, msg, delay, notes)
	}
	return done, err
}

type atMostOnce struct{ topology.Strategy }

func (s atMostOnce) Plan(queue string, delays []time.Duration) (topology.Plan, error) {
	p, err := s.Strategy.Plan(queue, delays)
	for _, q := range p.Queues {
		if q.Delay > 0 {
			q.Arguments["x-dead-letter-strategy"] = "at-most-once" // by name: without it the plan is refused
			delete(q.Arguments, "x-overflow")
		}
	}
	return p, err
}
