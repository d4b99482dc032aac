package seam

import (
	"context"
	"errors"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/middleware/header"
)

// Packages middleware and topology ask each other here for what no program needs. Each sets its
// function before main begins.
var (
	// RetryOf returns the parts of a *middleware.DelayedRetry.
	RetryOf func(retry any) Retry
	// ClientOf returns the parts of a *topology.Client, also of one that a struct embeds. It is nil in
	// a program without package topology.
	ClientOf func(republisher any) (c Client, ok bool)
)

// ErrNotYet is the error of a log line that warns. Watermill's loggers have no level for that, and
// some adapters show errors alone.
var ErrNotYet = errors.New("nothing has failed yet")

// Retry is what a Client needs of a DelayedRetry.
type Retry struct {
	// Policies returns the policies that the messages of a queue and topic may ask.
	Policies func(queue, topic string) []backoff.Policy
	Budgets  []Budget
	// Observers are those of middleware.WithObserver, []middleware.Observer.
	Observers any
	// Dead calls the hooks for a dead letter that no DelayedRetry has made.
	Dead func(
		ctx context.Context, msg *message.Message, queue, topic string, err error,
		state header.RetryState,
	)
}

// Client is what a DelayedRetry takes from its Client.
type Client struct {
	Logger    watermill.LoggerAdapter
	Observers any // []middleware.Observer
}
