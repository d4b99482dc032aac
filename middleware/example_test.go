package middleware_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/middleware/middlewaretest"
)

var (
	errInvalidOrder = errors.New("invalid order")
	errNoStock      = errors.New("no stock")
)

// tenfold is the policy of most examples.
var tenfold = backoff.Exponential{
	Initial: time.Second, Factor: 10, Max: 500 * time.Second, Retries: 5,
}

// run carries one message through its retries and prints what became of it.
// The Broker stands in for a client of the topology package.
func run(handle message.NoPublishHandlerFunc, options ...middleware.Option) {
	broker := middlewaretest.NewBroker()
	retry, err := middleware.NewDelayedRetry(broker, tenfold, options...)
	if err != nil {
		fmt.Println(err)
		return
	}
	msg := middlewaretest.NewMessage(middleware.Delivery{Queue: "orders"}, []byte("order 7"))
	fmt.Println(broker.Run(retry.Middleware(middlewaretest.Consumer(handle)), msg))
}

func ExampleNewDelayedRetry() {
	client := middlewaretest.NewBroker() // in a program: topology.Open(…)
	policy := backoff.List{2 * time.Second, 5 * time.Second, 15 * time.Second}

	retry, err := middleware.NewDelayedRetry(client, policy)
	if err != nil {
		fmt.Println(err)
		return
	}
	// router.AddMiddleware(retry.Middleware)
	handler := retry.Middleware(func(*message.Message) ([]*message.Message, error) {
		return nil, errNoStock
	})

	msg := middlewaretest.NewMessage(middleware.Delivery{Queue: "orders"}, []byte("order 7"))
	fmt.Println(client.Run(handler, msg))
	// Output: dead-lettered (exhausted) after 4 attempts, delays 2s 5s 15s
}

func ExampleNewDelayedRetry_invalid() {
	_, err := middleware.NewDelayedRetry(nil, tenfold, middleware.WithMaxAttempts(0),
		middleware.WithLogger(nil))
	fmt.Println(err)
	// Output:
	// new delayed retry: republisher is nil
	// WithMaxAttempts: 0 is less than 1
	// WithLogger: logger is nil
}

func ExampleNewDelayedRetry_noEnd() {
	_, err := middleware.NewDelayedRetry(
		middlewaretest.NewBroker(), backoff.Constant{Interval: time.Minute},
	)
	fmt.Println(errors.Is(err, backoff.ErrNoEnd))
	// Output: true
}

func ExamplePermanent() {
	run(func(*message.Message) error {
		return fmt.Errorf("order 7: %w", middleware.Permanent(errInvalidOrder))
	})
	// Output: dead-lettered (permanent) after 1 attempt
}

func ExampleRetryable() {
	handle := func(msg *message.Message) error {
		switch middleware.Attempt(msg.Context()) {
		case 1:
			return middleware.Retryable(errNoStock)
		default:
			return errNoStock
		}
	}
	run(handle, middleware.WithDefaultClass(header.ClassPermanent))
	// Output: dead-lettered (permanent) after 2 attempts, delays 1s
}

func ExampleRetryAfter() {
	run(func(msg *message.Message) error {
		if middleware.Attempt(msg.Context()) < 3 {
			return middleware.RetryAfter(errNoStock, 5*time.Second) // the policy waits for 1s, then for 10s
		}
		return nil
	})
	// Output: handled after 3 attempts, delays 5s 10s
}

func ExamplePermanentErrors() {
	run(func(*message.Message) error { return fmt.Errorf("order 7: %w", errInvalidOrder) },
		middleware.WithClassifier(middleware.PermanentErrors(errInvalidOrder)))
	// Output: dead-lettered (permanent) after 1 attempt
}

func ExampleClassifierFunc() {
	timeouts := middleware.ClassifierFunc(func(err error) (header.Class, bool) {
		return header.ClassRetryable, errors.Is(err, context.DeadlineExceeded)
	})
	run(func(msg *message.Message) error {
		if middleware.Attempt(msg.Context()) == 1 {
			return context.DeadlineExceeded
		}
		return errInvalidOrder
	}, middleware.WithClassifier(timeouts), middleware.WithDefaultClass(header.ClassPermanent))
	// Output: dead-lettered (permanent) after 2 attempts, delays 1s
}

