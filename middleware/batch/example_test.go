package batch_test

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/batch"
	"github.com/millpond-go/millpond/middleware/middlewaretest"
)

// One call inserts three rows. The row that fails comes back alone.
func ExampleHandler() {
	handle := batch.Handler(3, 10*time.Millisecond, func(rows []*message.Message) []error {
		fmt.Println("insert", len(rows))
		errs := make([]error, len(rows))
		for i, row := range rows {
			if string(row.Payload) == "row 2" && middleware.Attempt(row.Context()) == 1 {
				errs[i] = errors.New("deadlock")
			}
		}
		return errs
	})

	broker := middlewaretest.NewBroker()
	retry, err := middleware.NewDelayedRetry(broker, backoff.List{time.Minute})
	if err != nil {
		fmt.Println(err)
		return
	}
	results := make([]middlewaretest.Result, 3)
	var wg sync.WaitGroup
	for i := range results {
		wg.Go(func() {
			payload := fmt.Appendf(nil, "row %d", i)
			msg := middlewaretest.NewMessage(middleware.Delivery{Queue: "rows"}, payload)
			results[i] = broker.Run(retry.Middleware(middlewaretest.Consumer(handle)), msg)
		})
	}
	wg.Wait()
	for _, result := range results {
		fmt.Println(result)
	}
	// Output:
	// insert 3
	// insert 1
	// handled after 1 attempt
	// handled after 1 attempt
	// handled after 2 attempts, delays 1m0s
}
