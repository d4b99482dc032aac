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

// Handlers that share a downstream share a Budget.
func ExampleBudget() {
	var budget *middleware.Budget
	budget, err := middleware.NewBudget(middleware.BudgetConfig{Share: 0.5})
	fmt.Println(budget.Closed(), err)
	// Output: false <nil>
}