func ExampleAttempt() {
	run(func(msg *message.Message) error {
		ctx := msg.Context() // a CQRS handler is given the same one
		fmt.Printf("attempt %d, last: %v\n", middleware.Attempt(ctx), middleware.LastAttempt(ctx))
		return errNoStock
	}, middleware.WithMaxAttempts(3))
	// Output:
	// attempt 1, last: false
	// attempt 2, last: false
	// attempt 3, last: true
	// dead-lettered (exhausted) after 3 attempts, delays 1s 10s
}

func ExampleStateOf() {
	handle := func(msg *message.Message) error {
		state := middleware.StateOf(msg.Context())
		fmt.Println("first came with", state.OriginExchange, state.OriginRoutingKey)
		for _, past := range state.History {
			fmt.Printf(
				"attempt %d: %s, %s, next after %s\n", past.Attempt, past.Error, past.Class, past.Delay,
			)
			fmt.Println("failing for", time.Since(state.FirstFailure).Round(time.Second))
		}
		return errNoStock
	}
	broker := middlewaretest.NewBroker()
	retry, _ := middleware.NewDelayedRetry(broker, tenfold, middleware.WithMaxAttempts(2))
	broker.Run(retry.Middleware(
		middlewaretest.Consumer(handle),
	), middlewaretest.NewMessage(middleware.Delivery{
		Queue: "orders",
		State: header.RetryState{OriginExchange: "shop", OriginRoutingKey: "order.created"},
	}, []byte("order 7")))
	// Output:
	// first came with shop order.created
	// first came with shop order.created
	// attempt 1: no stock, retryable, next after 1s
	// failing for 1s
}

func ExamplePanicError() {
	bugs := middleware.ClassifierFunc(func(err error) (header.Class, bool) {
		var panicked *middleware.PanicError
		if !errors.As(err, &panicked) {
			return "", false
		}
		fmt.Printf("%v (a stack of %t)\n", panicked, len(panicked.Stack) > 0)
		return header.ClassPermanent, true
	})
	run(func(*message.Message) error { panic("index out of range") }, middleware.WithClassifier(bugs))
	// Output:
	// panic: index out of range (a stack of true)
	// dead-lettered (permanent) after 1 attempt
}

// The router gets this error when the message cannot be handed over. Here shutdown has begun, so
// the message cannot be held.
func Example_errNotHandedOver() {
	broker := middlewaretest.NewBroker()
	broker.FailNext(1, errors.New("publish was not confirmed"))
	retry, _ := middleware.NewDelayedRetry(broker, tenfold)
	closing := make(chan struct{})
	close(closing)

	result := broker.Run(
		retry.Middleware(middlewaretest.Consumer(func(*message.Message) error { return errNoStock })),
		middlewaretest.NewMessage(middleware.Delivery{Queue: "orders", Closing: closing}, nil),
	)
	fmt.Println(result.Outcome, errors.Is(result.Err, middleware.ErrNotHandedOver),
		errors.Is(result.Err, errNoStock))
	// Output: nacked true true
}

// A stale delivery is already back in its queue.
func Example_errInterrupted() {
	broker := middlewaretest.NewBroker()
	retry, _ := middleware.NewDelayedRetry(broker, tenfold)
	gone := make(chan struct{})

	result := broker.Run(
		retry.Middleware(middlewaretest.Consumer(func(*message.Message) error {
			close(gone) // the connection is lost while the handler runs
			return errNoStock
		})),
		middlewaretest.NewMessage(middleware.Delivery{Queue: "orders", Gone: gone}, nil),
	)
	fmt.Println(result.Outcome, errors.Is(result.Err, middleware.ErrInterrupted), len(broker.Calls()))
	// Output: nacked true 0
}

