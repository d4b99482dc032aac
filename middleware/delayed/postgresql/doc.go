// Package postgresql holds the tests of middleware/delayed on watermill-sql's
// PostgreSQL Pub/Sub. It is its own module, because the tests import more than the
// library does.
//
// For messages that wait use NewDelayedPostgreSQLPublisher of watermill-sql, and a
// Subscriber made like the one in subscriber_test.go. NewDelayedPostgreSQLSubscriber
// reads a hundred messages at a time. If one of their handlers takes longer than
// AckDeadline (30 s), watermill-sql 4.1.5 acks all of them, also messages that no
// handler has seen.
package postgresql
