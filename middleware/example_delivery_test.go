package middleware_test

import (
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/middleware/middlewaretest"
)

// One budget for all handlers that call the same downstream. Here every delivery
// fails: the first window grants two retries, and what comes beyond waits as long
// as the budget says.
func ExampleNewBudget() {
	budget, err := middleware.NewBudget(middleware.BudgetConfig{
		Window: time.Hour, Retries: 2, Delay: 5 * time.Minute,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	run(func(*message.Message) error { return errNoStock }, middleware.WithBudget(budget), middleware.WithMaxAttempts(5))
	fmt.Println("closed:", budget.State().Closed)
	// Output:
	// dead-lettered (exhausted) after 5 attempts, delays 1s 10s 5m0s 8m20s
	// closed: true
}

func ExampleNewBudget_invalid() {
	_, err := middleware.NewBudget(middleware.BudgetConfig{Window: time.Millisecond, Probes: 1})
	fmt.Println(err)
	// Output:
	// new budget: window 1ms is shorter than 10ms
	// neither share nor retries is set: nothing would ever be over budget
	// probes are for a budget with a share
}

// net/http quotes the URL of a request that failed, with the secrets in it.
func ExampleRedactURLs() {
	err := fmt.Errorf("deliver: %w", &url.Error{
		Op: "Post", URL: "https://shop.example/hooks?token=s3cret", Err: errors.New("connection refused"),
	})
	fmt.Println(err)
	fmt.Println(middleware.RedactURLs(err)) // in a program: middleware.WithErrorText(middleware.RedactURLs)
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
		fmt.Println("its context is of a delivery from", middleware.DeliveryIn(msgCopy.Context()).Queue)
		return nil
	})
	// Output:
	// delivered from orders
	// a copy was delivered: false
	// its context is of a delivery from orders
	// handled after 1 attempt
}

// With this key Watermill's Deduplicator finds what a producer has sent twice, and lets
// retries through.
func ExampleDeduplicationKey() {
	key := func(failures int) string {
		delivery := middleware.Delivery{Queue: "orders", MessageID: "order-7", State: header.RetryState{Failures: failures}}
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
