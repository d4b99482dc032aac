// Package tracing makes a span of each attempt, with OpenTelemetry's API.
//
//	t := tracing.New()
//	retry, err := middleware.NewDelayedRetry(client, policy, middleware.WithObserver(t))
//	router.AddMiddleware(t.Middleware, retry.Middleware)
//
//	publish orders ◄──parent── process orders ◄──link── process orders ◄──link── process orders
//	                           attempt 1                attempt 2                attempt 3
//
// The publisher's trace context arrives in the metadata (traceparent, tracestate)
// and stays there, as all that a message arrived with does: every attempt is a
// child of the publisher's span, however long it has waited. The span of the
// attempt before travels beside it, in the note millpond-traceparent, and each
// attempt links to it. Where the publisher does not trace, each attempt is a child
// of the one before as well, so that all are one trace.
//
// What becomes of the attempt is an event of its span: millpond.retried,
// millpond.snoozed, millpond.dead_lettered, millpond.requeued, and
// millpond.failing and millpond.recovered of the machinery; that of a failure has
// the status error and an event exception. No event holds a payload or a stack.
//
// Only the API is used: without an SDK nothing is traced, and nothing noted. The
// package is a module of its own: who does not use it does not download
// OpenTelemetry.
package tracing
