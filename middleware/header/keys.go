package header

import "github.com/millpond-go/millpond/internal/keys"

// Queue names the queue to which the headers of a message belong that waits or returns. On any
// other queue they are dropped. docs/wire.md has the others; Parse reads them.
const Queue = keys.Queue

// Keys of a dead letter, which replace the live headers.
const (
	// DeadReason is the [Reason] for dead-lettering.
	DeadReason = keys.DeadReason
	// DeadAt is the time of dead-lettering.
	DeadAt = keys.DeadAt
	// DeadQueue is the queue whose handler gave up.
	DeadQueue = keys.DeadQueue
	// DeadHandler is the name of that handler.
	DeadHandler = keys.DeadHandler
	// DeadFailures counts its failures.
	DeadFailures = keys.DeadFailures
	// DeadError is the text of the last error, cut.
	DeadError = keys.DeadError
	// DeadClass is the class of the last error.
	DeadClass = keys.DeadClass
)

// Replays is the key that counts how often package operate moved a dead letter
// back. It is neither a live header nor one of a dead letter: it stays on the
// message.
const Replays = "millpond-replays"

// Keys of a message that package operate has changed before it moved the message
// back, of the last change. They stay on the message, too.
const (
	// EditedAt is the time of the change.
	EditedAt = "millpond-edited-at"
	// EditedBy names the person or the program.
	EditedBy = "millpond-edited-by"
)
