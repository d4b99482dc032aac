package topology

import (
	"cmp"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millpond-go/millpond/internal/consumer"
	"github.com/millpond-go/millpond/internal/order"
)

// InOrder handles the messages of each key in their order: while a message of a key waits for its
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
type InOrder struct {
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
	// messages of the line go straight to their handler. Default: PerQueue{}.
	Else PerQueue
}

const (
	// lineSuffix follows the name of the queue in the name of its line.
	lineSuffix = ".line"

	defaultMaxWaiting = 10_000
	// mostWaiting leaves room below AMQP's largest prefetch for copies that replace others.
	mostWaiting     = 60_000
	maxWaitingBytes = 64 << 20
)

// Validate returns an error that lists every invalid field. Open calls it.
func (s InOrder) Validate() error {
	return errors.Join(s.Else.Validate(),
		refuse(s.MaxWaiting < 0 || s.MaxWaiting > mostWaiting,
			"InOrder.MaxWaiting: %d is not within 0 and %d", s.MaxWaiting, mostWaiting),
		refuse(len(s.Else.Via) > 0, "InOrder.Else.Via: messages of the line pass no exchange: leave "+
			"Via out"))
}

// Plan implements Strategy.
func (s InOrder) Plan(queue string, delays []time.Duration) (Plan, error) {
	plan, err := s.Else.Plan(queue, delays)
	if err != nil {
		return plan, err
	}
	args := Quorum.keepArguments()
	args["x-single-active-consumer"] = true
	plan.Line = queue + lineSuffix
	plan.Queues = append(plan.Queues, Queue{Name: plan.Line, Arguments: args})
	return plan, nil
}

// line checks the queue of messages that are handled in order.
func (v *validation) line() {
	if v.plan.Line == "" {
		return
	}
	q, ok := v.queues[v.plan.Line]
	if !ok || q.Delay > 0 || q.Arguments["x-queue-type"] != string(Quorum) ||
		q.Arguments["x-single-active-consumer"] != true {
		v.find("Plan.Line %q: name a quorum queue of the plan with x-single-active-consumer true, "+
			"without a Delay", v.plan.Line)
	}
}

// orderedPrefetch is the least that a leader takes ahead. Every later leader takes as many, so the
// number must not fall from one version to the next (F50).
const orderedPrefetch = 256

// order returns how the messages of a subscription are handled in order, and changes where they
// wait; nil without an order.
func (s *Subscriber) order(plan Plan, waits *consumer.Waits) (*consumer.Order, error) {
	in, ok := s.client.strategy.(InOrder)
	switch {
	case !ok && plan.Line == "":
		return nil, nil
	case !ok:
		return nil, errors.New("the plan has a Line, and the strategy is not topology.InOrder: leave " +
			"Plan.Line empty, or use InOrder")
	case in.KeyBy == nil:
		return nil, errors.New("topology.InOrder has no KeyBy: set it to a function that returns the " +
			"key of a message, or use topology.PerQueue")
	case s.opts.requeue:
		return nil, errors.New("WithRequeueOnNack gives messages back out of their order: leave it " +
			"out, or use a strategy other than topology.InOrder")
	}
	route := consumer.Route{RoutingKey: plan.Line, Hops: 1}
	waits.Route = func(r consumer.Retry) (consumer.Route, error) {
		to := route
		to.Delay = max(r.Delay, time.Millisecond)
		return to, nil
	}
	waits.Given = func(asked time.Duration) time.Duration { return asked }
	waits.SortsPriorities, waits.Steps, waits.Resolution = true, nil, 0
	return &consumer.Order{
		KeyBy: in.KeyBy, Line: plan.Line, Block: in.Block, Instance: s.client.instance(),
		ControlUsers: s.client.opts.controlUsers,
		Limits: order.Limits{
			Messages: cmp.Or(in.MaxWaiting, defaultMaxWaiting), Bytes: maxWaitingBytes,
		},
	}, nil
}
