// Package consumer is the life of one delivery: it consumes a queue, hands its messages
// to Watermill's router and takes each delivery to its end. A delivery is acked only
// after the message was handled, or after the broker has confirmed a durable copy of it.
// Every other delivery goes back to its queue.
//
//	receive → process ─ decode ─► router ─► middleware.DelayedRetry ─► handler
//	                                             │ error
//	ack ◄─ confirm ◄─ publish ◄─ compose ◄─ Group.Republish, Group.DeadLetter
//
// The package knows no strategy and no plan: Config says as plain data and functions
// where messages wait.
package consumer

import (
	"context"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/link"
	"github.com/millpond-go/millpond/internal/observe"
	"github.com/millpond-go/millpond/internal/publisher"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
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
	NoLimit = 1 << 30
	// MaxHold stands for no consumer timeout.
	MaxHold = 100 * 365 * 24 * time.Hour
)

// Group is shared by all subscriptions of a Client. Nothing changes its fields after the
// first Subscription.
type Group struct {
	Publisher *publisher.Publisher
	// Observers are told of the decisions of the subscriptions; nil for none.
	Observers *observe.List[middleware.Event]
	// ConfirmTimeout bounds each publish.
	ConfirmTimeout time.Duration

	guard guard
	turns turns
}

// Config says what a Subscription consumes and how. A field needs a value unless its
// comment names a default.
type Config struct {
	Group        *Group
	Topic, Queue string
	// Link is the connection that consumes.
	Link *link.Link
	// Frame is the largest frame that the consuming and the publishing connection take.
	Frame  int
	Logger watermill.LoggerAdapter
	// Decode makes a message of a delivery. It is the user's marshaler: it may panic.
	Decode  func(amqp.Delivery) (*message.Message, error)
	Consume Consume
	Waits   Waits
	// Prepare declares and checks everything before consuming begins. The function returns how
	// long a delivery may be held under a consumer timeout of the broker.
	Prepare func(context.Context, *link.Conn, func(time.Duration) time.Duration) (Limits, error)
	// CanStore reports what keeps messages from being stored, as far as that can be told
	// without a message. It ends an outage.
	CanStore func(context.Context) error

	// DrainTimeout bounds the wait for messages in progress at the end.
	DrainTimeout time.Duration
	// HoldLimit bounds how long a delivery is held, from its arrival. Default: only the
	// consumer timeout of the broker does.
	HoldLimit time.Duration
	// HandlerWarning is when a handler that does not return is logged. Default: never.
	HandlerWarning time.Duration
	// Timestamps says which timestamps may be the time of publishing.
	Timestamps TimestampWindow
	// RequeueOnNack gives nacked messages straight back and switches the crash guard off.
	RequeueOnNack bool
}

// Consume are the settings of the AMQP consumer.
type Consume struct {
	Concurrency, Prefetch int
	// Tag of the consumer. Default: a random one.
	Tag                string
	Exclusive, NoLocal bool
	Arguments          amqp.Table
}

// Waits says where the messages of one queue wait and where its dead letters go. It is
// only read.
type Waits struct {
	// Route returns where a message waits.
	Route func(Retry) (Route, error)
	// Given returns how long a message waits if it asks for a delay, all rounds together.
	Given func(asked time.Duration) time.Duration
	// Dead is where dead letters go.
	Dead Route
	// Via is the exchange that messages pass on their way back. Zero: they go straight to
	// their queue.
	Via Via
	// KeyKept are the exchanges behind wait queues that leave the routing key to the message.
	KeyKept []string
	// SortsPriorities says that messages wait in quorum queues, which sort by priority.
	SortsPriorities bool
	// Steps are the delays that have a wait queue, ascending.
	Steps []time.Duration
	// Resolution is the step between the delays of a strategy that knows any delay; 0 for
	// other strategies.
	Resolution time.Duration
	// Redeclare declares the part of a route again that is missing, if err says that a part
	// is. It returns nil when the message can be published once more, else the error that
	// keeps the message from the route.
	Redeclare func(ctx context.Context, route Route, err error) error
}

// Retry says how long a message must wait, and how it arrived.
type Retry struct {
	Delay time.Duration
	// Attempt that failed, 1-based; 0 for a message that is snoozed.
	Attempt int
	// Exchange and RoutingKey belong to the delivery.
	Exchange, RoutingKey string
}

// Route is where a message is published.
type Route struct {
	Exchange, RoutingKey string
	// Delay is how long the message waits there; shorter than asked if the message must wait
	// in rounds.
	Delay time.Duration
	// Hops is how many wait queues the message passes.
	Hops int
}

// Limits are the limits that the broker sets on the deliveries of the queue.
type Limits struct {
	// Deliveries is the delivery limit of the queue, NoLimit for none.
	Deliveries int
	// NackCounts says that giving a delivery back raises its count on a quorum queue, as it
	// does before RabbitMQ 4.3.
	NackCounts bool
	// ConsumerTimeout is how long the broker lets a consumer keep a delivery, as far as it
	// is known.
	ConsumerTimeout time.Duration
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
		header.Unreadable)
	// errChangedKey is why a message came to another queue than its own.
	errChangedKey = errors.New("the routing key was changed when the wait was over")
)

// isCode reports whether the broker has answered with the code.
func isCode(err error, code int) bool {
	var amqpErr *amqp.Error
	return errors.As(err, &amqpErr) && amqpErr.Code == code
}
