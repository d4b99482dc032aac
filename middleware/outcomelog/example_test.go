package outcomelog_test

import (
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/middlewaretest"
	"github.com/millpond-go/millpond/middleware/outcomelog"
)

func ExampleNew() {
	logger := watermill.NewCaptureLogger() // in a service: watermill.NewSlogLogger
	broker := middlewaretest.NewBroker()
	retry, err := middleware.NewDelayedRetry(broker, backoff.List{time.Second},
		middleware.WithLogger(logger),
		middleware.WithObserver(outcomelog.New(logger, middleware.EventHandled)))
	if err != nil {
		fmt.Println(err)
		return
	}
	handler := retry.Middleware(middlewaretest.Consumer(func(msg *message.Message) error {
		if middleware.Attempt(msg.Context()) == 1 {
			return errors.New("no stock")
		}
		return nil
	}))
	broker.Run(handler, middlewaretest.NewMessage(middleware.Delivery{Queue: "orders"}, nil))
	for _, line := range logger.Captured()[watermill.InfoLogLevel] {
		fmt.Printf("%s: attempt %v\n", line.Msg, line.Fields["attempt"])
	}
	// Output:
	// Message will be retried: attempt 1
	// Outcome of a message: attempt 2
}
