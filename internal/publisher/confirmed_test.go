package publisher_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/publisher"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

func TestConfirmedPublishArrives(t *testing.T) {
	t.Parallel()
	p := onBroker(t, nil)
	require.NoError(t, p.Publish(t.Context(), "", p.queue, amqp.Publishing{
		Headers:     amqp.Table{"k": int32(5)},
		ContentType: "text/plain", DeliveryMode: amqp.Persistent, MessageId: "id", Body: []byte("hello"),
	}))
	msg := p.get()
	assert.Equal(t, "hello", string(msg.Body))
	assert.Equal(t, "text/plain", msg.ContentType)
	assert.Equal(t, "id", msg.MessageId)
	assert.Equal(t, amqp.Persistent, msg.DeliveryMode)
	assert.Equal(t, int32(5), msg.Headers["k"])
	assert.NotEmpty(t, msg.Headers[nonce])
}

func TestPublishWritesNothingIntoTheMessage(t *testing.T) {
	t.Parallel()
	p := onBroker(t, nil)
	shared := amqp.Publishing{Headers: amqp.Table{"k": "v"}, Body: []byte("b")}
	for _, c := range callers(8, 20, func(int, string) error {
		return p.Publish(t.Context(), "", p.queue, shared)
	}) {
		assert.NoError(t, c.err)
	}
	assert.Equal(t, amqp.Table{"k": "v"}, shared.Headers)
	assert.NoError(t, p.Publish(t.Context(), "", p.queue, amqp.Publishing{}), "no headers at all")
}

func TestUnroutableIsReturned(t *testing.T) {
	t.Parallel()
	p := onBroker(t, nil)
	missing := testbroker.Queue(t)
	// A new fanout exchange, because queues of other tests are bound to amq.fanout.
	ch, fanout := testbroker.Channel(t, p.url), missing+".fanout"
	require.NoError(t, ch.ExchangeDeclare(fanout, "fanout", false, false, false, false, nil))
	defer func() { require.NoError(t, ch.ExchangeDelete(fanout, false, false)) }()
	for exchange, key := range map[string]string{"": missing, "amq.direct": missing, fanout: ""} {
		err := p.Publish(t.Context(), exchange, key, amqp.Publishing{Headers: amqp.Table{}})
		var returned *publisher.ReturnedError
		require.ErrorAs(t, err, &returned)
		assert.Equal(t, &publisher.ReturnedError{
			Exchange: exchange, RoutingKey: key, Code: amqp.NoRoute, Text: "NO_ROUTE",
		}, returned)
		assert.EqualError(t, err, fmt.Sprintf("returned by the broker: "+
			"no queue for exchange %q, routing key %q (312 NO_ROUTE)", exchange, key))
	}
}

// Many callers publish to a queue and, a third of them, to a missing one. Each caller is told
// about its own message.
func TestReturnsAreTakenForTheRightMessage(t *testing.T) {
	t.Parallel()
	p := onBroker(t, nil)
	missing := testbroker.Queue(t)
	const n, each = 64, 79 // 5056 in all
	var mu sync.Mutex
	lost := make(map[string]bool)
	calls := callers(n, each, func(_ int, body string) error {
		if rand.IntN(3) > 0 {
			return p.say(body)
		}
		mu.Lock()
		lost[body] = true
		mu.Unlock()
		return p.sayTo(t.Context(), missing, body)
	})
	returnedOnes := 0
	for _, c := range calls {
		var returned *publisher.ReturnedError
		switch {
		case lost[c.body] && errors.As(c.err, &returned) && returned.RoutingKey == missing:
			returnedOnes++
		case lost[c.body]:
			t.Errorf("unroutable message %s: %v", c.body, c.err)
		case c.err != nil:
			t.Errorf("routable message %s: %v", c.body, c.err)
		}
	}
	assert.Len(t, calls, n*each)
	assert.Greater(t, returnedOnes, n*each/4)
	assert.Equal(t, n*each-returnedOnes, p.succeeded(calls))
	assert.Equal(t, 1, p.client.connections())
}

func TestFullQueueRefuses(t *testing.T) {
	t.Parallel()
	p := onBroker(t, amqp.Table{"x-max-length": int32(1), "x-overflow": "reject-publish"})
	require.NoError(t, p.say("first"))
	for range 3 {
		assert.ErrorIs(t, p.say("more"), publisher.ErrRefused)
	}
	p.hasOnly("first")
	assert.NoError(t, p.say("room again"))
	places := p.client.published()
	assert.Equal(t, places[0], places[len(places)-1], "a nack harms no channel")
}

// A message that AMQP cannot carry is refused before it is sent. Channel and connection live on.
func TestUnsendableMessageHarmsNoOtherPublish(t *testing.T) {
	t.Parallel()
	p := onBroker(t, nil)
	require.NoError(t, p.say("before"))

	long := strings.Repeat("x", 256)
	for name, msg := range map[string]amqp.Publishing{
		"unsupported type":         {Headers: amqp.Table{"k": uint64(1)}},
		"unsupported type in list": {Headers: amqp.Table{"k": []any{struct{}{}}}},
		"long key":                 {Headers: amqp.Table{long: "v"}},
		"long key in a table":      {Headers: amqp.Table{"k": amqp.Table{long: "v"}}},
		"long key in a list":       {Headers: amqp.Table{"k": []any{[]any{amqp.Table{long: "v"}}}}},
		"content type":             {ContentType: long},
		"content encoding":         {ContentEncoding: long},
		"correlation id":           {CorrelationId: long},
		"reply-to":                 {ReplyTo: long},
		"expiration":               {Expiration: long},
		"message id":               {MessageId: long},
		"type":                     {Type: long},
		"user id":                  {UserId: long},
		"app id":                   {AppId: long},
		"headers over a frame":     {Headers: amqp.Table{"k": strings.Repeat("x", 131072)}},
	} {
		err := p.Publish(t.Context(), "", p.queue, msg)
		assert.ErrorIs(t, err, publisher.ErrNotSent, name)
		assert.Less(t, len(err.Error()), 200, "%s: the error quotes too much", name)
	}
	assert.ErrorIs(t, p.Publish(t.Context(), long, p.queue, amqp.Publishing{}), publisher.ErrNotSent)
	assert.ErrorIs(t, p.Publish(t.Context(), "", long, amqp.Publishing{}), publisher.ErrNotSent)

	require.NoError(t, p.say("after"))
	places := p.client.published()
	require.Len(t, places, 2, "it was sent")
	assert.Equal(t, places[0], places[1], "channel or connection was closed")
	p.hasOnly("before", "after")
}

