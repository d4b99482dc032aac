package middleware_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/budget"
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

func ExampleMessageID() {
	broker := middlewaretest.NewBroker()
	retry, _ := middleware.NewDelayedRetry(broker, backoff.List{time.Second})
	broker.Run(retry.Middleware(middlewaretest.Consumer(func(msg *message.Message) error {
		ctx := msg.Context()
		fmt.Println(middleware.MessageID(ctx), "attempt", middleware.Attempt(ctx))
		return errNoStock
	})), middlewaretest.NewMessage(middleware.Delivery{Queue: "orders", MessageID: "order-7"}, nil))
	// Output:
	// order-7 attempt 1
	// order-7 attempt 2
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
		middleware.WithLogger(watermill.NopLogger{}),
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

// One budget for all handlers that call the same downstream. Here every delivery fails: the first
// window grants two retries, and further retries wait as long as the budget says.
func ExampleWithBudget() {
	shared, err := budget.New(budget.Config{
		Window: time.Hour, Retries: 2, Delay: 5 * time.Minute,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	var of middleware.Budget = shared
	run(func(*message.Message) error { return errNoStock }, middleware.WithBudget(of),
		middleware.WithMaxAttempts(5))
	fmt.Println("closed:", shared.Closed())
	// Output:
	// dead-lettered (exhausted) after 5 attempts, delays 1s 10s 5m0s 8m20s
	// closed: true
}

// net/http quotes the URL of a request that failed, with the secrets in it.
func ExampleRedactURLs() {
	err := fmt.Errorf("deliver: %w", &url.Error{
		Op: "Post", URL: "https://shop.example/hooks?token=s3cret", Err: errors.New("connection refused"),
	})
	fmt.Println(err)
	// in a program: middleware.WithErrorText(middleware.RedactURLs)
	fmt.Println(middleware.RedactURLs(err))
	// Output:
	// deliver: Post "https://shop.example/hooks?token=s3cret": connection refused
	// deliver: Post "https://shop.example": connection refused
}

// A handler, or a Republisher of your own, asks for the queue of its message.
func ExampleDeliveryOf() {
	run(func(msg *message.Message) error {
		d, ok := middleware.DeliveryOf(msg.Context())
		fmt.Println(ok, "delivered from", d.Queue)
		return nil
	})
	// Output:
	// true delivered from orders
	// handled after 1 attempt
}

// With this key Watermill's Deduplicator finds messages that a producer has sent twice, and lets
// retries through.
func ExampleDeduplicationKey() {
	key := func(failures int) string {
		delivery := middleware.Delivery{
			Queue: "orders", MessageID: "order-7", State: header.RetryState{Failures: failures},
		}
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

var errShopClosed = errors.New("shop is closed")

func ExampleSnooze() {
	deliveries := 0
	run(func(msg *message.Message) error {
		deliveries++
		fmt.Println("delivery", deliveries, "attempt", middleware.Attempt(msg.Context()))
		if deliveries < 3 {
			return middleware.Snooze(errShopClosed, 10*time.Minute)
		}
		return nil
	})
	// Output:
	// delivery 1 attempt 1
	// delivery 2 attempt 1
	// delivery 3 attempt 1
	// handled after 1 attempt, snoozed 10m0s 10m0s
}

// A circuit breaker that is open says nothing about the message.
func ExampleWithSnoozeFor() {
	errOpen := errors.New("circuit breaker is open") // gobreaker.ErrOpenState
	open := true
	run(func(*message.Message) error { // CircuitBreaker around the handler
		if open {
			open = false
			return errOpen
		}
		return nil
	}, middleware.WithSnoozeFor(time.Minute, errOpen))
	// Output: handled after 1 attempt, snoozed 1m0s
}

func ExampleWithSnoozeLimit() {
	run(func(*message.Message) error {
		return middleware.Snooze(errShopClosed, 20*time.Minute)
	}, middleware.WithSnoozeLimit(time.Hour), middleware.WithMaxAttempts(2))
	// Output: dead-lettered (exhausted) after 2 attempts, delays 20m0s, snoozed 20m0s 20m0s
}

func ExampleWithPolicyFor() {
	broker := middlewaretest.NewBroker()
	retry, err := middleware.NewDelayedRetry(broker, tenfold,
		middleware.WithPolicyFor(middleware.Selector{Queue: "mails"}, backoff.List{time.Hour}),
		middleware.WithPolicyFor(middleware.Selector{Error: middleware.NetworkErrors()}, backoff.Constant{
			Interval: time.Second, Retries: 3,
		}),
		middleware.WithPolicyFor(
			middleware.Selector{Queue: "orders", Error: middleware.RetryableErrors(errNoStock)},
			backoff.List{time.Minute, time.Hour},
		),
	)
	if err != nil {
		fmt.Println(err)
		return
	}
	// In a program: client.NewSubscriberWithoutRetry(cfg, topology.ForPolicy(retry.Policies()...))
	fmt.Println(len(retry.Policies()), "policies")

	handler := retry.Middleware(
		middlewaretest.Consumer(func(*message.Message) error { return errNoStock }),
	)
	for _, queue := range []string{"orders", "mails", "parcels"} {
		msg := middlewaretest.NewMessage(middleware.Delivery{Queue: queue}, nil)
		fmt.Println(queue, broker.Run(handler, msg).Delays)
	}
	// Output:
	// 4 policies
	// orders [1m0s 1h0m0s]
	// mails [1h0m0s]
	// parcels [1s 10s 1m40s 8m20s 8m20s]
}

func ExampleWithKeptMetadata() {
	run(func(msg *message.Message) error {
		if msg.Metadata.Get("step") == "paid" {
			return nil // charge no card twice
		}
		msg.Metadata.Set("step", "paid")
		return errNoStock
	}, middleware.WithKeptMetadata("step"))
	// Output: handled after 2 attempts, delays 1s
}

func ExampleWithDeadLetterHook() {
	run(func(*message.Message) error { return errNoStock },
		middleware.WithMaxAttempts(2),
		middleware.WithDeadLetterHook(func(_ context.Context, dead middleware.DeadLetter) {
			fmt.Printf("%s of %s: %v, %s\n", dead.Message.Payload, dead.Queue, dead.Err, dead.State.Reason)
			for _, attempt := range dead.State.History {
				fmt.Printf("attempt %d: %s\n", attempt.Attempt, attempt.Error)
			}
		}))
	// Output:
	// order 7 of orders: no stock, exhausted
	// attempt 1: no stock
	// attempt 2: no stock
	// dead-lettered (exhausted) after 2 attempts, delays 1s
}

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
	handler := retry.Middleware(
		middlewaretest.Consumer(func(*message.Message) error { return errors.New("no stock") }),
	)
	broker.Run(handler, middlewaretest.NewMessage(middleware.Delivery{Queue: "orders"}, nil))
	// Output:
	// attempt 1 retried retryable  1s no stock
	// attempt 2 dead_lettered retryable exhausted 0s no stock
}

// answer is the response of a server that is asked too often.
func answer(retryAfter string) *http.Response {
	return &http.Response{
		StatusCode: http.StatusTooManyRequests, Status: "429 Too Many Requests",
		Header: http.Header{"Retry-After": {retryAfter}},
	}
}

func ExampleRetryAfterHeader() {
	run(func(msg *message.Message) error {
		if middleware.Attempt(msg.Context()) == 3 {
			return nil
		}
		resp := answer("7") // the policy waits for 1s, then for 10s
		return middleware.RetryAfterHeader(fmt.Errorf("deliver: %s", resp.Status), resp.Header, time.Hour)
	})
	// Output: handled after 3 attempts, delays 7s 10s
}
