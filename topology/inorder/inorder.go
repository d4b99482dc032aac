// Package inorder has the strategy that handles the messages of each key in their order. It is a
// package of its own, so that programs without it link none of its machinery.
package inorder

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/consumer"
	"github.com/millpond-go/millpond/internal/inorder"
	"github.com/millpond-go/millpond/internal/order"
	"github.com/millpond-go/millpond/internal/seam"
	"github.com/millpond-go/millpond/topology"
)

// Strategy handles the messages of each key in their order: while a message of a key waits for its
// retry, the later messages of the key wait behind it. Other keys are not affected.
//
//	orders ── fails, or comes behind a message that has failed ──► orders.line
//	       ── gives up ──► orders.dlq
//
// A message waits in the line: a quorum queue beside the queue of the user. One process at a time
// handles the queue, with WithConcurrency many keys at once, and has everything of the line in
// memory. When it ends, freezes or loses its connection, another process takes over. Both queues
// must have a single active consumer, so the user's queue is declared with
//
//	x-single-active-consumer: true
//
// Subscribe refuses a queue without it. More than one process handles messages if they are spread
// over several queues by a hash of the key.
//
// docs/ordering.md has the promises, their limits and the fencing token.
type Strategy struct {
	// KeyBy returns the key of a message, such as the number of its order. Messages with the
	// key "" have no order. It is called once for each delivery, by one goroutine at a time for
	// each Subscribe, and must return at once. A message whose key panics has no order. While KeyBy
	// does not return, the messages behind wait in the queue; the line and Close do not wait.
	// Without KeyBy a Client can publish, verify and plan, and cannot subscribe.
	KeyBy func(*message.Message) string
	// Block keeps a key waiting behind a dead letter until a person releases the key with
	// `millpond order release`. Default: the key goes on.
	Block bool
	// MaxWaiting bounds the messages of the line, because they are in memory. Beyond it the
	// messages that come behind stay in the user's queue, which pauses when the prefetch is used
	// up. At most 60000. Default: 10000, of together at most 64 MiB.
	MaxWaiting int
	// Else has the wait queues of delayed publishing, and of messages that were waiting before the
	// queue was handled in order. It says where dead letters go. It cannot have a Via, because
	// messages of the line go straight to their handler. Default: topology.PerQueue{}.
	Else topology.PerQueue
}

const (
	// lineSuffix follows the name of the queue in the name of its line.
	lineSuffix = ".line"

	defaultMaxWaiting = 10_000
	// mostWaiting leaves room below AMQP's largest prefetch for copies that replace others.
	mostWaiting     = 60_000
	maxWaitingBytes = 64 << 20

	// deliveryLimit is the one of every queue of a plan that keeps messages: as good as none. RabbitMQ
	// 4.0 has a limit of 20 by default.
	deliveryLimit = int64(2147483647)
)

// Validate returns an error that lists every invalid field. Open calls it.
func (s Strategy) Validate() error {
	problems := []error{s.Else.Validate()}
	if s.MaxWaiting < 0 || s.MaxWaiting > mostWaiting {
		problems = append(problems, fmt.Errorf("inorder.Strategy.MaxWaiting: %d is not within 0 and %d",
			s.MaxWaiting, mostWaiting))
	}
	if len(s.Else.Via) > 0 {
		problems = append(problems, errors.New("inorder.Strategy.Else.Via: messages of the line pass no "+
			"exchange: leave Via out"))
	}
	return errors.Join(problems...)
}

// Plan implements topology.Strategy.
func (s Strategy) Plan(queue string, delays []time.Duration) (topology.Plan, error) {
	plan, err := s.Else.Plan(queue, delays)
	if err != nil {
		return plan, err
	}
	plan.Line = queue + lineSuffix
	plan.Queues = append(plan.Queues, topology.Queue{Name: plan.Line, Arguments: amqp.Table{
		"x-queue-type": string(topology.Quorum), "x-delivery-limit": deliveryLimit,
		"x-single-active-consumer": true,
	}})
	return plan, nil
}

// orderedPrefetch is the least that a leader takes ahead. Every later leader takes as many, so the
// number must not fall from one version to the next (F50).
const orderedPrefetch = 256

// Seam plugs the machinery into a subscription. The package topology calls it. A plan without a
// Line, of a strategy that embeds this one, needs none.
func (s Strategy) Seam(plan topology.Plan, host seam.Host, cfg *consumer.Config) error {
	if plan.Line == "" {
		return nil
	}
	if s.KeyBy == nil {
		return errors.New("inorder.Strategy has no KeyBy: set it to a function that returns the key of " +
			"a message, or use topology.PerQueue")
	}
	if cfg.OldInstances {
		return errors.New("WithOldInstances gives messages back out of their order: leave it out, or " +
			"use a strategy other than inorder.Strategy")
	}
	waits := &cfg.Waits
	waits.Route = func(r topology.Retry) (topology.Route, error) {
		return topology.Route{
			RoutingKey: plan.Line, Hops: 1, Delay: max(r.Delay, time.Millisecond),
		}, nil
	}
	waits.Given = func(asked time.Duration) time.Duration { return asked }
	waits.Copied = waits.Given
	waits.InLine, waits.SortsPriorities, waits.Steps, waits.Resolution = true, true, nil, 0
	if cfg.Consume.PrefetchBy == consumer.ByLibrary {
		cfg.Consume.Prefetch = max(cfg.Consume.Prefetch, orderedPrefetch)
	}
	cfg.Lanes = inorder.New(inorder.Config{
		KeyBy: s.KeyBy, Line: plan.Line, Block: s.Block, Instance: host.Instance,
		ControlUsers: host.ControlUsers,
		Limits: order.Limits{
			Messages: cmp.Or(s.MaxWaiting, defaultMaxWaiting), Bytes: maxWaitingBytes,
		},
	})
	return nil
}
