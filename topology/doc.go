// Package topology lets failed messages wait in RabbitMQ: in queues with a TTL, from which the
// broker brings them back when the delay is over.
//
//	delivery ─► Subscriber ─► router ─► middleware.DelayedRetry ─► handler
//	                │                          │ error
//	                │                          ▼
//	                └─ as it arrived ─► Client.Republish ─► wait queue ─TTL─► its own queue
//	                                    Client.DeadLetter ─► dead-letter queue
//
// A Strategy plans the queues, as a Plan: plain data that can be printed without a broker.
// [PerQueue] gives each queue its own wait queues, [Shared] has one wait queue for each delay and
// all queues, [PerAttempt] has one for each attempt, and [Levels] lets messages wait for any
// delay in a fixed number of wait queues. A Client publishes to them, confirmed and mandatory, on
// its own connection. A Subscriber declares them before it consumes, and hands out messages that
// can be republished as they arrived.
//
//	client, err := topology.Open(ctx, cfg.Connection, topology.PerQueue{})
//	retry, err := middleware.NewDelayedRetry(client, policy)
//	sub, err := client.NewSubscriber(cfg, retry)
//	router.AddMiddleware(retry.Middleware)
//	router.AddConsumerHandler("orders", "orders", sub, handleOrder)
//
// One handler of each Subscribe runs at a time; [WithConcurrency] allows more.
// [Client.NewPublisher] publishes new messages, which may wait first. With [WithPreProvisioned] a
// service declares nothing. The package operate is for people who operate the queues.
//
// A message that has killed the process several times is recognised by the broker's delivery count,
// snoozed, and in the end dead-lettered, so that the messages beside it are handled.
//
// The package does not order messages across retries and does not deduplicate: a message may
// arrive twice if a connection is lost at the wrong moment.
package topology
