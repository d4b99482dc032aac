package publisher_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/publisher"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

func TestConfirmedPublishArrives(t *testing.T) {
	t.Parallel()
	url := testbroker.URL(t)
	queue := declare(t, url, nil)
	p := open(t, url, long)
	require.NoError(t, p.Publish(t.Context(), "", queue, amqp.Publishing{
		Headers:     amqp.Table{"k": int32(5)},
		ContentType: "text/plain", DeliveryMode: amqp.Persistent, MessageId: "id", Body: []byte("hello"),
	}))
	msg, ok, err := testbroker.Channel(t, url).Get(queue, true)
	require.NoError(t, err)
	require.True(t, ok, "nil, and nothing in the queue")
	assert.Equal(t, "hello", string(msg.Body))
	assert.Equal(t, "text/plain", msg.ContentType)
	assert.Equal(t, "id", msg.MessageId)
	assert.Equal(t, amqp.Persistent, msg.DeliveryMode)
	assert.Equal(t, int32(5), msg.Headers["k"])
	assert.NotEmpty(t, msg.Headers[nonce])
}

func TestPublishWritesNothingIntoTheMessage(t *testing.T) {
	t.Parallel()
	url := testbroker.URL(t)
	queue := declare(t, url, nil)
	p := open(t, url, long)
	shared := amqp.Publishing{Headers: amqp.Table{"k": "v"}, Body: []byte("b")}
	for _, c := range callers(8, 20, func(int, string) error { return p.Publish(t.Context(), "", queue, shared) }) {
		assert.NoError(t, c.err)
	}
	assert.Equal(t, amqp.Table{"k": "v"}, shared.Headers)
	assert.NoError(t, p.Publish(t.Context(), "", queue, amqp.Publishing{}), "no headers at all")
}

func TestUnroutableIsReturned(t *testing.T) {
	t.Parallel()
	url, missing := testbroker.URL(t), testbroker.Queue(t)
	p := open(t, url, long)
	// One of its own: queues of other tests are bound to amq.fanout.
	ch, fanout := testbroker.Channel(t, url), missing+".fanout"
	require.NoError(t, ch.ExchangeDeclare(fanout, "fanout", false, false, false, false, nil))
	defer func() { require.NoError(t, ch.ExchangeDelete(fanout, false, false)) }()
	for exchange, key := range map[string]string{"": missing, "amq.direct": missing, fanout: ""} {
		err := p.Publish(t.Context(), exchange, key, amqp.Publishing{Headers: amqp.Table{}})
		var returned *publisher.ReturnedError
		require.ErrorAs(t, err, &returned)
		assert.Equal(t, &publisher.ReturnedError{
			Exchange: exchange, RoutingKey: key, Code: amqp.NoRoute, Text: "NO_ROUTE",
		}, returned)
		assert.Equal(t, fmt.Sprintf("returned by the broker: no queue for exchange %q, routing key %q (312 NO_ROUTE)", exchange, key), err.Error())
	}
}

