// Package tracing makes a span of each attempt, with OpenTelemetry's API.
//
//	t := tracing.New()
//	retry, err := middleware.NewDelayedRetry(client, policy, middleware.WithObserver(t))
//	router.AddMiddleware(t.Middleware, retry.Middleware)
//
//	publish orders ◄──parent── process orders ◄──link── process orders ◄──link── process orders
//	                           attempt 1                attempt 2                attempt 3
//
// The publisher's trace context arrives in the metadata (traceparent, tracestate) and
// stays there, like everything that a message arrived with. So every attempt is a
// child of the publisher's span, however long the message has waited.
//
// The span of the last attempt travels in the header millpond-traceparent, and each
// attempt links to it. If the publisher does not trace, each attempt is also a child
// of the attempt before, so that all attempts are one trace.
//
// The outcome of the attempt is an event of its span: millpond.retried,
// millpond.snoozed, millpond.dead_lettered or millpond.requeued. While the message
// cannot be handed over there are millpond.failing and millpond.recovered. The span of
// a failure has the status error and an event exception. No event holds a payload or a
// stack.
//
// The package uses only the API: without an SDK it traces nothing and writes no
// header. It is its own module, so that only its users download OpenTelemetry.
package tracing
