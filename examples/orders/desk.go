package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/ThreeDotsLabs/watermill/components/cqrs"

	"github.com/millpond-go/millpond/middleware"
)

// PlaceOrder is a command.
type PlaceOrder struct {
	Order int
	Item  string
}

// OrderPlaced is an event.
type OrderPlaced struct {
	Order int
	Item  string
}

var errBankAway = errors.New("the bank does not answer")

// desk is the business.
type desk struct {
	mu   sync.Mutex
	out  io.Writer
	done chan struct{}
}

func (d *desk) say(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	fmt.Fprintf(d.out, format+"\n", args...)
}

// place handles the command. A publish that fails makes the command fail, and it
// is retried: events may repeat.
func (d *desk) place(events *cqrs.EventBus) cqrs.CommandHandler {
	return cqrs.NewCommandHandler("place", func(ctx context.Context, command *PlaceOrder) error {
		d.say("order %d of %s is placed", command.Order, command.Item)
		return events.Publish(ctx, &OrderPlaced{Order: command.Order, Item: command.Item})
	})
}

// bill fails twice. A handler of CQRS is given the message's context, which is all
// that millpond's accessors need.
func (d *desk) bill() cqrs.EventHandler {
	return cqrs.NewEventHandler("billing", func(ctx context.Context, event *OrderPlaced) error {
		attempt := middleware.Attempt(ctx)
		if attempt < 3 {
			d.say("order %d is not billed at attempt %d: %v", event.Order, attempt, errBankAway)
			return errBankAway
		}
		d.say("order %d is billed at attempt %d", event.Order, attempt)
		d.done <- struct{}{}
		return nil
	})
}

func (d *desk) ship() cqrs.EventHandler {
	return cqrs.NewEventHandler("shipping", func(ctx context.Context, event *OrderPlaced) error {
		d.say("order %d is shipped at attempt %d", event.Order, middleware.Attempt(ctx))
		d.done <- struct{}{}
		return nil
	})
}