// A middleware above that hands a copy of the message down takes the delivery from it.
func Example_errNotDelivered() {
	broker := middlewaretest.NewBroker()
	broker.FailNext(1, middleware.ErrNotDelivered)
	retry, _ := middleware.NewDelayedRetry(broker, tenfold)

	result := broker.Run(
		retry.Middleware(middlewaretest.Consumer(func(*message.Message) error { return errNoStock })),
		message.NewMessage("copy", nil),
	)
	fmt.Println(result.Outcome, errors.Is(result.Err, middleware.ErrNotDelivered))
	// Output: nacked true
}

// An Observer sorts events by their kind.
func ExampleEventKind() {
	var observer middleware.Observer = middleware.ObserverFunc(
		func(_ context.Context, e middleware.Event) {
			switch kind := middleware.EventKind(e.Kind); kind {
			case middleware.EventHandled:
				fmt.Println("done at attempt", e.Attempt)
			case middleware.EventRetried, middleware.EventSnoozed:
				fmt.Println("comes back after", e.DelayGiven)
			case middleware.EventDeadLettered:
				fmt.Println("given up:", e.Reason)
			case middleware.EventRequeued, middleware.EventSelfSettled, middleware.EventCrashRound:
				fmt.Println("not counted:", e.Kind)
			case middleware.EventFailing, middleware.EventRecovered:
				fmt.Println("hand-over:", e.Kind)
			case middleware.EventBudgetClosed, middleware.EventBudgetOpened:
				fmt.Println("budget:", e.Kind)
			case middleware.EventStranded:
				fmt.Println(e.Messages, "messages in", e.Queue)
			}
		})
	calls := 0
	run(func(*message.Message) error {
		if calls++; calls == 1 {
			return errNoStock
		}
		return nil
	}, middleware.WithObserver(observer))
	// Output:
	// comes back after 1s
	// done at attempt 2
	// handled after 2 attempts, delays 1s
}

// A Classifier is any type with one method.
type byStatus struct{}

func (byStatus) Classify(err error) (header.Class, bool) {
	var status interface{ Status() int }
	if !errors.As(err, &status) || status.Status() < 400 || status.Status() > 499 {
		return "", false
	}
	return header.ClassPermanent, true
}

func ExampleClassifier() {
	var classifier middleware.Classifier = byStatus{}
	_, known := classifier.Classify(errNoStock)
	fmt.Println(known)
	// Output: false
}

// logging is a Republisher around another one.
type logging struct{ middleware.Republisher }

func (l logging) Republish(
	ctx context.Context, msg *message.Message, delay time.Duration, state header.RetryState,
) (middleware.Republished, error) {
	done, err := l.Republisher.Republish(ctx, msg, delay, state)
	fmt.Println("asked for", delay, "given", done.Delay)
	return done, err
}

// A Republisher hands a failed message over. The middleware acks only after it returns nil.
func ExampleRepublisher() {
	var republisher middleware.Republisher = logging{middlewaretest.NewBroker()}
	options := []middleware.Option{
		middleware.WithMaxAge(time.Hour),
		middleware.WithErrorText(func(error) string { return "(withheld)" }),
	}
	var retry *middleware.DelayedRetry
	retry, err := middleware.NewDelayedRetry(republisher, backoff.List{time.Minute}, options...)
	if err != nil {
		fmt.Println(err)
		return
	}
	msg := middlewaretest.NewMessage(middleware.Delivery{Queue: "orders"}, nil)
	fail := func(*message.Message) error { return errNoStock }
	_, err = retry.Middleware(middlewaretest.Consumer(fail))(msg)
	fmt.Println(err, middleware.Republished{Delay: time.Minute}.Reason == "")
	// Output:
	// asked for 1m0s given 1m0s
	// <nil> true
}

// A Subscriber attaches a Delivery to each message that it hands out.
func ExampleAttached() {
	msg := message.NewMessage("7", nil)
	attached := &middleware.Attached{Delivery: middleware.Delivery{Queue: "orders"}}
	attached.Attach(msg)
	fmt.Println(middleware.DeliveryOf(msg.Context(), msg).Queue, attached.Unsettled())
	// Output: orders false
}