func TestReturnsAreTakenForTheRightMessage(t *testing.T) {
	t.Parallel()
	url := testbroker.URL(t)
	queue, missing := declare(t, url, nil), testbroker.Queue(t)
	p := open(t, url, long)
	const n, each = 64, 79 // 5056 in all
	var mu sync.Mutex
	lost := make(map[string]bool)
	random := func() bool { return rand.IntN(3) == 0 }
	calls := callers(n, each, func(_ int, body string) error {
		key := queue
		if random() {
			key = missing
			mu.Lock()
			lost[body] = true
			mu.Unlock()
		}
		return p.say(t.Context(), key, body)
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
	assert.Equal(t, n*each-returnedOnes, noFalseSuccess(t, calls, url, queue))
	assert.Equal(t, 1, p.recorder.connections())
}

func TestFullQueueRefuses(t *testing.T) {
	t.Parallel()
	url := testbroker.URL(t)
	queue := declare(t, url, amqp.Table{"x-max-length": int32(1), "x-overflow": "reject-publish"})
	p := open(t, url, long)
	require.NoError(t, p.say(t.Context(), queue, "first"))
	for range 3 {
		assert.ErrorIs(t, p.say(t.Context(), queue, "more"), publisher.ErrRefused)
	}
	assert.Equal(t, map[string]int{"first": 1}, bodies(t, url, queue))
	assert.NoError(t, p.say(t.Context(), queue, "room again"))
	places := p.recorder.published()
	assert.Equal(t, places[0], places[len(places)-1], "a nack harms no channel")
}

func TestMissingExchangeLeavesTheOutcomeUnknown(t *testing.T) {
	t.Parallel()
	url := testbroker.URL(t)
	queue := declare(t, url, nil)
	p := open(t, url, long)
	require.NoError(t, p.say(t.Context(), queue, "before"))

	err := p.Publish(t.Context(), "no-such-exchange", "k", amqp.Publishing{Headers: amqp.Table{}})
	assert.ErrorIs(t, err, publisher.ErrUnknown)
	assert.NotErrorIs(t, err, publisher.ErrRefused)
	var reason *amqp.Error
	require.ErrorAs(t, err, &reason)
	assert.Equal(t, amqp.NotFound, reason.Code)

	require.NoError(t, p.say(t.Context(), queue, "after"))
	assert.Equal(t, map[string]int{"before": 1, "after": 1}, bodies(t, url, queue))
	places := p.recorder.published()
	require.Len(t, places, 3)
	assert.NotEqual(t, places[0], places[1], "an exchange that has not worked yet shares a channel")
	assert.Equal(t, places[0], places[2], "the common channel was closed")
	assert.Equal(t, 1, p.recorder.connections())
}

// The publishes to a missing exchange close a channel of their own: those of all
// others are published once and confirmed.
func TestMissingExchangeUnderManyCallers(t *testing.T) {
	t.Parallel()
	url := testbroker.URL(t)
	queue := declare(t, url, nil)
	p := open(t, url, long)
	const n, each = 32, 60
	calls := callers(n, each, func(caller int, body string) error {
		if caller == 0 {
			assert.ErrorIs(t, p.Publish(t.Context(), "no-such-exchange", "k", amqp.Publishing{}), publisher.ErrUnknown)
		}
		return p.say(t.Context(), queue, body)
	})
	for _, c := range calls {
		assert.NoError(t, c.err, c.body)
	}
	assert.Equal(t, n*each, noFalseSuccess(t, calls, url, queue))
	assert.Equal(t, 1, p.recorder.connections())
}

func TestWhatCannotBeSentHarmsNobody(t *testing.T) {
	t.Parallel()
	url := testbroker.URL(t)
	queue := declare(t, url, nil)
	p := open(t, url, long)
	require.NoError(t, p.say(t.Context(), queue, "before"))

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
		err := p.Publish(t.Context(), "", queue, msg)
		assert.ErrorIs(t, err, publisher.ErrNotSent, name)
		assert.Less(t, len(err.Error()), 200, "%s: the error quotes too much", name)
	}
	assert.ErrorIs(t, p.Publish(t.Context(), long, queue, amqp.Publishing{}), publisher.ErrNotSent)
	assert.ErrorIs(t, p.Publish(t.Context(), "", long, amqp.Publishing{}), publisher.ErrNotSent)

	require.NoError(t, p.say(t.Context(), queue, "after"))
	places := p.recorder.published()
	require.Len(t, places, 2, "it was sent")
	assert.Equal(t, places[0], places[1], "channel or connection was closed")
	assert.Equal(t, map[string]int{"before": 1, "after": 1}, bodies(t, url, queue))
}

func TestHeadersThatJustFitAFrame(t *testing.T) {
	t.Parallel()
	url := testbroker.URL(t)
	queue := declare(t, url, nil)
	p := open(t, url, long)
	publish := func(size int) error {
		return p.Publish(t.Context(), "", queue, amqp.Publishing{Headers: amqp.Table{"k": strings.Repeat("x", size)}})
	}
	// Found, not computed: the length of the nonce is the publisher's business.
	size := 131072
	for ; errors.Is(publish(size), publisher.ErrNotSent); size-- {
		require.Greater(t, size, 130000)
	}
	require.NoError(t, publish(size), "let through, but too large for the broker")
	assert.Equal(t, 1, p.recorder.connections())
}

func TestPublishUnderACancelledContext(t *testing.T) {
	t.Parallel()
	url := testbroker.URL(t)
	queue := declare(t, url, nil)
	p := open(t, url, long)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 20 {
		err := p.say(ctx, queue, "never")
		assert.ErrorIs(t, err, publisher.ErrNotSent)
		assert.ErrorIs(t, err, context.Canceled)
	}
	require.NoError(t, p.say(t.Context(), queue, "after"))
	assert.Empty(t, bodies(t, url, queue)["never"])
}

func TestContextEndsTheWaitForTheConfirm(t *testing.T) {
	t.Parallel()
	url := testbroker.URL(t)
	queue := declare(t, url, nil)
	proxy := testbroker.NewProxy(t, url)
	p := open(t, proxy.URL(), long)
	require.NoError(t, p.say(t.Context(), queue, "before"))
	proxy.Blackhole(true)
	ctx, cancel := context.WithCancelCause(t.Context())
	reason := errors.New("given up")
	result := make(chan error, 1)
	go func() { result <- p.say(ctx, queue, "lost") }()
	testbroker.WaitFor(t, "the publish", patience, func() bool { return proxy.Publishes() == 2 })
	cancel(reason)
	within(t, 0, "Publish", func() {
		err := <-result
		assert.ErrorIs(t, err, publisher.ErrUnknown)
		assert.ErrorIs(t, err, reason)
	})
}

func TestContextEndsTheWaitForAConnection(t *testing.T) {
	t.Parallel()
	proxy := testbroker.NewProxy(t, testbroker.URL(t))
	p := open(t, proxy.URL(), long)
	proxy.Refuse(true)
	proxy.Cut()
	testbroker.WaitFor(t, "the loss to be noticed", patience, func() bool { return p.Healthy() != nil })
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	within(t, 100*time.Millisecond, "Publish", func() {
		err := p.say(ctx, "any", "never")
		assert.ErrorIs(t, err, publisher.ErrNotSent)
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		assert.ErrorContains(t, err, "not connected to RabbitMQ")
	})
	assert.Zero(t, proxy.Publishes())
}

func TestShortContextsBreakNobodyElse(t *testing.T) {
	t.Parallel()
	url := testbroker.URL(t)
	queue := declare(t, url, nil)
	p := open(t, url, long)
	const patient, hasty, each = 16, 16, 60
	padding := strings.Repeat(".", 200<<10) // some contexts end while it is being written
	calls := callers(patient+hasty, each, func(caller int, body string) error {
		if caller < patient {
			return p.say(t.Context(), queue, body)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rand.IntN(4000))*time.Microsecond)
		defer cancel()
		_ = p.say(ctx, queue, body+padding)
		return errors.New("hasty")
	})
	patientOnes := 0
	for _, c := range calls {
		if fmt.Sprint(c.err) != "hasty" {
			patientOnes++
			assert.NoError(t, c.err, c.body)
		}
	}
	assert.Equal(t, patient*each, patientOnes)
	assert.Equal(t, patient*each, noFalseSuccess(t, calls, url, queue))
	assert.Equal(t, 1, p.recorder.connections(), "the connection was ended")
}

func TestDoRunsOnAChannelOfItsOwn(t *testing.T) {
	t.Parallel()
	url := testbroker.URL(t)
	queue := testbroker.Queue(t)
	p := open(t, url, long)
	require.NoError(t, p.Do(t.Context(), func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(queue, true, false, false, false, nil)
		return err
	}))
	require.NoError(t, p.say(t.Context(), queue, "a"))
	assert.Error(t, p.Do(t.Context(), func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(queue, false, true, false, false, nil) // a conflict
		return err
	}))
	require.NoError(t, p.say(t.Context(), queue, "b"))
	places := p.recorder.published()
	assert.Equal(t, places[0], places[1], "the channel of the publishes was closed")
}

func TestDoIsBounded(t *testing.T) {
	t.Parallel()
	proxy := testbroker.NewProxy(t, testbroker.URL(t))
	p := open(t, proxy.URL(), 300*time.Millisecond)
	proxy.Blackhole(true)
	within(t, 300*time.Millisecond, "Do", func() {
		assert.ErrorIs(t, p.Do(t.Context(), func(*amqp.Channel) error { return nil }), context.DeadlineExceeded)
	})
}
