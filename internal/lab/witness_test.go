package main

import (
	"slices"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

// observed are the losses that a witness has recorded.
type observed struct {
	witness *witness
	proxy   *testbroker.Proxy
	mu      sync.Mutex
	all     []event
}

// witnessing returns a witness with a proxy before the broker.
func witnessing(t *testing.T) *observed {
	t.Helper()
	o := &observed{proxy: testbroker.NewProxy(t, testbroker.URL(t))}
	o.witness = newWitness(time.Second/10, func(e event) {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.all = append(o.all, e)
	})
	o.witness.watch(o.proxy)
	return o
}

func (o *observed) connect(t *testing.T, name string) (*amqp.Connection, *amqp.Channel) {
	t.Helper()
	properties := amqp.NewConnectionProperties()
	properties.SetClientConnectionName(name)
	conn, err := amqp.DialConfig(o.proxy.URL(), amqp.Config{Properties: properties})
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	ch, err := conn.Channel()
	require.NoError(t, err)
	return conn, ch
}

func (o *observed) losses() []event {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.all)
}

func (o *observed) await(t *testing.T, want ...event) {
	t.Helper()
	testbroker.WaitFor(t, "the losses", time.Minute,
		func() bool { return len(o.losses()) >= len(want) })
	assert.ElementsMatch(t, want, o.losses())
}

func TestWitnessSeesWhatInstancesLose(t *testing.T) {
	t.Parallel()
	o := witnessing(t)
	queue := testbroker.Queue(t)
	_, consuming := o.connect(t, "i1/x: subscriber")
	_, err := consuming.QueueDeclare(queue, false, true, false, false, nil)
	require.NoError(t, err)
	deliveries, err := consuming.Consume(queue, "", true, false, false, false, nil)
	require.NoError(t, err)
	connection, publishing := o.connect(t, "i2/x: retries")
	require.NoError(t, publishing.Publish("", queue, false, false, amqp.Publishing{}))
	<-deliveries
	o.connect(t, "i3/x: idle")

	require.NoError(t, publishing.Close())
	channel, err := connection.Channel()
	require.NoError(t, err)
	assert.Empty(t, o.losses(), "a channel that its client closes is no loss")

	require.NoError(t, channel.Publish("missing", queue, false, false, amqp.Publishing{}))
	closed := event{Kind: lost, Who: "i2/x", Text: lostPublishing}
	o.await(t, closed)
	o.proxy.Cut()
	o.await(t, closed, closed, event{Kind: lost, Who: "i1/x", Text: lostConsuming})
}

func TestWitnessKnowsWhoEndedAConnection(t *testing.T) {
	t.Parallel()
	o := witnessing(t)
	connection, publishing := o.connect(t, "i1/x: retries")
	require.NoError(t, publishing.Publish("", "nowhere", false, false, amqp.Publishing{}))
	require.NoError(t, connection.Close())
	o.await(t, event{Kind: lost, Who: "i1/x", Text: lostPublishing, Own: true})
}

// A publish to a target that has confirmed nothing for more than two timeouts is a scout; the next
// one, and one to another target, are not.
func TestWitnessSeesAScout(t *testing.T) {
	t.Parallel()
	o := witnessing(t)
	_, publishing := o.connect(t, "i1/x: retries")
	require.NoError(t, publishing.Confirm(false))
	say := func(to string) {
		require.NoError(t, publishing.Publish("", to, false, false, amqp.Publishing{}))
	}
	confirm, err := publishing.PublishWithDeferredConfirm("", "a", false, false, amqp.Publishing{})
	require.NoError(t, err)
	require.True(t, confirm.Wait())
	o.proxy.HoldConfirms(true)
	say("silent")
	<-time.After(3 * o.witness.timeout)
	assert.Empty(t, o.losses())
	for _, to := range []string{"a", "silent", "silent"} {
		say(to)
	}
	o.await(t, event{Kind: lost, Who: "i1/x", Text: lostPublishing})
	open := o.witness.open()
	require.Len(t, open, 4)
	assert.Contains(t, open[0], "i1/x: channel 1, publish ")
}

func TestConnectionName(t *testing.T) {
	t.Parallel()
	assert.Equal(t, "i1/x", connectionName(
		[]byte("…\x0fconnection_nameS\x00\x00\x00\x0di1/x: retries…")))
	for _, broken := range []string{"\x00", "\x00\x00\x00\x09c1", "\xff\xff\xff\xffc1"} {
		assert.Empty(t, connectionName([]byte("\x0fconnection_nameS"+broken)))
	}
}
