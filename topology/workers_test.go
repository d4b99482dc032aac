package topology_test

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
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
	r := newRig(t, rigConfig{
		policy: backoff.List{time.Second},
		config: func(cfg *wamqp.Config) { cfg.Marshaler = new(quitting); prefetch(10)(cfg) },
		handler: func(*message.Message) ([]*message.Message, error) {
			handled <- struct{}{}
			return nil, nil
		},
	})
	fill(t, r.url, r.queue, 2)
	testbroker.WaitFor(t, "the second message", patience, func() bool { return len(handled) == 1 })
}
