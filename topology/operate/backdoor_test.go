package operate

import (
	"context"
	"crypto/tls"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/internal/link"
	"github.com/millpond-go/millpond/topology"
)

// SetHoldLimit changes how long messages are held, until restore is called. Tests that use it do
// not run in parallel.
func SetHoldLimit(d time.Duration) (restore func()) {
	before := holdLimit
	holdLimit = d
	return func() { holdLimit = before }
}

// At is an Operator without a connection, which asks the management API alone.
func At(vhost, api string, config *tls.Config) *Operator {
	return &Operator{
		vhost: vhost, opts: options{management: api},
		link: link.Config{
			Cluster: new(link.Cluster), AMQP: &amqp.Config{Vhost: vhost, TLSClientConfig: config},
		},
	}
}

// ExplainMissing is the error of a look after which messages are missing.
func ExplainMissing(ctx context.Context, o *Operator, queue string, missing int) error {
	return o.call(ctx, func(_ context.Context, conn *link.Conn) error {
		r := reader{o, conn, topology.Plan{}, queue}
		return r.explainMissing(missing)
	})
}

// OnReplayStep lets f be called at each step of a replay, until restore is called.
func OnReplayStep(f func(name string)) (restore func()) {
	before := step
	step = f
	return func() { step = before }
}
