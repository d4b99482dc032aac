package docs_test

// The README's other pieces of Go, compiled: documents_test.go looks for each line here.

import (
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/middlewaretest"
)

func addMiddlewares(router *message.Router, retry *middleware.DelayedRetry) {
	router.AddMiddleware(
		wmiddleware.CorrelationID, // outside: middlewares that do not fail
		retry.Middleware,
		wmiddleware.Timeout(30*time.Second), // inside: middlewares whose errors count as failures
		wmiddleware.Recoverer,
	)
}

var _ = addMiddlewares

func Example() {
	policy := backoff.List{2 * time.Second, 5 * time.Second, 15 * time.Second}
	payload := []byte("42")
	handleOrder := func(*message.Message) error { return errors.New("shop is closed") }

	broker := middlewaretest.NewBroker()
	retry, err := middleware.NewDelayedRetry(broker, policy)
	if err != nil {
		fmt.Println(err)
		return
	}
	msg := middlewaretest.NewMessage(middleware.Delivery{Queue: "orders"}, payload)
	result := broker.Run(retry.Middleware(middlewaretest.Consumer(handleOrder)), msg)
	fmt.Println(result) // dead-lettered (exhausted) after 4 attempts, delays 2s 5s 15s
	// Output:
	// dead-lettered (exhausted) after 4 attempts, delays 2s 5s 15s
}
