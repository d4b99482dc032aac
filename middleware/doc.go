// Package middleware decides what becomes of a message whose handler failed, and
// lets the broker do the waiting.
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
//		middleware.WithLogger(logger),
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
// Whatever shall count as a failure belongs inside DelayedRetry, that is, after
// it in AddMiddleware: Timeout, Recoverer, CircuitBreaker, Watermill's Retry for
// a few quick tries in the process. CorrelationID may stand before it. A Timeout
// around DelayedRetry looks like a shutdown, so that no attempt is counted; the
// log says so. A PoisonQueue inside takes every error away before it can be
// retried; the dead-letter queue stands in its place. A Deduplicator around or
// inside swallows the retries, unless its key is [DeduplicationKey]. An InstantAck
// anywhere leaves nothing to retry. docs/middlewares.md goes through all of them.
//
// A message that was handed over is not handed over again: where a middleware
// outside calls for it a second time, nil is returned and the handler not called.
//
// Of two DelayedRetry the inner one acts, and the outer one sees a success. There
// is no need for two where handlers differ: see [WithPolicyFor].
//
// # Ack and nack
//
// Nil is returned, and the router acks, when the handler has succeeded or the
// broker has confirmed another durable copy of the message. An error is
// returned, and the router nacks, in these cases only:
//
//   - The message's context is done or its delivery stale, looked at before the
//     handler, after it if it failed, and before each publish. Nothing is
//     published and no attempt counted. ErrInterrupted
//   - The Republisher did not confirm. The message is held in the handler's
//     goroutine and handed over again, at most twice a second, until that
//     succeeds, the Subscriber closes or WithHoldLimit is reached. It is never
//     acked or dead-lettered because of it. ErrNotHandedOver
//   - The message was not delivered by the Republisher's own Subscriber, so that
//     holding it cannot help. ErrNotDelivered, ErrNotHandedOver
//   - The handler has acked or nacked the message itself: its error is returned
//     as it is.
//
// A handler that ends its goroutine (runtime.Goexit) leaves its message nacked.
//
// # What a failure is
//
// An error or a panic of the handler; a panic becomes a PanicError. A mark on the
// error (Permanent, Retryable, RetryAfter and their like in cenkalti/backoff)
// comes first, then the classifiers in their order, then the default class. A
// permanent error is dead-lettered at once. Any other is retried unless the
// policy or WithMaxAttempts allows no further attempt, or the next one would come
// later than WithMaxAge or the message's own expiration allow. WithPolicyFor
// gives some handlers, queues or errors a policy of their own. A classifier or a
// policy that panics is logged: the one has no opinion then, and in place of the
// other a minute is waited for, a hundred failures at most.
//
// The mark [Snooze], or an error that [WithSnoozeFor] names, is no failure: the message is set aside and comes back with
// its counts unchanged, for a day at most unless WithSnoozeLimit says otherwise.
//
// # Before the handler
//
// A message that comes back past its limit is dead-lettered and the handler not
// called:
//
//   - as exhausted, if it has more failures than WithMaxAttempts or the policy
//     allows: its counter is forged, or the policy was shortened. The policy counts
//     where its end is known: it is one of package backoff with a number of
//     retries, or in a backoff.Limit. All consumers of a queue should have the same
//     limits; while a longer policy is rolled out, those that still have the shorter
//     one give up what they are handed.
//   - for its deadline, if its own expiration ended while it waited.
//
// WithMaxAge does not count here: a message whose consumer was away for longer
// than that is still given the attempt it was promised.
//
// # Sparing a downstream
//
// A [Budget] that handlers share slows their retries down, or gives them up, while
// too many fail ([WithBudget]); with probes it holds deliveries back as well.
// Policies that draw at random, backoff.FullJitter for one, keep what failed together
// from coming back together.
//
// # Produced messages
//
// Those of a handler that succeeds are returned untouched. Those of one that
// fails are dropped, as the router does. When publishing them fails no
// middleware sees it: the router nacks.
//
// # What is seen of it
//
// A line in the log for each message that is retried, set aside or dead-lettered,
// and for trouble of the machinery (WithLogger). An [Event] for every decision, a
// success included (WithObserver), of which the modules middleware/metrics and
// middleware/tracing make metrics and spans. docs/monitoring.md lists them all.
//
// # What it does not do
//
// It does not sleep through a delay, keep the order of messages, or hand a
// message over exactly once: a crash between the confirm and the ack, or a
// publish of unknown outcome, gives a duplicate. It does not change the message:
// what comes back is the message as it arrived, but for WithKeptMetadata. It knows nothing of AMQP: [Republisher] and [Delivery] are all it needs.
package middleware
