//go:build unix

package chaos

import (
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

// witnessing returns a witness with a proxy before the broker, and a function that connects a
// client.
func witnessing(t *testing.T) (w *witness, p *testbroker.Proxy,
	connect func(name string) (*amqp.Connection, *amqp.Channel),
) {
	t.Helper()
	w, p = &witness{timeout: time.Second / 10}, testbroker.NewProxy(t, testbroker.URL(t))
	w.watch(p)
	return w, p, func(name string) (*amqp.Connection, *amqp.Channel) {
		properties := amqp.NewConnectionProperties()
		properties.SetClientConnectionName(name)
		conn, err := amqp.DialConfig(p.URL(), amqp.Config{Properties: properties})
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		ch, err := conn.Channel()
		require.NoError(t, err)
		return conn, ch
	}
}

// summary returns the losses without their times.
func summary(w *witness) []Loss {
	losses := append([]Loss(nil), w.all()...)
	for i := range losses {
		losses[i].Began, losses[i].At = time.Time{}, time.Time{}
	}
	return losses
}

func await(t *testing.T, w *witness, want ...Loss) {
	t.Helper()
	testbroker.WaitFor(t, "the losses", time.Minute, func() bool { return len(w.all()) >= len(want) })
	assert.ElementsMatch(t, want, summary(w))
}

func TestWitnessSeesWhatConsumersLose(t *testing.T) {
	t.Parallel()
	w, p, connect := witnessing(t)
	queue := testbroker.Queue(t)
	_, consuming := connect("c1: subscriber")
	_, err := consuming.QueueDeclare(queue, false, true, false, false, nil)
	require.NoError(t, err)
	deliveries, err := consuming.Consume(queue, "", true, false, false, false, nil)
	require.NoError(t, err)
	connection, publishing := connect("c2: retries")
	require.NoError(t, publishing.Publish("", queue, false, false, amqp.Publishing{}))
	<-deliveries
	connect("c3: idle")

	require.NoError(t, publishing.Close())
	channel, err := connection.Channel()
	require.NoError(t, err)
	assert.Empty(t, summary(w), "a channel that its client closes is no loss")

	require.NoError(t, channel.Publish("missing", queue, false, false, amqp.Publishing{}))
	closed := Loss{Consumer: "c2", What: LostPublishing}
	await(t, w, closed)

	p.Cut()
	await(t, w, closed, closed, Loss{Consumer: "c1", What: LostConsuming})
}

func TestWitnessKnowsWhoEndedAConnection(t *testing.T) {
	t.Parallel()
	w, _, connect := witnessing(t)
	connection, publishing := connect("c1: retries")
	require.NoError(t, publishing.Publish("", "nowhere", false, false, amqp.Publishing{}))
	require.NoError(t, connection.Close())
	await(t, w, Loss{Consumer: "c1", What: LostPublishing, Own: true})
}

// A publish to a target that has confirmed nothing for more than two timeouts is a scout; the next
// one, and one to another target, are not.
func TestWitnessSeesAScout(t *testing.T) {
	t.Parallel()
	w, p, connect := witnessing(t)
	_, publishing := connect("c1: retries")
	require.NoError(t, publishing.Confirm(false))
	say := func(to string) {
		require.NoError(t, publishing.Publish("", to, false, false, amqp.Publishing{}))
	}
	confirm, err := publishing.PublishWithDeferredConfirm("", "a", false, false, amqp.Publishing{})
	require.NoError(t, err)
	require.True(t, confirm.Wait())
	p.HoldConfirms(true)
	say("silent")
	<-time.After(3 * w.timeout)
	assert.Empty(t, summary(w))
	for _, to := range []string{"a", "silent", "silent"} {
		say(to)
	}
	await(t, w, Loss{Consumer: "c1", What: LostPublishing})
}

func TestConnectionName(t *testing.T) {
	t.Parallel()
	assert.Equal(t, "c1", connectionName([]byte("…\x0fconnection_nameS\x00\x00\x00\x0bc1: retries…")))
	assert.Equal(t, "c1", connectionName([]byte("\x0fconnection_nameS\x00\x00\x00\x02c1")))
	for _, broken := range []string{"\x00", "\x00\x00\x00\x09c1", "\xff\xff\xff\xffc1"} {
		assert.Empty(t, connectionName([]byte("\x0fconnection_nameS"+broken)))
	}
}
