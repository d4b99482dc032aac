package topology_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
)

// keysSeen remembers keys for ever. Watermill's own repository never ends its
// goroutine.
type keysSeen struct{ sync.Map }

func (k *keysSeen) IsDuplicate(_ context.Context, key string) (bool, error) {
	_, seen := k.LoadOrStore(key, true)
	return seen, nil
}

func deduplicator(key wmiddleware.MessageHasher) message.HandlerMiddleware {
	return (&wmiddleware.Deduplicator{KeyFactory: key, Repository: &keysSeen{}, Timeout: time.Second}).Middleware
}

// The default key is the same at every attempt: the first retry is swallowed, and
// the message is gone without having been handled or dead-lettered.
func TestDeduplicatorSwallowsTheRetries(t *testing.T) {
	t.Parallel()
	attempts := make(chan int, 10)
	h := inside(failUntil(100, attempts), deduplicator(nil))
	swallowed := make(chan int, 10)
	r := newRig(t, rigConfig{policy: quickly(3), handler: func(msg *message.Message) ([]*message.Message, error) {
		produced, err := h(msg)
		if err == nil {
			swallowed <- middleware.Attempt(msg.Context())
		}
		return produced, err
	}})
	r.publish(amqp.Publishing{Body: []byte("order")})
	awaitAttempts(t, attempts, 1)
	awaitAttempts(t, swallowed, 2)
	requireNothingLeft(t, r, 0)
	require.Empty(t, attempts)
}

// With our key a message that comes again is handled, for whichever reason it does;
// the one that its producer has sent twice is not.
func TestComposedWithDeduplicator(t *testing.T) {
	t.Parallel()
	for name, place := range map[string]func(*rigConfig, message.HandlerMiddleware){
		"inside":  func(rc *rigConfig, m message.HandlerMiddleware) { rc.handler = inside(rc.handler, m) },
		"outside": func(rc *rigConfig, m message.HandlerMiddleware) { rc.outer = []message.HandlerMiddleware{m} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var calls timeline
			attempts := make(chan int, 10)
			rc := rigConfig{policy: quickly(1), handler: func(msg *message.Message) ([]*message.Message, error) {
				attempts <- middleware.Attempt(msg.Context())
				switch calls.add() {
				case 1:
					return nil, middleware.Snooze(errFailed, 100*time.Millisecond)
				case 2, 3, 4:
					return nil, errFailed
				}
				return nil, nil
			}}
			place(&rc, deduplicator(middleware.DeduplicationKey))
			r := newRig(t, rc)
			order := amqp.Publishing{Body: []byte("order"), MessageId: "id-1"}
			r.publish(order)
			awaitAttempts(t, attempts, 1, 1, 2) // set aside, then failed twice
			dead := take(t, r.url, r.queue+".dlq")
			r.publish(order) // absorbed
			r.publish(amqp.Publishing{Body: []byte("order"), MessageId: "id-1", Headers: dead.Headers})
			awaitAttempts(t, attempts, 1, 2) // moved back, failed, and handled
			testbroker.WaitFor(t, "an empty queue", patience, func() bool { return testbroker.Depth(t, r.url, r.queue) == 0 })
			requireNothingLeft(t, r, 0)
			require.Empty(t, attempts)
		})
	}
}

// What was in a handler when the connection was lost is delivered again, and was
// not handled: it is no duplicate.
func TestDeduplicatorLetsRedeliveriesThrough(t *testing.T) {
	t.Parallel()
	url := testbroker.URL(t)
	proxy := testbroker.NewProxy(t, url)
	attempts := make(chan int, 10)
	var calls timeline
	r := newRig(t, rigConfig{
		url: proxy.URL(), publisherURL: url, adminURL: url, policy: quickly(1),
		handler: inside(func(msg *message.Message) ([]*message.Message, error) {
			attempts <- middleware.Attempt(msg.Context())
			if calls.add() == 1 {
				proxy.Cut()
				<-msg.Context().Done()
				return nil, msg.Context().Err()
			}
			return nil, nil
		}, deduplicator(middleware.DeduplicationKey)),
	})
	publish(t, url, "", r.queue, amqp.Publishing{Body: []byte("order"), MessageId: "id-1"})
	awaitAttempts(t, attempts, 1, 1)
	r.stop()
	require.Zero(t, testbroker.Depth(t, url, r.queue))
}
