package topology_test

import (
	"context"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/millpond-go/millpond/internal/testing/rig"

	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
)

// rewrite changes everything of a message again and again until the channel is
// closed, so that the race detector sees a reader. Without the pauses the detector
// would forget the stacks that it reports.
func rewrite(msg *message.Message, until <-chan struct{}) {
	type key struct{}
	ctx, uuid := msg.Context(), msg.UUID
	pause := time.NewTicker(50 * time.Microsecond)
	defer pause.Stop()
	for i := 0; ; i++ {
		select {
		case <-until:
			msg.UUID = uuid
			msg.SetContext(ctx)
			return
		case <-pause.C:
		}
		msg.UUID = strconv.Itoa(i)
		msg.Payload = []byte(msg.UUID)
		msg.Metadata.Set(wmiddleware.CorrelationIDMetadataKey, msg.UUID)
		msg.Metadata.Set("key "+strconv.Itoa(i%50), msg.UUID)
		delete(msg.Metadata, "key "+strconv.Itoa(i*7%50))
		msg.SetContext(context.WithValue(ctx, key{}, i))
	}
}

// A handler changes its message all the time: while its connection is lost, after it
// has acked or nacked the message itself, while it is warned of, and while the service
// shuts down and does not wait for it any longer. All that is logged and told
// meanwhile leaves the message alone, because a map that is read while it is written
// ends the process.
func TestNothingReadsAMessageThatItsHandlerHas(t *testing.T) {
	t.Parallel()
	const end = "Stopped consuming"
	for name, c := range map[string]struct {
		cut    bool                     // the connection is lost first
		settle func(m *message.Message) // then the handler settles the message itself
		said   string                   // then this is logged
		told   middleware.EventKind     // or told
	}{
		"given back after the drain":      {},
		"given back on a lost connection": {cut: true, said: "Cannot nack"},
		"acked":                           {settle: func(m *message.Message) { m.Ack() }},
		"acked on a lost connection":      {cut: true, settle: func(m *message.Message) { m.Ack() }, said: "Cannot ack"},
		"nacked":                          {settle: func(m *message.Message) { m.Nack() }, told: middleware.EventSnoozed},
		"nacked on a lost connection":     {cut: true, settle: func(m *message.Message) { m.Nack() }, told: middleware.EventRequeued},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := testbroker.URL(t)
			proxy := testbroker.NewProxy(t, url)
			var told events
			handling, lost, stop := make(chan struct{}), make(chan struct{}), make(chan struct{})
			var again atomic.Bool
			r := rig.Start(t, rig.Config{
				URL: proxy.URL(), PublisherURL: url, AdminURL: url, Policy: backoff.List{time.Second}, Verbose: true,
				ClientOptions:     []topology.Option{topology.WithObserver(&told)},
				SubscriberOptions: []topology.SubscriberOption{topology.WithHandlerWarning(50 * time.Millisecond), topology.WithDrainTimeout(300 * time.Millisecond)},
				RetryOptions:      []middleware.Option{middleware.WithObserver(&told)},
				Handler: func(msg *message.Message) ([]*message.Message, error) {
					if again.Swap(true) {
						return nil, nil
					}
					ctx := msg.Context()
					close(handling)
					rewrite(msg, lost)
					if c.cut {
						<-ctx.Done()
					}
					if c.settle != nil {
						c.settle(msg)
					}
					rewrite(msg, stop)
					return nil, rig.ErrFailed
				},
			})
			rig.Publish(t, url, "", r.Queue, amqp.Publishing{Body: []byte("busy")})
			<-handling
			rig.WaitFor(t, "the handler is warned of", func() bool { return r.Logs.Said(neverReturns) > 0 })
			if c.cut {
				proxy.Refuse(true) // so that it does not come again meanwhile
				proxy.Cut()
			}
			close(lost)
			if c.told != "" {
				rig.WaitFor(t, "the event "+string(c.told), func() bool {
					told.mu.Lock()
					defer told.mu.Unlock()
					return slices.ContainsFunc(told.all, func(e middleware.Event) bool { return e.Kind == c.told })
				})
			}
			closed := make(chan struct{})
			go func() { defer close(closed); r.Stop() }()
			rig.WaitFor(t, "the subscriber to end", func() bool { return r.Logs.Said(end) > 0 })
			require.Contains(t, r.Logs.Text(), c.said)
			close(stop)
			<-closed
		})
	}
}
