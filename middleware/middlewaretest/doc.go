// Package middlewaretest tests handlers and retry policies without a broker and
// without waiting.
//
// A [Broker] stands in for the client. It records what the middleware hands
// over, and its Run carries one message through all of its retries: each delay
// passes at once, and the message is delivered again with its notes, until it is
// handled, dead-lettered or nacked. One that is set aside comes back in the same
// way.
//
//	broker := middlewaretest.NewBroker()
//	retry, err := middleware.NewDelayedRetry(broker, policy)
//	…
//	msg := middlewaretest.NewMessage(middleware.Delivery{Queue: "orders"}, payload)
//	result := broker.Run(retry.Middleware(handler), msg)
//	fmt.Println(result) // dead-lettered (exhausted) after 3 attempts, delays 1s 10s
//
// The age of a message is as real as the delays are not: whatever the middleware
// asks of the clock, WithMaxAge for one, sees each delay as passed.
//
// It is no broker: wait queues, wait steps, confirms and what becomes of a nacked
// message are not imitated.
package middlewaretest