func TestHeadersThatJustFitAFrame(t *testing.T) {
	t.Parallel()
	p := onBroker(t, nil)
	publish := func(size int) error {
		headers := amqp.Table{"k": strings.Repeat("x", size)}
		return p.Publish(t.Context(), "", p.queue, amqp.Publishing{Headers: headers})
	}
	// The test searches for the size, because the nonce's length is an internal of the publisher.
	size := 131072
	for ; errors.Is(publish(size), publisher.ErrNotSent); size-- {
		require.Greater(t, size, 130000)
	}
	require.NoError(t, publish(size), "let through, but too large for the broker")
	assert.Equal(t, 1, p.client.connections())
}

func TestPublishUnderACancelledContext(t *testing.T) {
	t.Parallel()
	p := onBroker(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 20 {
		err := p.sayTo(ctx, p.queue, "never")
		assert.ErrorIs(t, err, publisher.ErrNotSent)
		assert.ErrorIs(t, err, context.Canceled)
	}
	require.NoError(t, p.say("after"))
	p.hasOnly("after")
}

func TestContextEndsTheWaitForTheConfirm(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := behindProxy(t, long)
		require.NoError(t, p.say("before"))
		p.proxy.Blackhole(true)
		ctx, cancel := context.WithCancelCause(t.Context())
		reason := errors.New("given up")
		result := make(chan error, 1)
		go func() { result <- p.sayTo(ctx, p.queue, "lost") }()
		p.awaitPublished(2)
		cancel(reason)
		within(t, 0, "Publish", func() {
			err := <-result
			assert.ErrorIs(t, err, publisher.ErrUnknown)
			assert.ErrorIs(t, err, reason)
		})
	})
}

func TestContextEndsTheWaitForAConnection(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := behindProxy(t, long)
		p.cutOff()
		within(t, 100*time.Millisecond, "Publish", func() {
			err := p.sayWithin(100*time.Millisecond, "never")
			assert.ErrorIs(t, err, publisher.ErrNotSent)
			assert.ErrorIs(t, err, context.DeadlineExceeded)
			assert.ErrorContains(t, err, "not connected to RabbitMQ")
		})
		assert.Zero(t, p.proxy.Publishes())
	})
}

// endsWith waits for the results of calls that were under way when the publisher was closed.
func endsWith(t *testing.T, results chan error, want error) {
	t.Helper()
	within(t, 0, "the calls", func() {
		for range cap(results) {
			assert.ErrorIs(t, <-results, want)
		}
	})
}

func TestPublishAfterClose(t *testing.T) {
	t.Parallel()
	for _, used := range []bool{false, true} {
		p := onBroker(t, nil)
		var said []string
		if used {
			said = []string{"before"}
			require.NoError(t, p.say("before"))
		}
		p.Close()
		p.Close()
		assert.ErrorIs(t, p.say("never"), publisher.ErrClosed)
		err := p.Do(t.Context(), func(*amqp.Channel) error { return nil })
		assert.ErrorIs(t, err, publisher.ErrClosed)
		assert.ErrorIs(t, p.Healthy(), publisher.ErrClosed)
		p.hasOnly(said...)
	}
}

func TestCloseUnderManyCallers(t *testing.T) {
	t.Parallel()
	p := onBroker(t, nil)
	var published atomic.Int64
	var closing sync.WaitGroup
	closing.Go(func() {
		await(t, "publishes", func() bool { return published.Load() > 200 })
		var all sync.WaitGroup
		for range 3 {
			all.Go(p.Close)
		}
		within(t, goodbye, "Close", all.Wait)
	})
	var calls []call
	within(t, patience, "publishing until Close", func() {
		calls = callers(32, 300, func(_ int, body string) error {
			err := p.say(body)
			if err == nil {
				published.Add(1)
			}
			return err
		})
	})
	closing.Wait()
	closed := 0
	for _, c := range calls {
		if c.err != nil {
			closed++
			if !isAny(t, c.err, publisher.ErrClosed, publisher.ErrUnknown) {
				break
			}
		}
	}
	assert.Positive(t, closed)
	assert.EqualValues(t, published.Load(), p.succeeded(calls))
}

func TestCloseEndsCallsThatWaitForAConnection(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := behindProxy(t, long)
		p.cutOff()
		results := p.begin(8, "never")
		within(t, goodbye, "Close", p.Close)
		endsWith(t, results, publisher.ErrClosed)
	})
}

func TestCloseEndsCallsThatWaitForTheirConfirm(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := behindProxy(t, long)
		require.NoError(t, p.say("before"))
		p.proxy.Blackhole(true)
		results := p.begin(8, "lost")
		p.awaitPublished(1 + cap(results))
		within(t, goodbye, "Close", p.Close)
		endsWith(t, results, publisher.ErrUnknown)
	})
}
