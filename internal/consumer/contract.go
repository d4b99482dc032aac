// Package consumer is the life of one delivery: it consumes a queue, hands its messages
// to Watermill's router and takes each delivery to its end. A delivery is acked only
// after the message was handled, or after the broker has confirmed a durable copy of it.
// Every other delivery goes back to its queue.
//
//	receive → process ─ decode ─► router ─► middleware.DelayedRetry ─► handler
//	                                             │ error
//	ack ◄─ confirm ◄─ publish ◄─ compose ◄─ Group.Republish, Group.DeadLetter
//
// The life of a delivery is two small states. Its phase only goes on:
//
//	arrived   → decoding   process
//	          → deciding   settle: no handler gets the message
//	decoding  → handling   the marshaler has returned
//	          → left       leaveDecoding: it has not, and the process ends
//	handling  → deciding   settle: the router has nacked the message
//	any of these → acked, rejected or back: ack, giveBack
//
// Its copy, as long as the delivery is not settled:
//
//	none, kept → open           publish
//	open       → stored, none   learn: the outcome; open while that is not known
//	any        → kept           reject: the queue itself keeps the message
//
// A delivery is acked if its copy is stored or its message was handled, and rejected if it is kept.
// Where it stands among the handlers is a third state; see standing.
//
// The package knows no strategy and no plan: Config says as plain data and functions
// where messages wait.
package consumer

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/audit"
	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/internal/link"
	"github.com/millpond-go/millpond/internal/observe"
	"github.com/millpond-go/millpond/internal/publisher"
	"github.com/millpond-go/millpond/internal/seam"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology/wait"
)

const (
	// MinSnooze is the shortest wait of a message that is snoozed because the router has
	// nacked it or because it may have killed the process. It keeps messages from spinning.
	MinSnooze = time.Second
	// NormalPriority is the highest priority of the class in which a quorum queue of
	// RabbitMQ 4.0 keeps messages without a priority. Messages with a higher priority are
	// in a class of their own, whose first message holds up the normal ones until it
	// expires (F32).
	NormalPriority = 4
	// NoLimit is the delivery limit of a queue without a delivery limit.
	NoLimit = audit.NoLimit
	// MaxHold stands for no consumer timeout.
	MaxHold = audit.MaxHold
)

// Group is shared by all subscriptions of a Client. Its fields do not change after the first New.
type Group struct {
	Publisher      *publisher.Publisher
	Observers      *observe.List[middleware.Event] // nil for none
	ConfirmTimeout time.Duration                   // of each publish

	guard guard
	turns sync.Map     // the *turns of each queue, by its name
	held  atomic.Int64 // hand-overs that cannot be stored now
}

// Config describes the queue of a Subscription and its ways. A field needs a value unless its
// comment names a default.
type Config struct {
	Group        *Group
	Topic, Queue string
	Link         *link.Link // the connection that consumes
	Frame        int        // the largest frame that both connections take
	Logger       watermill.LoggerAdapter
	Observers    *observe.List[middleware.Event] // those of the Group and of Retries; nil for none
	// Decode makes a message of a delivery. It is the user's marshaler: it may panic.
	Decode  func(amqp.Delivery) (*message.Message, error)
	Consume Consume
	Waits   Waits
	// Retries are the DelayedRetries that are meant to see each message. Their hooks are told of each
	// dead letter that none of them has made. They are the user's: they may hang or end their
	// goroutine. Default: none
	Retries []seam.Retry
	// Prepare declares and checks everything before consuming begins. The function returns how
	// long a delivery may be held under a consumer timeout of the broker.
	Prepare func(context.Context, *link.Conn, func(time.Duration) time.Duration) (Limits, error)
	// Gate returns the gate of the queue. Default: it is never shut
	Gate func() seam.Gate
	// Lanes decide which delivery begins next. Default: they begin as they arrive
	Lanes Lanes
	// Keeper keeps failed messages. Default: copies do
	Keeper Keeper
	// CanStore reports what keeps messages from being stored, as far as that can be told
	// without a message. It ends an outage.
	CanStore func(context.Context) error

	DrainTimeout   time.Duration // bounds the wait for messages in progress at the end
	HandlerWarning time.Duration // logs a handler that does not return. Default: never
	Timestamps     TimestampWindow
	// OldInstances says that other clients consume the queue, too. Before RabbitMQ 4.3 their nacks
	// count as the ends of processes do, so the crash guard only keeps messages from their delivery
	// limit. Without Retries it is off, and a nacked message goes straight back.
	OldInstances bool
}

