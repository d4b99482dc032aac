// Package middleware decides about a message whose handler failed, and lets the broker do the
// waiting.
//
//	          ┌────────────────── DelayedRetry ──────────────────┐
//	message ──┤ interrupted? past its limit? ──► others, handler │
//	          │      │              │                   │        │
//	  nack ◄──┤◄─────┘              │                   │        │
//	  ack  ◄──┤◄────────────────────┼──────── success ──┤        │
//	          │                     │          failure or Snooze │
//	  nack ◄──┤◄────────────────────┼──── interrupted ──┤        │
//	          │                     │           classify, decide │
//	          │                     ▼             │     │        │
//	  ack  ◄──┤◄── confirmed ── DeadLetter ◄──────┘     │        │
//	  ack  ◄──┤◄── confirmed ── Republish ◄─────────────┘        │
//	  nack ◄──┤◄── not confirmed, and held for long enough       │
//	          └──────────────────────────────────────────────────┘
//
//	retry, err := middleware.NewDelayedRetry(client, policy,
//		middleware.WithClassifier(middleware.PermanentErrors(ErrInvalidOrder)),
//	)
//	if err != nil {
//		return err
//	}
//	router.AddMiddleware(
//		wmiddleware.CorrelationID,
//		retry.Middleware,
//		wmiddleware.Timeout(30*time.Second),
//	)
//
// # Place in the order
//
// A middleware whose error counts as a failure belongs inside DelayedRetry, that is, after it
// in AddMiddleware: Timeout, Recoverer, CircuitBreaker, Watermill's Retry for a few quick tries
// in the process. CorrelationID may stand before it.
//
//   - A Timeout around DelayedRetry looks like a shutdown, so that no attempt is counted. The
//     log says so.
//   - A PoisonQueue inside takes every error away before the message can be retried. The
//     dead-letter queue replaces it.
//   - A Deduplicator around or inside swallows the retries, unless its key is
//     [DeduplicationKey].
//   - An InstantAck anywhere leaves nothing to retry.
//
// docs/middlewares.md goes through all of them.
//
// A message that was handed over is not handed over again: if a middleware outside calls a
// second time, the result is nil, and the handler is not called. Of two DelayedRetry the inner
// one acts, and the outer one sees a success. Handlers with different policies need only one:
// see [WithPolicyFor].
//
// # Ack and nack
//
// The result is nil, and the router acks, when the handler has succeeded or the broker has
// confirmed another durable copy of the message. The result is an error, and the router nacks,
// in these cases only:
//
//   - The message's context is done or its delivery stale. DelayedRetry looks before the
//     handler, after it if it failed, and before each publish. Nothing is published and no
//     attempt is counted. ErrInterrupted
//   - The Republisher did not confirm. The message is held in the handler's goroutine and
//     handed over again, at most twice a second, until that succeeds, the Subscriber closes or
//     Delivery.HoldUntil is reached. It is never acked or dead-lettered because of it.
//     ErrNotHandedOver
//   - The message was not delivered by the Republisher's own Subscriber, so that holding it
//     cannot help. ErrNotDelivered, ErrNotHandedOver
//   - The handler has acked or nacked the message itself. The error is the handler's own.
//
// A handler that ends its goroutine (runtime.Goexit) leaves its message nacked.
//
// # Failures
//
// A failure is an error or a panic of the handler; a panic becomes a PanicError. Its class comes
// from a mark on the error (Permanent, Retryable, RetryAfter and the like in
// cenkalti/backoff), else from the classifiers in their order, else it is the default class.
//
// A permanent error is dead-lettered at once. Any other error is retried, unless the policy or
// WithMaxAttempts allows no further attempt, or the next attempt would come later than
// WithMaxAge or the message's own expiration allow. WithPolicyFor gives some handlers, queues
// or errors their own policy. A classifier that panics is logged and has no opinion. A policy
// that panics is logged, and a minute replaces its delay, at most a hundred times.
//
// The mark [Snooze] is no failure, nor is an error that [WithSnoozeFor] names. The message waits
// and comes back with its counts unchanged. It may do so during a day, or during the time of
// WithSnoozeLimit.
//
// # Before the handler
//
// A message that comes back past its limit is dead-lettered without a call of the handler:
//
//   - as exhausted, if it has more failures than WithMaxAttempts or the policy allows: its count
//     is forged, or the policy was shortened. The policy counts if its end is known: a policy
//     of package backoff with a number of retries, or one in a backoff.Limit. All consumers of
//     a queue should have the same limits. While a longer policy is rolled out, a consumer
//     with the shorter policy gives up messages that another consumer retried.
//   - for its deadline, if its own expiration ended while it waited.
//
// WithMaxAge does not count here: a message whose consumer was away for longer still gets the
// attempt that it was promised.
//
// # Sparing a downstream service
//
// A [Budget] that handlers share slows their retries down, or gives messages up, while too many
// fail ([WithBudget]). With probes it also holds deliveries back. With a brake it stops consuming
// in all instances until probes succeed. Policies with a random delay, such as
// backoff.FullJitter, spread messages that failed together.
//
// # Produced messages
//
// The messages of a handler that succeeds are returned untouched. The messages of a handler that
// fails are dropped, as the router does. No middleware sees a failure to publish them: the
// router nacks.
//
// # Logs and events
//
// There is a log line for each message that is retried, snoozed or dead-lettered, and for each
// trouble with the hand-over ([WithLogger]). There is an [Event] for every decision, also for a
// success ([WithObserver]). The modules middleware/metrics and middleware/tracing turn events
// into metrics and spans. Logger and observers are the Republisher's, unless an option names
// others. docs/monitoring.md and docs/notes/log-lines.md list them all.
//
// # Limits
//
// DelayedRetry does not sleep through a delay, keep the order of messages, or hand a message
// over exactly once: a crash between the confirm and the ack, or a publish of unknown outcome,
// gives a duplicate. It does not change the message: the copy is the message as it arrived,
// apart from WithKeptMetadata. It knows nothing of AMQP: a [Republisher] and a
// [Delivery] are all it needs.
package middleware
