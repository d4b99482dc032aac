package rig

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/budget"
	"github.com/millpond-go/millpond/middleware/outage"
	"github.com/millpond-go/millpond/topology"
)

// Braked says how StartBraked makes a service.
type Braked struct {
	URL, Queue string
	Name       string // of the brake; default: the queue
	Instance   string // the name of the client
	Handle     func(*message.Message) error
	Options    []topology.Option
}

// StartBraked starts a service with a brake, which four failures of eight stop, and waits until it
// consumes. It ends with the test.
func StartBraked(t testing.TB, b Braked) *Logs {
	t.Helper()
	budget, err := budget.New(budget.Config{
		Share: 0.5, Minimum: 4, Delay: time.Second,
		Brake: outage.Brake{Name: b.Name, Ramp: 500 * time.Millisecond},
	})
	require.NoError(t, err)
	testbroker.Delete(t, b.Queue)
	args := amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": int32(1 << 30)}
	return Start(t, Config{
		URL: b.URL, Queue: b.Queue, Policy: backoff.List{time.Second, time.Hour}, Handle: b.Handle,
		Configure:     WithQueue(args),
		ClientOptions: append(b.Options, topology.WithName(b.Instance)),
		RetryOptions:  []middleware.Option{middleware.WithBudget(budget)},
	}).Logs
}
