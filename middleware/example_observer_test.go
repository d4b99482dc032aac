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
	handler := retry.Middleware(middlewaretest.Consumer(func(*message.Message) error { return errors.New("no stock") }))
	broker.Run(handler, middlewaretest.NewMessage(middleware.Delivery{Queue: "orders"}, nil))
	// Output:
	// attempt 1 retried retryable  1s no stock
	// attempt 2 dead_lettered retryable exhausted 0s no stock
}