// givesStraightBack reports whether a nacked message goes straight back to its queue.
func (c *Config) givesStraightBack() bool { return c.OldInstances && len(c.Retries) == 0 }

// Consume are the settings of the AMQP consumer.
type Consume struct {
	Concurrency        int
	Prefetch           int // not less than Concurrency
	PrefetchBy         PrefetchBy
	Tag                string // Default: a random one
	Exclusive, NoLocal bool
	Arguments          amqp.Table
}

// PrefetchBy says who has chosen the prefetch.
type PrefetchBy int

// The values of PrefetchBy.
const (
	// ByLibrary is lowered to the concurrency while handlers are slow.
	ByLibrary PrefetchBy = iota
	// ByQos is logged when it limits the rate.
	ByQos
	// ByOption is kept without a word.
	ByOption
)

// Waits says where the messages of one queue wait and where its dead letters go. It is only
// read.
type Waits struct {
	Route func(wait.Retry) (wait.Route, error)
	// Given returns how long a message waits if it asks for a delay, all rounds together. A first
	// retry that asks for none waits for 0 where it goes straight to its queue.
	Given func(asked time.Duration) time.Duration
	Dead  wait.Route
	// Queues are the names of the wait queues.
	Queues []string
	// Via has the exchanges that messages pass on their way back. Zero: they go straight to
	// their queue.
	Via Via
	// KeyKept are the exchanges behind wait queues that leave the routing key to the message.
	KeyKept []string
	// RouteHeaders are the keys of Route.Headers of all routes. They belong to the wait that is
	// over: no copy and no handler gets them.
	RouteHeaders []string
	// SortsPriorities says that messages wait in quorum queues, which sort by priority.
	SortsPriorities bool
	// InLine says that copies wait in a line: they name when they are due, none overtakes another
	// by its priority, and none goes straight to its queue.
	InLine bool
	// Copied is Given for a message that is not rejected.
	Copied     func(asked time.Duration) time.Duration
	Steps      []time.Duration // the delays that have a wait queue, ascending
	Resolution time.Duration   // the step between delays, if any delay is possible; else 0
	// Redeclare declares the part of a route again that is missing, if err says that a part
	// is. It returns nil when the message can be published once more, else the error that
	// keeps the message from the route.
	Redeclare func(ctx context.Context, route wait.Route, err error) error
}

// Target is the address of a route.
func Target(r *wait.Route) publisher.Target {
	return publisher.Target{Exchange: r.Exchange, RoutingKey: r.RoutingKey, Kept: r.Kept}
}

// Limits are the limits that the broker sets on the deliveries of the queue.
type Limits struct {
	Deliveries int  // the delivery limit as far as it is known, NoLimit for none
	Unseen     bool // a policy or an argument that could not be seen may set a smaller one
	// NackCounts says that giving a delivery back raises its count on a quorum queue, as it
	// does before RabbitMQ 4.3.
	NackCounts      bool
	ConsumerTimeout time.Duration // how long a consumer may keep a delivery, as far as known
	Classic         bool          // the queue is a classic queue
	HoldsNone       bool          // the queue may hold no rejected messages: copies wait
	OneActive       bool          // the queue has a single active consumer
	// Together says that deliveries have a Lane and go back together, with their channels.
	Together bool
	// Rejected returns how long the queue holds a rejected message with this delivery count, if
	// this consumer or one with another strategy may reject its messages. Default: none do. Then the
	// count tells of processes that ended, and of no failures.
	Rejected func(count int) time.Duration
}

var (
	// ErrTooLarge says that the headers of a message leave no room for the headers of a
	// retry in one frame.
	ErrTooLarge = errors.New("headers do not fit in one frame")

	errCannotStore = errors.New("failed messages cannot be stored")
	errOrder       = errors.New("middlewares are in the wrong order: see docs/middlewares.md")
	errNacked      = errors.New("the router has nacked the message")
	errUnreadable  = errors.New("its headers cannot be read: they are nested too deep, are too " +
		"many or have a type that amqp091-go does not know; their bytes are in the header " +
		keys.Unreadable)
	// errChangedKey is why a message came to another queue than its own.
	errChangedKey = errors.New("the routing key was changed when the wait was over")
)

// isCode reports whether the broker has answered with the code.
func isCode(err error, code int) bool {
	var amqpErr *amqp.Error
	return errors.As(err, &amqpErr) && amqpErr.Code == code
}
