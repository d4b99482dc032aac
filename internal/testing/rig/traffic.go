package rig

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
)

// dial opens a new connection with a channel; closed ends both.
func dial(url string) (ch *amqp.Channel, closed func(), err error) {
	conn, err := testbroker.DialURL(url)
	if err != nil {
		return nil, nil, err
	}
	closed = func() { _ = conn.CloseDeadline(time.Now().Add(time.Second)) }
	if ch, err = conn.Channel(); err != nil {
		closed()
	}
	return ch, closed, err
}

// Message returns a persistent message.
func Message(body string) amqp.Publishing {
	return amqp.Publishing{Body: []byte(body), DeliveryMode: amqp.Persistent}
}

// Named returns a message whose id is its body: native.Strategy rejects no message without an id.
func Named(body string) amqp.Publishing {
	msg := Message(body)
	msg.MessageId = body
	return msg
}

// Suspect returns the headers of a message that the crash guard has isolated once and that is back
// from a wait queue of topology.PerQueue.
func Suspect(queue string) amqp.Table {
	return amqp.Table{
		header.Queue: queue, keys.Interruptions: "1",
		"x-death": []any{amqp.Table{"queue": queue + ".wait.1s", "reason": "expired"}},
	}
}

// DelayedBy returns a message with a delay in its context, as a CQRS bus makes it.
func DelayedBy(d time.Duration) *message.Message {
	msg := message.NewMessage(watermill.NewUUID(), []byte("later"))
	msg.Metadata.Set("kind", "reminder")
	msg.SetContext(delay.WithContext(context.Background(), delay.For(d)))
	return msg
}

// Publish publishes a mandatory message, as a plain AMQP client does, and waits for the confirm.
func Publish(t testing.TB, url, exchange, key string, msg amqp.Publishing) {
	t.Helper()
	ch, closed, err := dial(url)
	require.NoError(t, err)
	defer closed()
	require.True(t, confirmed(t, ch, exchange, key, msg), "the broker has confirmed it")
}

// confirmed publishes a message and reports whether the broker acked it.
func confirmed(t testing.TB, ch *amqp.Channel, exchange, key string, msg amqp.Publishing) bool {
	t.Helper()
	require.NoError(t, ch.Confirm(false))
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	confirm, err := ch.PublishWithDeferredConfirmWithContext(ctx, exchange, key, true, false, msg)
	require.NoError(t, err)
	ok, err := confirm.WaitContext(ctx)
	require.NoError(t, err)
	return ok
}

// Post publishes persistent messages to a queue and waits until all are confirmed.
func Post(t testing.TB, url, queue string, messages ...amqp.Publishing) {
	t.Helper()
	ch, closed, err := dial(url)
	require.NoError(t, err)
	defer closed()
	require.NoError(t, ch.Confirm(false))
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	var confirms []*amqp.DeferredConfirmation
	for _, m := range messages {
		m.DeliveryMode = amqp.Persistent
		confirm, err := ch.PublishWithDeferredConfirmWithContext(ctx, "", queue, true, false, m)
		require.NoError(t, err)
		confirms = append(confirms, confirm)
	}
	for _, confirm := range confirms {
		ok, err := confirm.WaitContext(ctx)
		require.NoError(t, err)
		require.True(t, ok, "the broker has confirmed it")
	}
}

// Fill publishes n persistent messages with the bodies 0, 1, 2 …, and waits for all confirms.
func Fill(t testing.TB, url, queue string, n int) {
	t.Helper()
	messages := make([]amqp.Publishing, n)
	for i := range messages {
		messages[i] = Named(fmt.Sprint(i))
	}
	Post(t, url, queue, messages...)
}

// Drain waits for n messages in a queue, and takes all that are there.
func Drain(t testing.TB, url, queue string, n int) (taken []amqp.Delivery) {
	t.Helper()
	ch, closed, err := dial(url)
	require.NoError(t, err)
	defer closed()
	WaitFor(t, fmt.Sprintf("%d messages in %s", n, queue), func() bool {
		for {
			d, ok, err := ch.Get(queue, true)
			require.NoError(t, err)
			if !ok {
				return len(taken) >= n
			}
			taken = append(taken, d)
		}
	})
	return taken
}

// Bodies are the bodies of messages.
func Bodies(deliveries []amqp.Delivery) (bodies []string) {
	for _, d := range deliveries {
		bodies = append(bodies, string(d.Body))
	}
	return bodies
}

