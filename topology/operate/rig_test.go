package operate_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/operate"
)

// patience bounds every wait on a condition.
const patience = 60 * time.Second

// types are the kinds of queue that every command is run with.
var types = []topology.QueueType{topology.Quorum, topology.Classic}

// forTypes runs a test with each of them.
func forTypes(t *testing.T, test func(t *testing.T, b *box)) {
	t.Helper()
	for _, kind := range types {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			test(t, newBox(t, kind))
		})
	}
}

// box is a queue with its dead-letter queue, and a client.
type box struct {
	t           testing.TB
	url         string
	queue, dead string
	client      *topology.Client
	plan        topology.Plan
	ch          *amqp.Channel
}

func newBox(t testing.TB, kind topology.QueueType, options ...topology.Option) *box {
	t.Helper()
	url := testbroker.URL(t)
	return newBoxAt(t, url, testbroker.Queue(t), topology.PerQueue{Type: kind}, options...)
}

func newBoxAt(t testing.TB, url, queue string, strategy topology.PerQueue, options ...topology.Option) *box {
	t.Helper()
	b := &box{t: t, url: url, queue: queue}
	var err error
	options = append(options, topology.WithoutPolicyCheck()) // most nodes have no management API
	b.client, err = topology.Open(t.Context(), wamqp.NewDurableQueueConfig(b.url).Connection, strategy, options...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.client.Close()) })
	b.plan, err = strategy.Plan(b.queue, []time.Duration{time.Second, time.Hour})
	require.NoError(t, err)
	b.dead = b.plan.Dead.RoutingKey
	for _, q := range b.plan.Queues {
		testbroker.Delete(t, q.Name)
	}
	testbroker.Delete(t, b.dead+".originals")
	b.ch = testbroker.Channel(t, b.url)
	kind := strategy.Type
	if kind == "" {
		kind = topology.Quorum
	}
	_, err = b.ch.QueueDeclare(b.queue, true, false, false, false, amqp.Table{"x-queue-type": string(kind)})
	require.NoError(t, err)
	require.NoError(t, b.client.Declare(t.Context(), b.plan))
	require.NoError(t, b.ch.Confirm(false))
	return b
}

// publish publishes confirmed to a queue.
func (b *box) publish(queue string, messages ...amqp.Publishing) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var confirms []*amqp.DeferredConfirmation
	for _, m := range messages {
		m.DeliveryMode = amqp.Persistent
		confirm, err := b.ch.PublishWithDeferredConfirmWithContext(ctx, "", queue, true, false, m)
		require.NoError(b.t, err)
		confirms = append(confirms, confirm)
	}
	for _, confirm := range confirms {
		ok, err := confirm.WaitContext(ctx)
		require.NoError(b.t, err)
		require.True(b.t, ok, "the broker has confirmed it")
	}
}

// die publishes n dead letters, as they come from a handler, with the bodies 0, 1, 2 …
func (b *box) die(n int, changes ...func(i int, notes *header.RetryState, m *amqp.Publishing)) {
	b.t.Helper()
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	messages := make([]amqp.Publishing, 0, n)
	for i := range n {
		failed := at.Add(time.Duration(i) * time.Second)
		notes := header.RetryState{
			Failures: 3, Reason: header.ReasonExhausted, Error: "connection refused", Class: header.ClassRetryable,
			Handler: "ship", DeadAt: failed, OriginExchange: "shop", OriginRoutingKey: "order.placed",
			History: []header.AttemptError{{Attempt: 3, At: failed, Handler: "ship", Error: "connection refused", Class: header.ClassRetryable, Reason: header.ReasonExhausted}},
		}
		m := amqp.Publishing{
			MessageId: fmt.Sprint("order-", i), CorrelationId: "c", ContentType: "application/json", Timestamp: at,
			Headers: amqp.Table{"tenant": int32(i % 3)}, Body: fmt.Appendf(nil, `{"n":%d}`, i),
		}
		for _, change := range changes {
			change(i, &notes, &m)
		}
		for key, value := range notes.DeadHeaders(b.queue) {
			m.Headers[key] = value
		}
		messages = append(messages, m)
	}
	b.publish(b.dead, messages...)
}

// bodies takes all messages out of a queue; n is how many must be there at least.
func (b *box) bodies(queue string, n int) []string {
	b.t.Helper()
	var bodies []string
	for _, d := range b.drain(queue, n) {
		bodies = append(bodies, string(d.Body))
	}
	return bodies
}

func (b *box) drain(queue string, n int) []amqp.Delivery {
	b.t.Helper()
	var taken []amqp.Delivery
	testbroker.WaitFor(b.t, fmt.Sprintf("%d messages in %s", n, queue), patience, func() bool {
		for {
			d, ok, err := b.ch.Get(queue, true)
			require.NoError(b.t, err)
			if !ok {
				return len(taken) >= n
			}
			taken = append(taken, d)
		}
	})
	return taken
}

// depth waits until a queue holds n messages.
func (b *box) depth(queue string, n int) {
	b.t.Helper()
	testbroker.WaitFor(b.t, fmt.Sprintf("%d messages in %s", n, queue), patience, func() bool {
		return testbroker.Depth(b.t, b.url, queue) == n
	})
}

// letters lists what filter chooses.
func (b *box) letters(filter operate.Filter) []operate.Letter {
	b.t.Helper()
	var found []operate.Letter
	for l, err := range operate.Dead(b.t.Context(), b.client, b.plan, filter) {
		require.NoError(b.t, err)
		found = append(found, l)
	}
	return found
}
