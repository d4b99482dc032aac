// Package postgresql holds the tests of middleware/delayed on watermill-sql's
// PostgreSQL Pub/Sub, apart from the library for what they need to import.
//
// For messages that wait use its NewDelayedPostgreSQLPublisher, and a Subscriber
// as subscriber_test.go makes it. NewDelayedPostgreSQLSubscriber reads a hundred
// messages at a time, and where one of their handlers takes longer than
// AckDeadline (30 s), watermill-sql 4.1.5 acks all of them, also those that no
// handler has seen.
package postgresql
