package main

import (
	"errors"

	"github.com/millpond-go/millpond/middleware/header"
)

var (
	errShopClosed   = errors.New("the shop is closed")
	errInvalidOrder = errors.New("invalid order")
)

// order is one message of the demo, and what has to become of it.
type order struct {
	name, story string
	// attempts it has to have.
	attempts int
	// dead is why it has to end in the dead-letter queue; empty if it has to be
	// handled at the last attempt.
	dead header.Reason
	// err is what its attempts fail with, but for the last of one to be handled.
	err error
}

var orders = []order{
	{name: "order-1", story: "is handled at once", attempts: 1},
	{name: "order-2", story: "fails three times, then is handled", attempts: 4, err: errShopClosed},
	{name: "order-3", story: "has a permanent error", attempts: 1, err: errInvalidOrder, dead: header.ReasonPermanent},
	{name: "order-4", story: "always fails", attempts: 4, err: errShopClosed, dead: header.ReasonExhausted},
}

// work is the business of the demo's handler: what an attempt at the order comes
// to. It would go on for ever, if somebody let it.
func (o order) work(attempt int) error {
	if o.dead == "" && attempt >= o.attempts {
		return nil
	}
	return o.err
}
