// Package delayed retries on Pub/Subs other than RabbitMQ: on any whose
// messages wait where Watermill's components/delay asks for it.
//
//	republisher, err := delayed.NewRepublisher(publisher)
//	retry, err := middleware.NewDelayedRetry(republisher, policy)
//	router.AddSubscriberDecorators(republisher.Subscriber)
//	router.AddMiddleware(retry.Middleware)
//	router.AddConsumerHandler("orders", "orders", subscriber, handleOrder)
//
// A message whose handler failed is published to its topic again, as it arrived,
// with the delay in its metadata and the retry state beside it; only then is it
// acked. One that is given up goes to "<topic>.dlq".
//
//	topic ─► Subscriber (remembers it) ─► DelayedRetry ─► handler
//	  ▲                                        │ error
//	  └── delay over ── Pub/Sub ◄── Republisher: the message as it arrived, notes, delay
//
// What a Pub/Sub must do: honour the delay, to which Watermill's documentation
// has a list; store a message before Publish returns; and give a topic's message
// to one consumer. Where several consumer groups each get a copy, a message
// published again reaches all of them: name a topic for each group with
// WithRetryTopic. One that ignores the delay brings messages back at once, which
// is logged.
//
// Delays end on a whole second, up to one second late and never early: that is
// how components/delay writes a time.
//
// What it does not have, as no Pub/Sub tells enough: the guard against messages
// that kill the process, waiting in rounds, expirations, and soft nacks. A nack
// does what it does in that Pub/Sub.
package delayed
