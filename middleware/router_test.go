package middleware_test

import (
	"context"
	"errors"
	"reflect"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
)

// looped is a Republisher for Watermill's in-process Pub/Sub, whose messages
// have no delivery: it publishes the message to its topic again at once, with
// the notes of no queue in its metadata.
type looped struct {
	*gochannel.GoChannel
}

func (l looped) Republish(
	ctx context.Context, msg *message.Message, _ time.Duration, notes header.RetryState,
) (middleware.Republished, error) {
	return middleware.Republished{}, l.send(message.SubscribeTopicFromCtx(ctx), msg, notes.Headers(""))
}

func (l looped) DeadLetter(_ context.Context, msg *message.Message, notes header.RetryState) error {
	return l.send("dlq", msg, notes.DeadHeaders(""))
}

func (l looped) send(topic string, msg *message.Message, headers map[string]string) error {
	again := msg.Copy()
	for key, value := range headers {
		again.Metadata.Set(key, value)
	}
	return l.Publish(topic, again)
}

// running is a router with one handler of topic "orders" behind a DelayedRetry.
// What the handler returns goes to topic "out".
func running(t *testing.T, h message.HandlerFunc, options ...middleware.Option) *gochannel.GoChannel {
	t.Helper()
	pubSub := gochannel.NewGoChannel(gochannel.Config{OutputChannelBuffer: 10, Persistent: true}, watermill.NopLogger{})
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: 10 * time.Second}, watermill.NopLogger{})
	require.NoError(t, err)
	router.AddMiddleware(newRetry(t, looped{pubSub}, options...).Middleware)
	router.AddHandler("billing", "orders", pubSub, "out", pubSub, h)
	ended := make(chan error, 1)
	go func() { ended <- router.Run(context.Background()) }()
	<-router.Running()
	t.Cleanup(func() {
		require.NoError(t, errors.Join(router.Close(), <-ended, pubSub.Close()))
	})
	return pubSub
}

// receive returns the next message of the topic, acked.
func receive(t *testing.T, pubSub *gochannel.GoChannel, topic string) *message.Message {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	messages, err := pubSub.Subscribe(ctx, topic)
	require.NoError(t, err)
	msg := <-messages
	if msg == nil {
		t.Fatalf("no message of topic %q within 10s", topic)
	}
	msg.Ack()
	return msg
}

func TestInARouterAMessageIsRetriedUntilItSucceeds(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var attempts []int
	pubSub := running(t, func(msg *message.Message) ([]*message.Message, error) {
		mu.Lock()
		defer mu.Unlock()
		attempts = append(attempts, middleware.Attempt(msg.Context()))
		out := []*message.Message{message.NewMessage("from attempt", []byte{byte(len(attempts))})}
		if len(attempts) < 3 {
			return out, errBoom
		}
		return out, nil
	})
	require.NoError(t, pubSub.Publish("orders", message.NewMessage("order-7", nil)))
	if out := receive(t, pubSub, "out"); !reflect.DeepEqual([]byte(out.Payload), []byte{3}) {
		t.Errorf("the message of attempt %d was published, want that of 3 alone", out.Payload)
	}
	mu.Lock()
	defer mu.Unlock()
	assert.Equal(t, []int{1, 2, 3}, attempts)
}

func TestInARouterAMessageIsDeadLetteredAtLast(t *testing.T) {
	t.Parallel()
	pubSub := running(t, func(*message.Message) ([]*message.Message, error) { panic("no stock") })
	require.NoError(t, pubSub.Publish("orders", message.NewMessage("order-7", nil)))
	dead := receive(t, pubSub, "dlq")
	for key, want := range map[string]string{
		header.DeadReason: "exhausted", header.DeadFailures: "3",
		header.DeadError: "panic: no stock", header.DeadHandler: "billing",
	} {
		assert.Equal(t, want, dead.Metadata[key])
	}
	if dead.UUID != "order-7" {
		t.Errorf("UUID is %q", dead.UUID)
	}
}

// A handler goroutine that ended used to leave the router waiting for ever.
func TestInARouterGoexitDoesNotHang(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	deliveries := 0
	pubSub := running(t, func(msg *message.Message) ([]*message.Message, error) {
		mu.Lock()
		defer mu.Unlock()
		if deliveries++; deliveries == 1 {
			runtime.Goexit()
		}
		assert.Equal(t, 1, middleware.Attempt(msg.Context()))
		return []*message.Message{message.NewMessage("done", nil)}, nil
	})
	require.NoError(t, pubSub.Publish("orders", message.NewMessage("order-7", nil)))
	receive(t, pubSub, "out")
}
