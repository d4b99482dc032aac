package middleware_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/middleware"
)

// Given a handler that another Pub/Sub feeds, which brings a nacked message back at once, when it
// fails for ever, then it is called less and less often, with one line a minute, and its successes
// do not wait.
func TestFailuresOfAnotherPubSubAreSlowedDown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		logger := watermill.NewCaptureLogger()
		refuses := republishFunc(func(context.Context, *message.Message) error {
			return middleware.ErrNotDelivered
		})
		retry := newRetry(t, refuses, withLogger(logger))
		began, calls := time.Now(), 0
		fails := retry.Middleware(consumer(func(*message.Message) error { calls++; return errBoom }))
		for time.Since(began) < 5*time.Minute {
			_, err := fails(message.NewMessage("", nil))
			wantErrors(t, err, errBoom, middleware.ErrNotDelivered)
		}
		assert.Equal(t, 14, calls) // after 1, 3, 7, 15, 31 seconds, and then every 30
		assert.Len(t, logger.Captured()[watermill.ErrorLogLevel], 5)

		began = time.Now()
		acked(t, retry.Middleware(succeeds), message.NewMessage("", nil))
		assert.Zero(t, time.Since(began))
		time.Sleep(2 * time.Minute)
		began = time.Now()
		_, _ = fails(message.NewMessage("", nil))
		assert.Equal(t, time.Second, time.Since(began), "it begins anew after a calm minute")

		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Millisecond, cancel)
		began = time.Now()
		_, err := fails(message.NewMessageWithContext(ctx, "", nil))
		require.Error(t, err)
		assert.Less(t, time.Since(began), time.Second, "a Subscriber that closes does not wait")
	})
}
