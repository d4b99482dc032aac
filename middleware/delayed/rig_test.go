package delayed_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/delayed"
)

var (
	errFailed = errors.New("the shop is closed")
	soon      = backoff.Constant{Interval: time.Millisecond, Retries: 2}
)

const patience = 10 * time.Second

// rig is a router on Watermill's GoChannel, which ignores delays: retries follow
// at once. recorder sees what is published on the way.
type rig struct {
	t      *testing.T
	pubSub *recorder
	router *message.Router
}

// recorder is a GoChannel that remembers what was published.
type recorder struct {
	*gochannel.GoChannel
	mu        sync.Mutex
	published map[string][]*message.Message
	failures  int
}

func (r *recorder) Publish(topic string, messages ...*message.Message) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failures > 0 {
		r.failures--
		return errFailed
	}
	for _, msg := range messages {
		r.published[topic] = append(r.published[topic], msg.Copy())
	}
	return r.GoChannel.Publish(topic, messages...)
}

func (r *recorder) to(topic string) []*message.Message {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.published[topic]
}

func newRig(t *testing.T) *rig {
	t.Helper()
	pubSub := &recorder{
		GoChannel: gochannel.NewGoChannel(gochannel.Config{OutputChannelBuffer: 100}, watermill.NopLogger{}),
		published: map[string][]*message.Message{},
	}
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: patience}, watermill.NopLogger{})
	require.NoError(t, err)
	return &rig{t: t, pubSub: pubSub, router: router}
}

// retry gives the router's handlers the republisher's middleware and subscriber.
func (r *rig) retry(policy backoff.Policy, options ...delayed.Option) *delayed.Republisher {
	r.t.Helper()
	republisher, err := delayed.NewRepublisher(r.pubSub, options...)
	require.NoError(r.t, err)
	retry, err := middleware.NewDelayedRetry(republisher, policy)
	require.NoError(r.t, err)
	r.router.AddSubscriberDecorators(republisher.Subscriber)
	r.router.AddMiddleware(retry.Middleware)
	return republisher
}

func (r *rig) handle(topic string, handler message.NoPublishHandlerFunc) {
	r.router.AddConsumerHandler(topic, topic, r.pubSub, handler)
}

func (r *rig) run() {
	r.t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- r.router.Run(context.Background()) }()
	r.t.Cleanup(func() {
		require.NoError(r.t, r.router.Close())
		require.NoError(r.t, <-ended)
		require.NoError(r.t, r.pubSub.Close())
	})
	select {
	case <-r.router.Running():
	case <-time.After(patience):
		r.t.Fatal("waited for the router to run")
	}
}

// receive takes what a handler sends, within patience.
func receive[T any](t *testing.T, what string, from <-chan T) T {
	t.Helper()
	select {
	case value := <-from:
		return value
	case <-time.After(patience):
		t.Fatalf("waited %s for %s", patience, what)
		panic("unreachable")
	}
}
