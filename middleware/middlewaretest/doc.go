// Package middlewaretest tests handlers and retry policies without a broker and
// without waiting.
//
// A [Broker] takes the place of the client. It records the calls of the middleware,
// and its Run carries one message through all of its retries. Each delay passes at
// once, and the message is delivered again with its state, until it is handled,
// dead-lettered or nacked. A snoozed message comes back in the same way.
//
//	broker := middlewaretest.NewBroker()
//	retry, err := middleware.NewDelayedRetry(broker, policy)
//	…
//	msg := middlewaretest.NewMessage(middleware.Delivery{Queue: "orders"}, payload)
//	result := broker.Run(retry.Middleware(handler), msg)
//	fmt.Println(result) // dead-lettered (exhausted) after 3 attempts, delays 1s 10s
//
// On a broker a message waits on the wait steps that there are, and so may wait longer than asked.
// With [WaitSteps] the Broker gives these delays, and the Result shows them beside the asked ones:
//
//	broker.Given = middlewaretest.WaitSteps(5*time.Second, time.Minute)
//	…
//	// dead-lettered (exhausted) after 3 attempts, delays 1s 10s, given 5s 1m0s
//
// The message grows older by each delay given, for WithMaxAge and every other use of the message's
// age. Failure.Now moves only with Broker.Sleep. A policy for a Handler, Queue or Topic needs these
// names in the Delivery.
//
// A Broker does not imitate queues, confirms, or the redelivery of a nacked message.
package middlewaretest
