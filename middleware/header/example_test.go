package header_test

import (
	"fmt"

	"github.com/millpond-go/millpond/middleware/header"
)

// The headers of a dead letter that was moved back once before.
func ExampleParseDead() {
	headers := map[string]string{
		"millpond-dead-queue":    "orders",
		"millpond-dead-reason":   "exhausted",
		"millpond-dead-failures": "4",
		"millpond-dead-error":    "no stock",
		"millpond-replays":       "1",
	}
	get := func(key string) (string, bool) {
		value, ok := headers[key]
		return value, ok
	}
	queue, state := header.ParseDead(get)
	fmt.Println(queue, state.Reason, state.Failures, state.Error)
	fmt.Println("moved back:", header.ParseReplays(get))
	// Output:
	// orders exhausted 4 no stock
	// moved back: 1
}

// The headers of a message that has failed twice in orders. On another queue they
// do not count.
func ExampleParse() {
	headers := map[string]string{
		"millpond-queue":    "orders",
		"millpond-failures": "2",
		"millpond-error":    "no stock",
	}
	get := func(key string) (string, bool) {
		value, ok := headers[key]
		return value, ok
	}
	state := header.Parse("orders", get)
	fmt.Println(state.Failures, state.Error)
	fmt.Println(header.Parse("mail", get).Failures)
	for _, key := range []string{"millpond-failures", "millpond-dead-failures", "tenant"} {
		fmt.Println(key, header.IsLive(key), header.IsState(key))
	}
	// Output:
	// 2 no stock
	// 0
	// millpond-failures true true
	// millpond-dead-failures false true
	// tenant false false
}
