// Package topology is where failed messages wait: queues on RabbitMQ with a
// TTL, from which the broker returns them when the delay is over.
//
//	delivery ─► Subscriber ─► router ─► middleware.DelayedRetry ─► handler
//	                │                          │ error
//	                │                          ▼
//	                └─ as it arrived ─► Client.Republish ─► wait queue ─TTL─► its own queue
//	                                    Client.DeadLetter ─► dead-letter queue
//
// A Strategy says which queues there are, as a Plan: plain data that can be
// looked at without a broker. [PerQueue] gives each queue wait queues of its own,
// [Shared] has one for each delay and all queues, [Levels] waits for any delay in a
// fixed number of them. A Client publishes to them, confirmed and mandatory, on a
// connection of its own; a Subscriber declares them before it consumes, and hands
// out messages that can be republished as they arrived.
//
//	client, err := topology.Open(ctx, cfg.Connection, topology.PerQueue{})
//	sub, err := client.NewSubscriber(cfg, topology.ForPolicy(policy))
//	retry, err := middleware.NewDelayedRetry(client, policy)
//	router.AddMiddleware(retry.Middleware)
//	router.AddConsumerHandler("orders", "orders", sub, handleOrder)
//
// One message of each Subscribe is in progress at a time, or as many as
// [WithConcurrency] says. [Client.NewPublisher] publishes new messages, which may
// wait first. [Client.Inspect], [Client.Verify], [Client.Peek] and [Client.Purge] are
// for whoever operates the queues; [WithPreProvisioned] is for brokers where a
// service declares nothing.
//
// A message that has killed the process several times is found by the broker's
// delivery count, set aside, and in the end dead-lettered, so that those beside it
// are handled.
//
// The package does not order messages across retries and does not deduplicate:
// a message may come twice, when a connection is lost at the wrong moment.
package topology
