package topology_test

import (
	"testing"

	"github.com/millpond-go/millpond/internal/testing/rig"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

// What a return through the user's exchange stands on (F27): an alternate exchange
// looks at its own bindings alone, a queue that is reached two ways gets one copy,
// and an exchange that is deleted with its last binding goes with its queue, but
// not with a restart.
func TestReturnStandsOnTheseFacts(t *testing.T) {
	t.Parallel()
	node := testbroker.Private(t)
	ch := testbroker.Channel(t, node.URL())
	exchange := func(name, kind string, autoDelete bool, alternate string) {
		args := amqp.Table{}
		if alternate != "" {
			args["alternate-exchange"] = alternate
		}
		require.NoError(t, ch.ExchangeDeclare(name, kind, true, autoDelete, false, false, args))
	}
	queue := func(name, kind string, args amqp.Table) {
		all := amqp.Table{"x-queue-type": kind}
		for key, value := range args {
			all[key] = value
		}
		_, err := ch.QueueDeclare(name, true, false, false, false, all)
		require.NoError(t, err)
	}
	// reached returns in which of the queues a message lands, which are emptied.
	reached := func(to, key string, headers amqp.Table, queues ...string) map[string]int {
		ch := testbroker.Channel(t, node.URL())
		require.NoError(t, ch.Confirm(false))
		confirm, err := ch.PublishWithDeferredConfirm(to, key, false, false, amqp.Publishing{Headers: headers, DeliveryMode: amqp.Persistent})
		require.NoError(t, err)
		require.True(t, confirm.Wait())
		found := map[string]int{}
		for _, name := range queues {
			for {
				_, ok, err := ch.Get(name, true)
				require.NoError(t, err)
				if !ok {
					break
				}
				found[name]++
			}
		}
		return found
	}
	exchange("stranded", "fanout", false, "")
	queue("stranded", "classic", nil)
	require.NoError(t, ch.QueueBind("stranded", "", "stranded", false, nil))
	exchange("events", "topic", false, "")

	// An exchange with a binding to one that leads nowhere: the alternate is not used.
	exchange("plain", "topic", false, "stranded")
	require.Equal(t, map[string]int{"stranded": 1}, reached("plain", "a.b", nil, "stranded"))
	require.NoError(t, ch.ExchangeBind("events", "#", "plain", false, nil))
	require.Empty(t, reached("plain", "a.b", nil, "stranded"))
	queue("held", "quorum", amqp.Table{
		"x-message-ttl": int64(100), "x-dead-letter-exchange": "plain",
		"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish",
	})
	require.Empty(t, reached("", "held", nil))
	rig.WaitFor(t, "the wait to end", func() bool { return testbroker.Depth(t, node.URL(), "held") == 0 })
	require.Zero(t, testbroker.Depth(t, node.URL(), "stranded"), "held in the wait queue")
	_, err := ch.QueueDelete("held", false, false, false)
	require.NoError(t, err)

	exchange("return", "headers", false, "stranded")
	kinds := []string{"classic", "quorum"}
	prepare := func(kind string) {
		anchor, own := kind+".anchor", amqp.Table{"x-match": "all", "millpond-queue": kind}
		queue(kind, kind, nil)
		queue(kind+"-sibling", kind, nil)
		exchange(anchor, "direct", true, "events")
		require.NoError(t, ch.QueueBind(kind, anchor, anchor, false, nil))
		require.NoError(t, ch.QueueBind(kind, "", "return", false, own))
		require.NoError(t, ch.ExchangeBind(anchor, "", "return", false, own))
		require.NoError(t, ch.QueueBind(kind, kind+".*", "events", false, nil))
		require.NoError(t, ch.QueueBind(kind+"-sibling", kind+".*", "events", false, nil))
	}
	back := func(kind string, queues ...string) map[string]int {
		return reached("return", kind+".b", amqp.Table{"millpond-queue": kind}, append(queues, "stranded")...)
	}
	for _, kind := range kinds {
		prepare(kind)
		require.Equal(t, map[string]int{kind: 1, kind + "-sibling": 1}, back(kind, kind, kind+"-sibling"), "one copy each")
		require.NoError(t, ch.QueueUnbind(kind, kind+".*", "events", nil))
		require.Equal(t, map[string]int{kind: 1, kind + "-sibling": 1}, back(kind, kind, kind+"-sibling"), "without a binding of its own")
	}
	node.Stop(t)
	node.Start(t)
	ch = testbroker.Channel(t, node.URL())
	for _, kind := range kinds {
		require.Equal(t, map[string]int{kind: 1, kind + "-sibling": 1}, back(kind, kind, kind+"-sibling"), "after a restart")
		_, err := ch.QueueDelete(kind, false, false, false)
		require.NoError(t, err)
		require.Equal(t, map[string]int{"stranded": 1}, back(kind, kind+"-sibling"), "the queue has vanished, and its sibling gets nothing")
		prepare(kind)
	}
	require.NoError(t, ch.ExchangeDelete("events", false, false))
	for _, kind := range kinds {
		require.Equal(t, map[string]int{kind: 1}, back(kind, kind, kind+"-sibling"), "the exchange has vanished")
	}
}
