package middleware_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/budget"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/middleware/middlewaretest"
)

// One budget for all handlers that call the same downstream. Here every delivery fails: the first
// window grants two retries, and further retries wait as long as the budget says.
func ExampleWithBudget() {
	shared, err := budget.New(budget.Config{
		Window: time.Hour, Retries: 2, Delay: 5 * time.Minute,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	var of middleware.Budget = shared
	run(func(*message.Message) error { return errNoStock }, middleware.WithBudget(of),
		middleware.WithMaxAttempts(5))
	fmt.Println("closed:", shared.Closed())
	// Output:
	// dead-lettered (exhausted) after 5 attempts, delays 1s 10s 5m0s 8m20s
	// closed: true
}

// net/http quotes the URL of a request that failed, with the secrets in it.
func ExampleRedactURLs() {
	err := fmt.Errorf("deliver: %w", &url.Error{
		Op: "Post", URL: "https://shop.example/hooks?token=s3cret", Err: errors.New("connection refused"),
	})
	fmt.Println(err)
	// in a program: middleware.WithErrorText(middleware.RedactURLs)
	fmt.Println(middleware.RedactURLs(err))
	// Output:
	// deliver: Post "https://shop.example/hooks?token=s3cret": connection refused
	// deliver: Post "https://shop.example": connection refused
}

// A Republisher of your own asks for the delivery of the message it is given. A
// copy has the context, but no delivery.
func ExampleDeliveryOf() {
	run(func(msg *message.Message) error {
		msgCopy := msg.Copy()
		msgCopy.SetContext(msg.Context())
		fmt.Println("delivered from", middleware.DeliveryOf(msg.Context(), msg).Queue)
		fmt.Println("a copy was delivered:", middleware.DeliveryOf(msgCopy.Context(), msgCopy) != nil)
		fmt.Println(
			"its context is of a delivery from", middleware.DeliveryOf(msgCopy.Context(), nil).Queue,
		)
		return nil
	})
	// Output:
	// delivered from orders
	// a copy was delivered: false
	// its context is of a delivery from orders
	// handled after 1 attempt
}

// With this key Watermill's Deduplicator finds messages that a producer has sent twice, and lets
// retries through.
func ExampleDeduplicationKey() {
	key := func(failures int) string {
		delivery := middleware.Delivery{
			Queue: "orders", MessageID: "order-7", State: header.RetryState{Failures: failures},
		}
		key, err := middleware.DeduplicationKey(middlewaretest.NewMessage(delivery, nil))
		if err != nil {
			fmt.Println(err)
		}
		return key
	}
	first, again, retried := key(0), key(0), key(1)
	fmt.Println("sent twice, one key:", first == again)
	fmt.Println("a retry, another key:", first != retried)
	// Output:
	// sent twice, one key: true
	// a retry, another key: true
}

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

	handler := retry.Middleware(
		middlewaretest.Consumer(func(*message.Message) error { return errNoStock }),
	)
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

func ExampleWithObserver() {
	broker := middlewaretest.NewBroker()
	retry, err := middleware.NewDelayedRetry(broker, backoff.List{time.Second},
		middleware.WithObserver(middleware.ObserverFunc(func(_ context.Context, e middleware.Event) {
			fmt.Println("attempt", e.Attempt, e.Kind, e.Class, e.Reason, e.DelayAsked, e.ErrorText())
		})),
	)
	if err != nil {
		fmt.Println(err)
		return
	}
	handler := retry.Middleware(
		middlewaretest.Consumer(func(*message.Message) error { return errors.New("no stock") }),
	)
	broker.Run(handler, middlewaretest.NewMessage(middleware.Delivery{Queue: "orders"}, nil))
	// Output:
	// attempt 1 retried retryable  1s no stock
	// attempt 2 dead_lettered retryable exhausted 0s no stock
}

// DelayedRetry logs no success, because that would be a line for each message. An observer can.
func ExampleWithObserver_successes() {
	logger := watermill.NewCaptureLogger() // in a service: watermill.NewSlogLogger
	broker := middlewaretest.NewBroker()
	retry, err := middleware.NewDelayedRetry(broker, backoff.List{time.Second},
		middleware.WithObserver(middleware.ObserverFunc(func(_ context.Context, e middleware.Event) {
			if e.Kind == middleware.EventHandled {
				logger.Info("Message handled", watermill.LogFields{
					"message_id": e.MessageID, "queue": e.Queue, "attempt": e.Attempt,
					"total_time": max(e.Age, e.Duration), // with all waits
				})
			}
		})),
	)
	if err != nil {
		fmt.Println(err)
		return
	}
	handler := retry.Middleware(middlewaretest.Consumer(func(*message.Message) error { return nil }))
	broker.Run(handler, middlewaretest.NewMessage(middleware.Delivery{Queue: "orders"}, nil))
	for _, line := range logger.Captured()[watermill.InfoLogLevel] {
		fmt.Println(line.Msg, line.Fields["queue"], line.Fields["attempt"])
	}
	// Output: Message handled orders 1
}

// answer is the response of a server that is asked too often.
func answer(retryAfter string) *http.Response {
	return &http.Response{
		StatusCode: http.StatusTooManyRequests, Status: "429 Too Many Requests",
		Header: http.Header{"Retry-After": {retryAfter}},
	}
}

func ExampleRetryAfterHeader() {
	run(func(msg *message.Message) error {
		if middleware.Attempt(msg.Context()) == 3 {
			return nil
		}
		resp := answer("7") // the policy waits for 1s, then for 10s
		return middleware.RetryAfterHeader(fmt.Errorf("deliver: %s", resp.Status), resp.Header, time.Hour)
	})
	// Output: handled after 3 attempts, delays 7s 10s
}

// A rate limit says nothing about the message: with Snooze it costs no attempt. Without a
// Retry-After in the response the message would come back after a minute.
func ExampleRetryAfterHeader_snooze() {
	limited := 0
	run(func(*message.Message) error {
		resp := answer("90")
		if limited++; limited > 3 {
			return nil
		}
		err := middleware.Snooze(fmt.Errorf("deliver: %s", resp.Status), time.Minute)
		return middleware.RetryAfterHeader(err, resp.Header, time.Hour)
	})
	// Output: handled after 1 attempt, snoozed 1m30s 1m30s 1m30s
}
