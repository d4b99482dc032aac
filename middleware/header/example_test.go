package header_test

import (
	"fmt"
	"time"

	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/middleware/header"
)

// The headers of a dead letter that was moved back once before.
func ExampleParseDead() {
	headers := map[string]string{
		header.DeadQueue: "orders", header.DeadReason: "exhausted", header.DeadFailures: "4",
		header.DeadError: "no stock", header.DeadClass: "retryable", header.DeadHandler: "billing",
		header.DeadAt: "2026-03-01T12:00:00Z", header.Replays: "1",
		header.EditedAt: "2026-03-01T13:00:00Z", header.EditedBy: "anna",
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

// The headers of a message that has failed twice in orders. On another queue they do not count.
func ExampleParse() {
	headers := map[string]string{
		header.Queue:        "orders",
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
		fmt.Println(key, keys.IsLive(key), keys.IsState(key))
	}
	// Output:
	// 2 no stock
	// 0
	// millpond-failures true true
	// millpond-dead-failures false true
	// tenant false false
}

// A tool counts dead letters by their reason.
func ExampleReason() {
	letters := map[header.Reason]int{
		header.ReasonPermanent: 3, header.ReasonExhausted: 2, header.ReasonMaxAge: 0,
		header.ReasonDeadline: 1, header.ReasonOverBudget: 0, header.ReasonUndecodable: 0,
		header.ReasonCrashLoop: 1, header.ReasonOversized: 0, header.ReasonMisdirected: 0,
		header.ReasonCancelled: 0,
	}
	for reason, n := range letters {
		if n > 1 {
			fmt.Println(reason, n)
		}
	}
	// Unordered output:
	// permanent 3
	// exhausted 2
}

// A dead letter written by hand, as a tool for tests would write it.
func ExampleRetryState_DeadHeaders() {
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	state := header.RetryState{
		Failures: 1, Error: "no stock", Class: header.ClassRetryable, Reason: header.ReasonExhausted,
		History: []header.AttemptError{{Attempt: 1, At: at, Error: "no stock"}},
	}
	headers := state.DeadHeaders("orders")
	fmt.Println(headers[header.DeadReason], headers[header.DeadFailures])
	fmt.Println(headers[keys.DeadHistory])
	fmt.Println("longest error and history:", keys.MaxErrorBytes, keys.MaxHistoryBytes)
	fmt.Println("longest error in the history:", keys.MaxEntryErrorBytes)
	fmt.Println("highest count:", keys.MaxFailures)
	// Output:
	// exhausted 1
	// [{"attempt":1,"at":"2026-03-01T12:00:00Z","error":"no stock"}]
	// longest error and history: 2048 16384
	// longest error in the history: 256
	// highest count: 1000000
}

// The headers of a message that has failed once, as a tool for tests would write them. The
// history says when, and with which error.
func ExampleRetryState_EachHeader() {
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	state := header.RetryState{
		Failures: 1, FirstFailure: at, FirstSeen: at, WaitingSince: at, Delay: 5 * time.Second,
		Error: "no stock", OriginRoutingKey: "orders",
		History: []header.AttemptError{{Attempt: 1, At: at, Error: "no stock"}},
	}
	state.EachHeader("orders", func(key, value string) { fmt.Println(key, value) })
	fmt.Println(len(state.Headers("orders")), "headers")
	// Output:
	// millpond-queue orders
	// millpond-history [{"attempt":1,"at":"2026-03-01T12:00:00Z","error":"no stock"}]
	// millpond-failures 1
	// millpond-delay 5s
	// 4 headers
}
