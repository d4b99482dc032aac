package delayedx_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/topology"
)

// Given a broker without the plugin, then Subscribe fails and names the plugin, how to enable it
// and another strategy. The client works on: 3.10 closes the connection (F49), which comes back.
func TestWithoutThePlugin(t *testing.T) {
	t.Parallel()
	url, queue := testbroker.URL(t), testbroker.Queue(t)
	st := topology.DelayedExchange{Prefix: queue}
	t.Cleanup(func() { // 4.0 has declared these before it refuses the delayed exchange
		ch := testbroker.Channel(t, url)
		for _, exchange := range []string{".stranded", ".delayed.return"} {
			require.NoError(t, ch.ExchangeDelete(queue+exchange, false, false))
		}
	})
	client := rig.OpenClient(t, url, st)
	for range 2 {
		err := rig.SubscribeError(t, client, rig.QueueConfig(url), queue, backoff.List{time.Second})
		rig.RequireTexts(t, err, queue+".delayed", "x-delayed-message", "which the broker does not know",
			"rabbitmq-plugins enable rabbitmq_delayed_message_exchange", "topology.Levels")
	}
	p := rig.NewPublisher(t, client, url)
	rig.DeclareQueue(t, url, queue+".other", nil)
	testbroker.Delete(t, queue+".other")
	rig.RequireTexts(t, p.Publish(queue+".other", rig.DelayedBy(time.Second)),
		"rabbitmq_delayed_message_exchange")
	rig.WaitFor(t, "the client to be healthy", func() bool { return client.Healthy() == nil })
}
