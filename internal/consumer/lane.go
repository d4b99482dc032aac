package consumer

import (
	"context"

	"github.com/ThreeDotsLabs/watermill"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/link"
	"github.com/millpond-go/millpond/middleware/header"
)

// This file has the seam "which": which delivery of a queue begins next. Without a room there, they
// begin as they arrive.

// Lanes consume a queue whose deliveries do not begin as they arrive.
type Lanes interface {
	// Open consumes the queue on a connection. Join gives the channel to its lane.
	Open(s *Subscription, conn *link.Conn, limits Limits, use Use) (*Channel, error)
}

// Lane decides which delivery of a channel begins next. It may consume further queues.
type Lane interface {
	// Run starts the lane. It offers one delivery at a time and waits for its Begin. halt stops the
	// lane, and returns when it has stopped. ended is closed when nothing begins any more.
	Run() (offers <-chan Arrival, ended <-chan struct{}, halt func())
	// Idle reports that no delivery waits for its handler, as far as is known.
	Idle() bool
	// Over reports that all deliveries must come again, so that nothing begins any more, and GiveBack
	// gives them back.
	Over() bool
	GiveBack()
	// Release ends the lane. Its channels are closed when the messages in progress are settled.
	Release()
}

// Step answers for one delivery of a lane.
type Step interface {
	// Begin takes the delivery if it may begin still. Otherwise the lane keeps it, and may offer it
	// again.
	Begin() bool
	Task() Task
	// While returns ctx until the delivery may publish no more; gone is done when it is stale.
	While(ctx, gone context.Context) (while context.Context, end func())
	// Copy and Dead add headers to the copy that waits and to the dead letter, and Dying is called
	// before a dead letter is published.
	Copy(headers amqp.Table)
	Dying(ctx, gone context.Context) error
	Dead(headers amqp.Table)
	// Epoch is the fencing token of the handler; 0 for none.
	Epoch() uint64
	// Ended is called when the delivery has ended, but not after the drain timeout.
	Ended(Outcome)
}

// Task says how a delivery is treated.
type Task int

// The tasks.
const (
	Handle Task = iota
	Follow      // a copy waits behind other messages, without a handler
	Blame       // it may have ended the process, and is isolated or dead-lettered
)

// Outcome is the end of a delivery.
type Outcome struct {
	Acked  bool // else it comes again
	Copied bool // its last copy waits, or is dead
	Died   bool // that was a dead letter
}

// asArrived is the Step of a delivery without a lane.
type asArrived struct{}

func (asArrived) Begin() bool                      { return true }
func (asArrived) Task() Task                       { return Handle }
func (asArrived) Copy(amqp.Table)                  {}
func (asArrived) Dying(_, _ context.Context) error { return nil }
func (asArrived) Dead(amqp.Table)                  {}
func (asArrived) Epoch() uint64                    { return 0 }
func (asArrived) Ended(Outcome)                    {}
func (asArrived) While(ctx, _ context.Context) (context.Context, func()) {
	return ctx, func() {}
}

// noLane is the Lane of a channel without one.
type noLane struct{}

func (noLane) Run() (<-chan Arrival, <-chan struct{}, func()) { return nil, nil, func() {} }
func (noLane) Idle() bool                                     { return true }
func (noLane) Over() bool                                     { return false }
func (noLane) GiveBack()                                      {}
func (noLane) Release()                                       {}

// The rest of this file is what a lane may use.

// Config is how the Subscription was made.
func (s *Subscription) Config() *Config { return &s.cfg }

// Stop is done when no further message is taken.
func (s *Subscription) Stop() context.Context { return s.stop }

// Logger names the topic and the queue.
func (s *Subscription) Logger() watermill.LoggerAdapter { return s.logger }

// Go calls f in a goroutine for which Close waits.
func (s *Subscription) Go(f func()) { s.wg.Go(f) }

// State reads the headers of a retry of a queue.
func State(queue string, raw *amqp.Delivery) header.RetryState {
	return header.Parse(queue, func(key string) (string, bool) {
		text, ok := raw.Headers[key].(string)
		return text, ok
	})
}
