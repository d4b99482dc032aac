package middleware_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/middlewaretest"
)

var errShopClosed = errors.New("shop is closed")

func ExampleSnooze() {
	deliveries := 0
	run(func(msg *message.Message) error {
		deliveries++
		fmt.Println("delivery", deliveries, "attempt", middleware.Attempt(msg.Context()))
		if deliveries < 3 {
			return middleware.Snooze(errShopClosed, 10*time.Minute)
		}
		return nil
	})
	// Output:
	// delivery 1 attempt 1
	// delivery 2 attempt 1
	// delivery 3 attempt 1
	// handled after 1 attempt, snoozed 10m0s 10m0s
}

// A circuit breaker that is open says nothing about the message.
func ExampleWithSnoozeFor() {
	errOpen := errors.New("circuit breaker is open") // gobreaker.ErrOpenState
	open := true
	run(func(*message.Message) error { // CircuitBreaker around the handler
		if open {
			open = false
			return errOpen
		}
		return nil
	}, middleware.WithSnoozeFor(time.Minute, errOpen))
	// Output: handled after 1 attempt, snoozed 1m0s
}

func ExampleWithSnoozeLimit() {
	run(func(*message.Message) error {
		return middleware.Snooze(errShopClosed, 20*time.Minute)
	}, middleware.WithSnoozeLimit(time.Hour), middleware.WithMaxAttempts(2))
	// Output: dead-lettered (exhausted) after 2 attempts, delays 20m0s, snoozed 20m0s 20m0s
}

func ExampleFirstSeen() {
	run(func(msg *message.Message) error {
		since, seen := middleware.FirstSeen(msg.Context())
		if !seen {
			return middleware.Snooze(errShopClosed, time.Hour)
		}
		fmt.Println("set aside for", time.Since(since).Round(time.Minute))
		return nil
	})
	// Output:
	// set aside for 1h0m0s
	// handled after 1 attempt, snoozed 1h0m0s
}

func ExampleWithPolicyFor() {
	broker := middlewaretest.NewBroker()
	retry, err := middleware.NewDelayedRetry(broker, tenfold,
		middleware.WithPolicyFor(middleware.Selector{Queue: "mails"}, backoff.List{time.Hour}),
		middleware.WithPolicyFor(middleware.Selector{Error: middleware.NetworkErrors()}, backoff.Constant{
			Interval: time.Second, Retries: 3,
		}),
		middleware.WithPolicyFor(
			middleware.Selector{Queue: "orders", Error: middleware.RetryableErrors(errNoStock)},
			backoff.List{time.Minute, time.Hour},
		),
	)
	if err != nil {
		fmt.Println(err)
		return
	}
	// In a program: client.NewSubscriber(cfg, topology.ForPolicy(retry.Policies()...))
	fmt.Println(len(retry.Policies()), "policies")

	handler := retry.Middleware(middlewaretest.Consumer(func(*message.Message) error { return errNoStock }))
	for _, queue := range []string{"orders", "mails", "parcels"} {
		msg := middlewaretest.NewMessage(middleware.Delivery{Queue: queue}, nil)
		fmt.Println(queue, broker.Run(handler, msg).Delays)
	}
	// Output:
	// 4 policies
	// orders [1m0s 1h0m0s]
	// mails [1h0m0s]
	// parcels [1s 10s 1m40s 8m20s 8m20s]
}

func ExampleWithKeptMetadata() {
	run(func(msg *message.Message) error {
		if msg.Metadata.Get("step") == "paid" {
			return nil // charge no card twice
		}
		msg.Metadata.Set("step", "paid")
		return errNoStock
	}, middleware.WithKeptMetadata("step"))
	// Output: handled after 2 attempts, delays 1s
}

func ExampleWithDeadLetterHook() {
	run(func(*message.Message) error { return errNoStock },
		middleware.WithMaxAttempts(2),
		middleware.WithDeadLetterHook(func(_ context.Context, dead middleware.DeadLetter) {
			fmt.Printf("%s of %s: %v, %s\n", dead.Message.Payload, dead.Queue, dead.Err, dead.State.Reason)
			for _, attempt := range dead.State.History {
				fmt.Printf("attempt %d: %s\n", attempt.Attempt, attempt.Error)
			}
		}))
	// Output:
	// order 7 of orders: no stock, exhausted
	// attempt 1: no stock
	// attempt 2: no stock
	// dead-lettered (exhausted) after 2 attempts, delays 1s
}
