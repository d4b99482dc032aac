package e2e_test

import (
	"context"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
)

const neverReturns = "Handler does not return: use Watermill's Timeout"

// Given two handlers that do not return, then each is named once, while a third one works on.
// When they return, their messages are acked.
func TestHandlerThatNeverReturnsIsNamed(t *testing.T) {
	t.Parallel()
	release, quick := make(chan struct{}), make(chan struct{}, 100)
	handler := func(msg *message.Message) ([]*message.Message, error) {
		if string(msg.Payload) == "quick" {
			quick <- struct{}{}
			return nil, nil
		}
		<-release
		return nil, nil
	}
	r := rig.Start(t, rig.Config{
		Policy:            rig.Quickly(1),
		SubscriberOptions: append(rig.InFlight(3), topology.WithHandlerWarning(time.Second)),
		// Timeout replaces the context of the message meanwhile.
		Handler: rig.Inside(handler, wmiddleware.Timeout(time.Minute)),
	})
	for _, id := range []string{"id-1", "id-2"} {
		r.Publish(amqp.Publishing{Body: []byte("stuck"), MessageId: id})
	}
	rig.WaitFor(t, "both to be named while quick ones go on", func() bool {
		r.Publish(amqp.Publishing{Body: []byte("quick"), MessageId: "id-quick"})
		<-quick
		return r.Logs.Said(neverReturns) >= 2
	})
	// The ticker of the warning comes four times in this time.
	begun := time.Now()
	rig.WaitFor(t, "1.5 s", func() bool { return time.Since(begun) > 1500*time.Millisecond })
	close(release)
	r.RequireNothingLeft(0)

	require.Equal(t, 2, r.Logs.Said(neverReturns))
	require.Empty(t, r.Logs.About("id-quick"))
	for _, id := range []string{"id-1", "id-2"} {
		lines := r.Logs.About(id)
		require.Len(t, lines, 1)
		require.Equal(t, "handler", lines[0].Fields["handler"])
		require.Equal(t, r.Queue, lines[0].Fields["queue"])
		require.Equal(t, 1, lines[0].Fields["attempt"])
		require.GreaterOrEqual(t, lines[0].Fields["held"], time.Second)
		require.ErrorContains(t, lines[0].Err, `handler "handler" has had the message for 1`)
	}
}

func TestHandlerWarningCanBeLeftOut(t *testing.T) {
	t.Parallel()
	release, entered := make(chan struct{}), make(chan struct{})
	r := rig.Start(t, rig.Config{
		Policy:            rig.Quickly(1),
		SubscriberOptions: []topology.SubscriberOption{topology.WithHandlerWarning(0)},
		Handle: func(*message.Message) error {
			close(entered)
			<-release
			return nil
		},
	})
	r.Send("order")
	<-entered
	select {
	case <-time.After(300 * time.Millisecond):
	case <-t.Context().Done():
	}
	close(release)
	r.RequireNothingLeft(0)
	require.Zero(t, r.Logs.Said(neverReturns))
	_, err := r.Client.NewSubscriber(rig.QueueConfig(r.URL), topology.WithHandlerWarning(-time.Second))
	require.ErrorContains(t, err, "WithHandlerWarning: -1s is negative")
}

// Given a handler that works for longer than the consumer timeout, then its context ends,
// because the broker delivers the message again. The queue goes on at once: from 4.3 on a late
// ack would keep the next message away for another timeout (F33).
func TestHandlerBeyondTheConsumerTimeoutStopsNothing(t *testing.T) {
	t.Parallel()
	const timeout = 3 * time.Second
	node := testbroker.Private(t, testbroker.WithConsumerTimeout(timeout, timeout/6))
	told, handled := make(chan struct{}, 10), make(chan string, 100)
	first := true
	r := rig.Start(t, rig.Config{
		URL: node.URL(), Queue: "orders", Policy: backoff.List{time.Second},
		Configure: func(cfg *wamqp.Config) { rig.QuorumQueue(cfg); rig.Prefetch(1)(cfg) },
		Handle: func(msg *message.Message) error {
			if first { // One handler runs at a time.
				first = false
				<-msg.Context().Done()
				told <- struct{}{}
				return nil // Its ack comes late.
			}
			handled <- string(msg.Payload)
			return nil
		},
	})
	r.Send("slow", "next", "last")
	begun := time.Now()
	rig.Await(t, told)
	for seen := map[string]bool{}; len(seen) < 3; {
		seen[rig.Await(t, handled)] = true
	}
	require.Less(t, time.Since(begun), timeout+rig.Ceiling)
	r.Stop()
	require.Zero(t, r.Depth(""))
}

// rewrite changes everything of a message until the channel is closed, so that the race
// detector sees a reader. Without the pauses the detector would forget the stacks it reports.
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

// Given a handler that changes its message all the time, when it is warned of, loses its
// connection, settles the message itself or outlives the drain, then log and events leave the
// message alone. A map that is read while it is written ends the process.
func TestNothingReadsAMessageThatItsHandlerHas(t *testing.T) {
	t.Parallel()
	ack, nack := func(m *message.Message) { m.Ack() }, func(m *message.Message) { m.Nack() }
	type testCase struct {
		cut    bool                     // the connection is lost first
		settle func(m *message.Message) // then the handler settles the message itself
		said   string                   // then this is logged
		told   middleware.EventKind     // or told
	}
	rig.Each(t, map[string]testCase{
		"given back after the drain":      {},
		"given back on a lost connection": {cut: true, said: "Cannot nack"},
		"acked":                           {settle: ack},
		"acked on a lost connection":      {cut: true, settle: ack, said: "Cannot ack"},
		"nacked":                          {settle: nack, told: middleware.EventSnoozed},
		"nacked on a lost connection":     {cut: true, settle: nack, told: middleware.EventRequeued},
	}, func(t *testing.T, c testCase) {
		url := testbroker.URL(t)
		proxy := testbroker.NewProxy(t, url)
		var told events
		handling, lost, stop := make(chan struct{}), make(chan struct{}), make(chan struct{})
		var again atomic.Bool
		r := rig.Start(t, rig.Config{
			URL: proxy.URL(), PublisherURL: url, AdminURL: url, Verbose: true,
			Policy:        backoff.List{time.Second},
			ClientOptions: []topology.Option{topology.WithObserver(&told)},
			SubscriberOptions: []topology.SubscriberOption{
				topology.WithHandlerWarning(50 * time.Millisecond),
				topology.WithDrainTimeout(300 * time.Millisecond),
			},
			RetryOptions: []middleware.Option{middleware.WithObserver(&told)},
			Handle: func(msg *message.Message) error {
				if again.Swap(true) {
					return nil
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
				return rig.ErrFailed
			},
		})
		rig.Publish(t, url, "", r.Queue, amqp.Publishing{Body: []byte("busy")})
		<-handling
		r.AwaitLine(neverReturns)
		if c.cut {
			proxy.Refuse(true) // The message must not come again meanwhile.
			proxy.Cut()
		}
		close(lost)
		if c.told != "" {
			rig.WaitFor(t, "the event "+string(c.told), func() bool { return told.has(c.told) })
		}
		closed := make(chan struct{})
		go func() { defer close(closed); r.Stop() }()
		r.AwaitLine("Stopped consuming")
		require.Contains(t, r.Logs.Text(), c.said)
		close(stop)
		<-closed
	})
}
