package topology_test

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/millpond-go/millpond/internal/testing/rig"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/backoff"
)

// quitting is a marshaler that ends its goroutine, once.
type quitting struct {
	wamqp.DefaultMarshaler
	did atomic.Bool
}

func (q *quitting) Unmarshal(d amqp.Delivery) (*message.Message, error) {
	if q.did.CompareAndSwap(false, true) {
		runtime.Goexit()
	}
	return q.DefaultMarshaler.Unmarshal(d)
}

// The goroutine that is gone is given nothing more: the next message goes on.
func TestMarshalerThatEndsItsGoroutineStopsNothing(t *testing.T) {
	t.Parallel()
	handled := make(chan struct{}, 2)
	r := rig.Start(t, rig.Config{
		Policy:    backoff.List{time.Second},
		Configure: func(cfg *wamqp.Config) { cfg.Marshaler = new(quitting); rig.Prefetch(10)(cfg) },
		Handler: func(*message.Message) ([]*message.Message, error) {
			handled <- struct{}{}
			return nil, nil
		},
	})
	rig.Fill(t, r.URL, r.Queue, 2)
	rig.WaitFor(t, "the second message", func() bool { return len(handled) == 1 })
}
