package topology_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/millpond-go/millpond/internal/testing/rig"

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
	h := rig.Inside(rig.FailUntil(100, attempts), deduplicator(nil))
	swallowed := make(chan int, 10)
	r := rig.Start(t, rig.Config{Policy: rig.Quickly(3), Handler: func(msg *message.Message) ([]*message.Message, error) {
		produced, err := h(msg)
		if err == nil {
			swallowed <- middleware.Attempt(msg.Context())
		}
		return produced, err
	}})
	r.Publish(amqp.Publishing{Body: []byte("order")})
	rig.AwaitAttempts(t, attempts, 1)
	rig.AwaitAttempts(t, swallowed, 2)
	r.RequireNothingLeft(0)
	require.Empty(t, attempts)
}

// With our key a message that comes again is handled, for whichever reason it does;
// the one that its producer has sent twice is not.
func TestComposedWithDeduplicator(t *testing.T) {
	t.Parallel()
	for name, place := range map[string]func(*rig.Config, message.HandlerMiddleware){
		"inside":  func(rc *rig.Config, m message.HandlerMiddleware) { rc.Handler = rig.Inside(rc.Handler, m) },
		"outside": func(rc *rig.Config, m message.HandlerMiddleware) { rc.Outer = []message.HandlerMiddleware{m} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var calls rig.Timeline
			attempts := make(chan int, 10)
			rc := rig.Config{Policy: rig.Quickly(1), Handler: func(msg *message.Message) ([]*message.Message, error) {
				attempts <- middleware.Attempt(msg.Context())
				switch calls.Add() {
				case 1:
					return nil, middleware.Snooze(rig.ErrFailed, 100*time.Millisecond)
				case 2, 3, 4:
					return nil, rig.ErrFailed
				}
				return nil, nil
			}}
			place(&rc, deduplicator(middleware.DeduplicationKey))
			r := rig.Start(t, rc)
			order := amqp.Publishing{Body: []byte("order"), MessageId: "id-1"}
			r.Publish(order)
			rig.AwaitAttempts(t, attempts, 1, 1, 2) // set aside, then failed twice
			dead := r.DeadLetter()
			r.Publish(order) // absorbed
			r.Publish(amqp.Publishing{Body: []byte("order"), MessageId: "id-1", Headers: dead.Headers})
			rig.AwaitAttempts(t, attempts, 1, 2) // moved back, failed, and handled
			rig.WaitFor(t, "an empty queue", func() bool { return r.Depth("") == 0 })
			r.RequireNothingLeft(0)
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
	var calls rig.Timeline
	r := rig.Start(t, rig.Config{
		URL: proxy.URL(), PublisherURL: url, AdminURL: url, Policy: rig.Quickly(1),
		Handler: rig.Inside(func(msg *message.Message) ([]*message.Message, error) {
			attempts <- middleware.Attempt(msg.Context())
			if calls.Add() == 1 {
				proxy.Cut()
				<-msg.Context().Done()
				return nil, msg.Context().Err()
			}
			return nil, nil
		}, deduplicator(middleware.DeduplicationKey)),
	})
	rig.Publish(t, url, "", r.Queue, amqp.Publishing{Body: []byte("order"), MessageId: "id-1"})
	rig.AwaitAttempts(t, attempts, 1, 1)
	r.Stop()
	require.Zero(t, testbroker.Depth(t, url, r.Queue))
}
