package middlewaretest_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/middlewaretest"
)

func ExampleBroker_Run() {
	broker := middlewaretest.NewBroker()
	retry, err := middleware.NewDelayedRetry(broker, backoff.List{time.Second, 10 * time.Second})
	if err != nil {
		fmt.Println(err)
		return
	}
	failures := 2
	handler := retry.Middleware(middlewaretest.Consumer(func(*message.Message) error {
		if failures--; failures >= 0 {
			return errors.New("no stock")
		}
		return nil
	}))

	msg := middlewaretest.NewMessage(middleware.Delivery{Queue: "orders"}, []byte("order 7"))
	result := broker.Run(handler, msg)
	fmt.Println(result.Outcome, result.Attempts, result.Delays)

	failures = 3
	msg = middlewaretest.NewMessage(middleware.Delivery{Queue: "orders"}, []byte("order 8"))
	result = broker.Run(handler, msg)
	fmt.Println(result)
	fmt.Println(result.State.Reason, result.State.Error)
	// Output:
	// handled 3 [1s 10s]
	// dead-lettered (exhausted) after 3 attempts, delays 1s 10s
	// exhausted no stock
}

func ExampleBroker_Calls() {
	broker := middlewaretest.NewBroker()
	retry, _ := middleware.NewDelayedRetry(broker, backoff.List{time.Second})
	handler := retry.Middleware(middlewaretest.Consumer(func(*message.Message) error {
		return errors.New("no stock")
	}))

	broker.Run(handler, middlewaretest.NewMessage(middleware.Delivery{Queue: "orders"}, nil))
	for _, call := range broker.Calls() {
		fmt.Println(call.Queue, "dead:", call.Dead, "delay:", call.Delay,
			"failures:", call.State.Failures)
	}
	// Output:
	// orders dead: false delay: 1s failures: 1
	// orders dead: true delay: 0s failures: 2
}

// A delay without a wait step waits on the next longer one, or in rounds of a shorter
// one. So the real delays are longer than the delays of the policy.
func ExampleWaitSteps() {
	broker := middlewaretest.NewBroker()
	broker.Given = middlewaretest.WaitSteps(5*time.Second, time.Minute)
	policy := backoff.Exponential{Initial: time.Second, Factor: 7, Retries: 3}
	retry, _ := middleware.NewDelayedRetry(broker, policy)
	handler := retry.Middleware(middlewaretest.Consumer(func(*message.Message) error {
		return errors.New("no stock")
	}))

	msg := middlewaretest.NewMessage(middleware.Delivery{Queue: "orders"}, nil)
	result := broker.Run(handler, msg)
	fmt.Println(result.Delays, result.Given, result.Elapsed())
	// Output: [1s 7s 49s] [5s 10s 1m0s] 1m15s
}

// While the hand-over fails, the middleware neither acks nor dead-letters. It holds
// the message, here until the Subscriber closes.
func ExampleErrRefused() {
	broker := middlewaretest.NewBroker()
	broker.FailNext(1, nil)
	retry, _ := middleware.NewDelayedRetry(broker, backoff.List{time.Second})
	handler := retry.Middleware(middlewaretest.Consumer(func(*message.Message) error {
		return errors.New("no stock")
	}))
	closing := make(chan struct{})
	close(closing)

	msg := middlewaretest.NewMessage(middleware.Delivery{Queue: "orders", Closing: closing}, nil)
	result := broker.Run(handler, msg)
	refused := errors.Is(result.Err, middlewaretest.ErrRefused)
	fmt.Println(result.Outcome, refused, len(broker.DeadLetters()))
	// Output:
	// nacked true 0
}

// A Result says how a message ended, and its calls of the Republisher.
func ExampleResult() {
	var broker *middlewaretest.Broker = middlewaretest.NewBroker()
	retry, _ := middleware.NewDelayedRetry(broker, backoff.List{time.Second})
	handler := retry.Middleware(middlewaretest.Consumer(func(*message.Message) error { return nil }))
	msg := middlewaretest.NewMessage(middleware.Delivery{Queue: "orders"}, nil)
	var result middlewaretest.Result = broker.Run(handler, msg)
	for _, outcome := range []middlewaretest.Outcome{
		middlewaretest.Handled, middlewaretest.DeadLettered, middlewaretest.Nacked,
		middlewaretest.Waiting,
	} {
		fmt.Println(outcome, result.Outcome == outcome)
	}
	var calls []middlewaretest.Call = broker.Calls()
	fmt.Println(len(calls), "calls; a run ends after", middlewaretest.MaxAttempts, "attempts")
	// Output:
	// handled true
	// dead-lettered false
	// nacked false
	// waiting false
	// 0 calls; a run ends after 250 attempts
}

// The names in the Delivery choose the policy.
func ExampleNewMessage() {
	broker := middlewaretest.NewBroker()
	retry, _ := middleware.NewDelayedRetry(broker, backoff.List{time.Second},
		middleware.WithPolicyFor(middleware.Selector{Handler: "mail"}, backoff.List{time.Hour}))
	handler := retry.Middleware(middlewaretest.Consumer(func(*message.Message) error {
		return errors.New("mailbox full")
	}))
	for _, name := range []string{"mail", "orders"} {
		delivery := middleware.Delivery{Queue: name, Handler: name, Topic: name}
		fmt.Println(broker.Run(handler, middlewaretest.NewMessage(delivery, nil)))
	}
	// Output:
	// dead-lettered (exhausted) after 2 attempts, delays 1h0m0s
	// dead-lettered (exhausted) after 2 attempts, delays 1s
}

// Dead letters of production are the cases of a test: does the mended handler handle them? The tool
// wrote them with `millpond dead export orders --all --file testdata/letters.jsonl`.
func ExampleLetters() {
	exported, err := os.Open("testdata/letters.jsonl")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer exported.Close()
	letters, err := middlewaretest.Letters(exported)
	if err != nil {
		fmt.Println(err)
		return
	}
	broker := middlewaretest.NewBroker()
	retry, _ := middleware.NewDelayedRetry(broker, backoff.List{time.Second})
	handler := retry.Middleware(middlewaretest.Consumer(func(msg *message.Message) error {
		var order struct{ Total json.RawMessage } // a number or a string, since the repair
		return json.Unmarshal(msg.Payload, &order)
	}))
	for _, letter := range letters {
		fmt.Printf("%s: %v\n", letter.Payload, broker.Run(handler, letter))
	}
	// Output:
	// {"order":8,"total":"12,50"}: handled after 1 attempt
	// {"order":7,"total":12.5}: handled after 1 attempt
}
