package operate_test

import (
	"context"
	"errors"
	"fmt"
	"iter"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/topology/operate"
)

// What Export writes, and Import reads: a line for each message, from which it can
// be made again, type for type.
func ExampleEncode() {
	line, err := operate.Encode(amqp.Delivery{
		MessageId: "order-7", Headers: amqp.Table{"weight": int32(12)}, Body: []byte("one kettle"),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	d, err := operate.Decode(line)
	fmt.Printf("%s %T %s %v\n", d.MessageId, d.Headers["weight"], d.Body, err)
	// Output:
	// order-7 int32 one kettle <nil>
}

// Headers of any type as the tool shows them.
func ExampleHeaderText() {
	fmt.Println(operate.HeaderText("eu"), operate.HeaderText(int64(7)), operate.HeaderText(true))
	// Output:
	// eu 7 true
}

// What there is to decide on: many dead letters, few reasons.
func ExampleGroupByError() {
	letters := func(yield func(operate.Letter, error) bool) { // in a program: operator.Dead(…)
		for i, text := range []string{"no stock", "order 7: no such customer", "no stock"} {
			if !yield(operate.Letter{ID: fmt.Sprint("order-", i+1), Reason: "exhausted", Error: text}, nil) {
				return
			}
		}
	}
	var groups []operate.Group
	groups, err := operate.GroupByError(iter.Seq2[operate.Letter, error](letters))
	if err != nil {
		fmt.Println(err)
	}
	for _, group := range groups {
		fmt.Println(group.Count, group.Reason, group.Error, group.Example)
	}
	// Output:
	// 2 exhausted no stock order-1
	// 1 exhausted order #: no such customer order-2
}

// Each error has its own way out.
func ExampleErrUnsafe() {
	for _, err := range []error{
		operate.ErrUnsafe, operate.ErrInvalidOptions, operate.ErrNotConfirmed, operate.ErrUnsafePeek,
		operate.ErrNoQueue, operate.ErrTooSlow, operate.ErrUnreadable,
	} {
		switch err := fmt.Errorf("replay: %w", err); {
		case errors.Is(err, operate.ErrUnsafe), errors.Is(err, operate.ErrInvalidOptions),
			errors.Is(err, operate.ErrNotConfirmed):
			fmt.Println("nothing was done:", err)
		case errors.Is(err, operate.ErrUnsafePeek):
			fmt.Println("name the management API:", err)
		case errors.Is(err, operate.ErrNoQueue):
			fmt.Println("name the queue:", err)
		case errors.Is(err, operate.ErrTooSlow):
			fmt.Println("ask for fewer:", err)
		case errors.Is(err, operate.ErrUnreadable):
			fmt.Println("see the package's documentation:", err)
		}
	}
	// Output:
	// nothing was done: replay: not safe
	// nothing was done: replay: the options make no sense
	// nothing was done: replay: not confirmed
	// name the management API: replay: looking at its messages may delete them
	// name the queue: replay: the plan does not say which queue keeps its dead letters
	// ask for fewer: replay: looking has taken too long
	// see the package's documentation: replay: a message cannot be read
}

// Open names all problems at once, before it connects.
func ExampleOpen() {
	_, err := operate.Open(context.Background(), "localhost:5672",
		operate.WithManagement("localhost:15672"), operate.WithConfirmTimeout(0))
	fmt.Println(err)
	// Output:
	// open millpond operator: AMQP URL is invalid: it must begin with amqp:// or amqps://
	// WithManagement: the URL must begin with http:// or https://
	// WithConfirmTimeout: 0s is under 1ms
}
