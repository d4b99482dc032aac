package rig

import (
	"testing"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/audit"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/topology/native"
)

// HoldsRejected reports whether a quorum queue of the broker can hold rejected messages, and
// returns the broker's version.
func HoldsRejected(t testing.TB, url string) (holds bool, version any) {
	t.Helper()
	properties := testbroker.Dial(t, url).Properties
	return audit.VersionOf(properties).AtLeast(4, 3), properties["version"]
}

// Native returns the strategy for queues that hold rejected messages from least to most, and the
// arguments of such a queue. It skips the test where the broker ignores them.
func Native(t testing.TB, url string, least, most time.Duration) (native.Strategy, amqp.Table) {
	t.Helper()
	if holds, _ := HoldsRejected(t, url); !holds {
		t.Skip("needs RabbitMQ 4.3: make test BROKER=4.3")
	}
	return native.Strategy{Min: least, Max: most}, RejectArguments(least, most)
}

// RejectArguments are the arguments of a queue that holds rejected messages. Its dead-letter
// exchange leads to no queue: a message that the broker drops is missed by the test.
func RejectArguments(least, most time.Duration) amqp.Table {
	return amqp.Table{
		"x-queue-type": "quorum", "x-delayed-retry-type": "failed",
		"x-delayed-retry-min": least.Milliseconds(), "x-delayed-retry-max": most.Milliseconds(),
		"x-dead-letter-exchange": "amq.fanout",
	}
}

// WithQueue sets the arguments of the consumed queue.
func WithQueue(args amqp.Table) func(*wamqp.Config) {
	return func(cfg *wamqp.Config) { cfg.Queue.Arguments = args }
}