// Take waits for a message in a queue and acks it. The queue may be missing at first.
func Take(t testing.TB, url, queue string) amqp.Delivery {
	t.Helper()
	var got amqp.Delivery
	ch, closed, err := dial(url)
	require.NoError(t, err)
	defer func() { closed() }()
	WaitFor(t, "a message in "+queue, func() bool {
		d, ok, err := ch.Get(queue, true)
		got = d
		if err == nil {
			return ok
		}
		// A missing queue closes the channel, and a queue that is just being deleted may close the
		// connection on 3.10.
		closed()
		ch, closed, err = dial(url)
		require.NoError(t, err)
		return false
	})
	return got
}

// Ready counts the ready messages of a queue on a channel that is open already.
func Ready(t testing.TB, ch *amqp.Channel, queue string) int {
	t.Helper()
	found, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
	require.NoError(t, err)
	return found.Messages
}

// Stillness decides when no message is anywhere, so that a missing message counts as lost.
type Stillness struct {
	since time.Time
	looks int
}

// Look reports whether nothing was seen for five seconds and at fifty looks. A busy machine may
// take seconds for one look.
func (s *Stillness) Look(something bool) bool {
	if something || s.looks == 0 {
		*s = Stillness{since: time.Now()}
	}
	s.looks++
	return s.looks > 50 && time.Since(s.since) > 5*time.Second
}

// DeclareQueue declares a durable queue, as another program could have declared it.
func DeclareQueue(t testing.TB, url, queue string, args amqp.Table) {
	t.Helper()
	_, err := testbroker.Channel(t, url).QueueDeclare(queue, true, false, false, false, args)
	require.NoError(t, err)
}

// DeclareExchange declares a durable exchange and deletes it at the end of the test.
func DeclareExchange(t testing.TB, url, exchange, kind string) {
	t.Helper()
	ch := testbroker.Channel(t, url)
	require.NoError(t, ch.ExchangeDeclare(exchange, kind, true, false, false, false, nil))
	t.Cleanup(func() { _ = testbroker.Channel(t, url).ExchangeDelete(exchange, false, false) })
}

// TopicExchange declares a topic exchange of the test's own and returns its name.
func TopicExchange(t testing.TB) string {
	t.Helper()
	name := testbroker.Queue(t)
	DeclareExchange(t, testbroker.URL(t), name, "topic")
	return name
}

// BindQueue declares a queue that keeps the messages of an exchange with this key.
func BindQueue(t testing.TB, url, queue, exchange, key string) {
	t.Helper()
	DeclareQueue(t, url, queue, nil)
	require.NoError(t, testbroker.Channel(t, url).QueueBind(queue, key, exchange, false, nil))
}

// Unbind deletes a binding of a plan.
func Unbind(t testing.TB, url string, b topology.Binding) {
	t.Helper()
	ch := testbroker.Channel(t, url)
	if b.ToExchange != "" {
		require.NoError(t, ch.ExchangeUnbind(b.ToExchange, b.RoutingKey, b.Exchange, false, nil))
		return
	}
	var args amqp.Table
	if b.Header != "" {
		args = amqp.Table{"x-match": "all", b.Header: b.Value}
	}
	require.NoError(t, ch.QueueUnbind(b.Queue, b.RoutingKey, b.Exchange, args))
}

// BesideOn declares a queue that keeps the messages of a topic exchange with this key.
func BesideOn(t testing.TB, url, exchange, key string) string {
	t.Helper()
	DeclareExchange(t, url, exchange, "topic")
	name := testbroker.Queue(t)
	BindQueue(t, url, name, exchange, key)
	return name
}

// DeliveryLimit returns the arguments of a quorum queue with a delivery limit: a number, "default"
// or "none". It also returns how often a broker of this version gives a message back before it
// drops the message (F2).
func DeliveryLimit(t testing.TB, declared, version string) (amqp.Table, int64) {
	t.Helper()
	args := amqp.Table{"x-queue-type": "quorum"}
	old := strings.HasPrefix(version, "3.")
	switch {
	case declared == "default" && old:
		return args, math.MaxInt64
	case declared == "default":
		return args, 20
	case declared == "none" && old:
		args["x-delivery-limit"] = int64(1 << 30) // -1 means 0 there (F2)
		return args, math.MaxInt64
	case declared == "none":
		args["x-delivery-limit"] = int64(-1)
		return args, math.MaxInt64
	}
	var n int64
	_, err := fmt.Sscan(declared, &n)
	require.NoError(t, err)
	args["x-delivery-limit"] = n
	return args, n
}
