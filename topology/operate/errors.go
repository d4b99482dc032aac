package operate

import "errors"

var (
	// ErrNoQueue: the plan's dead letters go to an exchange of the user's, so that
	// their queue is not known: name it.
	ErrNoQueue = errors.New("the plan does not say which queue keeps its dead letters")
	// ErrUnreadable: the connection ended while a message was read that is too
	// large for a frame, in all likelihood; see the package's documentation.
	ErrUnreadable = errors.New("a message cannot be read")
	// ErrTooSlow: messages were held for as long as it is safe; ask for fewer.
	ErrTooSlow = errors.New("looking has taken too long")
	// ErrUnsafe: a message could be lost, or held for too long; nothing was done.
	ErrUnsafe = errors.New("not safe")
	// ErrInvalidOptions: an option makes no sense; nothing was done.
	ErrInvalidOptions = errors.New("cannot be done so")
)
