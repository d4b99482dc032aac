// Package delayed retries on Pub/Subs other than RabbitMQ: on each that delays the
// messages for which Watermill's components/delay asks for it.
//
//	republisher, err := delayed.NewRepublisher(publisher)
//	retry, err := middleware.NewDelayedRetry(republisher, policy)
//	router.AddSubscriberDecorators(republisher.Subscriber)
//	router.AddMiddleware(retry.Middleware)
//	router.AddConsumerHandler("orders", "orders", subscriber, handleOrder)
//
// A message whose handler failed is published to its topic again, as it arrived, with
// the delay and the retry state in its metadata. Only then is it acked. A message that
// is given up goes to "<topic>.dlq".
//
//	topic ─► Subscriber (remembers it) ─► DelayedRetry ─► handler
//	  ▲                                        │ error
//	  └── delay over ── Pub/Sub ◄── Republisher: the message as it arrived, state, delay
//
// A Pub/Sub must honour the delay, store a message before Publish returns, and give a
// topic's message to one consumer. Watermill's documentation lists such Pub/Subs.
// If several consumer groups each get a copy, a message published again reaches all of
// them: name a topic for each group with [WithRetryTopic]. A Pub/Sub that ignores the
// delay brings messages back at once, which is logged.
//
// Delays end on a whole second, up to one second late and never early, because
// components/delay writes times in seconds.
//
// No Pub/Sub tells enough for the guard against messages that crash the process,
// waiting in rounds, expirations, and soft nacks. These do not exist here. A nack has
// the effect that it has in that Pub/Sub.
package delayed
