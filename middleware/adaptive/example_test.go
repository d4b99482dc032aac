package adaptive_test

import (
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/adaptive"
	"github.com/millpond-go/millpond/middleware/middlewaretest"
)

// The delays are longer while the service is out, and shorter when it is back.
func ExampleNew() {
	var health *adaptive.Health
	health, err := adaptive.New(time.Minute)
	if err != nil {
		fmt.Println(err)
		return
	}
	policy := backoff.Adaptive{
		Policy: backoff.Exponential{Initial: time.Second, Factor: 2, Retries: 2},
		Health: health.Recent,
	}
	broker := middlewaretest.NewBroker()
	retry, err := middleware.NewDelayedRetry(broker, policy, middleware.WithObserver(health))
	if err != nil {
		fmt.Println(err)
		return
	}
	out := false
	handler := retry.Middleware(middlewaretest.Consumer(func(*message.Message) error {
		if out {
			return errors.New("the service is out")
		}
		return nil
	}))
	order := func() middlewaretest.Result {
		return broker.Run(handler,
			middlewaretest.NewMessage(middleware.Delivery{Queue: "orders"}, nil))
	}

	out = true
	fmt.Println("at first ", order().Delays)
	for range 40 {
		order()
	}
	fmt.Println("later    ", order().Delays)
	out = false
	for range 400 {
		order()
	}
	out = true
	fmt.Println("and again", order().Delays)
	// Output:
	// at first  [1s 2s]
	// later     [8s 16s]
	// and again [500ms 1s]
}
