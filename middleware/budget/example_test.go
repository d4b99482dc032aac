package budget_test

import (
	"fmt"
	"time"

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
	// in a program: client.NewSubscriber(config, retry)
	state := payments.State()
	fmt.Println(state.Name, "stopped:", state.Stopped)
	// Output: payments stopped: false
}

func ExampleNew_invalid() {
	_, err := budget.New(budget.Config{Window: time.Millisecond, Probes: 1})
	fmt.Println(err)
	// Output:
	// new budget: window 1ms is shorter than 10ms
	// neither share nor retries is set: nothing would ever be over budget
	// probes are for a budget with a share
}
