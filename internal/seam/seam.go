// Package seam is where budgets and brakes plug into the core, so that a program without them
// links none: middleware asks a Budget about its messages, topology lets a Brake join the other
// instances, and consumer asks a Gate.
package seam

import (
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millpond-go/millpond/internal/link"
	"github.com/millpond-go/millpond/middleware/header"
)

// Gate decides when a queue is consumed and when its next handler begins. A Subscription is given
// one when it begins, and leaves it at its end. Its methods may be called by many goroutines.
type Gate interface {
	// Shut returns a channel that is closed while the queue must not be consumed.
	Shut() <-chan struct{}
	// Await waits while the gate is shut, and reports whether it has. Meanwhile it may call take,
	// which handles one message and reports whether there was none, and rest, which ends what take
	// has kept for the next call. It calls rest before it returns.
	Await(stop <-chan struct{}, take func() (none bool), rest func()) (waited bool)
	// Later returns how long the next handler must wait; 0 if it may begin now.
	Later() time.Duration
	// Start counts a handler that begins with a message that has arrived at a time. The result is
	// nil, or must be told how many messages the queue has.
	Start(arrived time.Time) (look func(ready int))
	// SetOneActive says whether one process at a time consumes the queue.
	SetOneActive(one bool)
	// Leave ends the use of the gate.
	Leave()
}

// Budget counts deliveries and retries. Many goroutines may use it.
type Budget interface {
	// Delay is the delay of a message that is over budget, or set aside. 0 stands for the longest of
	// the policies.
	Delay() time.Duration
	// GivesUp reports whether messages over budget are dead-lettered.
	GivesUp() bool
	// Keyed reports whether each key is counted by itself. Only then Key and Undecided may be called.
	Keyed() bool
	Key(msg *message.Message) string
	// Admit reports whether a delivery goes on to its handler, and whether it is a probe of its key.
	Admit(key string) (admitted, probe bool, change Change)
	// Handled counts a delivery whose handler has returned.
	Handled(Handled) Change
	// Undecided notes that a probe of a key has not shown whether its messages can be handled.
	Undecided(key string)
	// Stopped reports whether the brake, or the key, is stopped.
	Stopped(key string) bool
	// Grant counts a retry if the budget grants it, and reports whether it does.
	Grant() (granted bool, change Change)
	// Brake returns the brake; nil if there is none.
	Brake() Brake
}

// Handled is a delivery whose handler has returned.
type Handled struct {
	Key      string
	Failed   bool
	Probe    bool // while the brake is stopped
	KeyProbe bool // while the key is stopped
}

// Change is the effect of a count on a budget, or on the budget of a key.
type Change struct {
	Deliveries, Failed, Retries int // in the window
	Closed, Opened              bool
}

// Maker makes the brake of a budget.
type Maker interface {
	// NewBrake checks everything that the maker was given. started is called when the brake starts:
	// the counts from before mean nothing any more.
	NewBrake(started func()) (Brake, error)
}

// Brake stops consuming in all instances. Many goroutines may use it.
type Brake interface {
	// State is the state of the brake, as this process knows it.
	State() header.BrakeState
	// Stopped reports whether the brake is stopped.
	Stopped() bool
	// Joined reports whether other instances would hear of a stop. If not, the brake does not stop.
	Joined() bool
	// Trip stops the brake because of failures, and reports whether it did.
	Trip(cause string) bool
	// Judge tells how the handler of a probe ended.
	Judge(succeeded bool)
	// Succeeded counts a message that was handled.
	Succeeded(now time.Time)
	// Pause is the pause before a probe, after so many in a row that did not succeed.
	Pause(failed int) time.Duration
	// EnoughSuccesses reports whether so many probes in a row start a brake.
	EnoughSuccesses(row int) bool
	// OnKey names the function that takes the news of other instances. Call it before Join.
	OnKey(heard func(KeyNews))
	// TellKey tells the other instances of a key.
	TellKey(KeyNews)

	// Join joins the other instances for a subscription of the queue. ready is closed when the state
	// of the brake is known, or cannot be. leave must be called when the subscription has ended.
	Join(host Host, queue string) (ready <-chan struct{}, leave func(), err error)
	// Gate returns the gate of a subscription that all these brakes stop; this is one of them.
	Gate(all []Brake) Gate
}

// Host is the Client of a brake.
type Host struct {
	Owner        any // a brake has one at a time
	Link         *link.Link
	Instance     string // the name of this process, different from all others
	Logger       watermill.LoggerAdapter
	Provisioned  bool     // declare nothing
	ControlUsers []string // whose news are believed. Default: all
	// Tell is told of each change of the state, with its time, and whether this process probes.
	Tell func(state header.BrakeState, at time.Time, probing bool)
}

// KeyNews tells the other instances of one key of a budget.
type KeyNews struct {
	Key  string  `json:"key"`
	Kind KeyKind `json:"kind"`
}

// KeyKind says what happened to a key.
type KeyKind string

// The kinds of KeyNews.
const (
	KeyStopped KeyKind = "stopped"
	KeyProbed  KeyKind = "probed" // a probe has begun
	KeyFailed  KeyKind = "failed" // a probe has failed
	KeyStarted KeyKind = "started"
)
