package budget_test

import (
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/budget"
	"github.com/millpond-go/millpond/middleware/middlewaretest"
	"github.com/millpond-go/millpond/middleware/outage"
)

// Every instance that calls the payment provider has a budget with this name. While more than half
// of the payments of one instance fail, all of them stop consuming, and one message at a time
// probes.
func ExampleNew_brake() {
	var payments *budget.Budget
	payments, err := budget.New(budget.Config{
		Share: 0.5, Brake: outage.Brake{Name: "payments", Ramp: time.Minute},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	broker := middlewaretest.NewBroker() // in a program: the topology.Client
	_, err = middleware.NewDelayedRetry(broker, backoff.List{time.Second, time.Minute},
		middleware.WithBudget(payments, middleware.Selector{Error: middleware.NetworkErrors()}))
	if err != nil {
		fmt.Println(err)
		return
	}
	// in a program: client.NewSubscriber(config, topology.For(retry))
	state := payments.State()
	fmt.Println(state.Name, "stopped:", state.Stopped)
	// Output: payments stopped: false
}

// Each customer has an endpoint. When one endpoint is out, the messages for it are set aside.
func ExampleNew_key() {
	budget, err := budget.New(budget.Config{
		Share: 0.5, Minimum: 2, Brake: outage.Brake{Name: "endpoints"},
		Key: func(msg *message.Message) string { return msg.Metadata.Get("customer") },
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	broker := middlewaretest.NewBroker()
	retry, err := middleware.NewDelayedRetry(broker, backoff.List{time.Second, time.Minute},
		middleware.WithBudget(budget))
	if err != nil {
		fmt.Println(err)
		return
	}
	calls := map[string]int{}
	handle := retry.Middleware(middlewaretest.Consumer(func(msg *message.Message) error {
		customer := msg.Metadata.Get("customer")
		calls[customer]++
		if customer == "acme" {
			return errors.New("connection refused")
		}
		return nil
	}))
	for range 10 {
		for _, customer := range []string{"acme", "globex"} {
			msg := middlewaretest.NewMessage(middleware.Delivery{Queue: "hooks"}, nil)
			msg.Metadata.Set("customer", customer)
			_, _ = handle(msg)
		}
	}
	fmt.Println(calls)
	// Output: map[acme:2 globex:10]
}

func ExampleNew_invalid() {
	_, err := budget.New(budget.Config{Window: time.Millisecond, Probes: 1})
	fmt.Println(err)
	// Output:
	// new budget: window 1ms is shorter than 10ms
	// neither share nor retries is set: nothing would ever be over budget
	// probes are for a budget with a share
}
