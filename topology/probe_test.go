package topology_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/millpond-go/millpond/internal/testing/rig"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/topology"
)

// probed is how long each message of a probe waits.
const probed = 100 * time.Millisecond

// probe lets one message after the other wait in a queue of its own; what it
// returns ends that and says by how much the slowest was late.
func probe(t *testing.T, url string, kind topology.QueueType) func() time.Duration {
	t.Helper()
	ch, queue := testbroker.Channel(t, url), "probe-"+string(kind)
	plan, err := topology.PerQueue{Type: kind}.Plan(queue, []time.Duration{probed})
	require.NoError(t, err)
	for _, q := range append(plan.Queues, topology.Queue{Name: queue}) {
		_, err := ch.QueueDeclare(q.Name, true, false, false, false, q.Arguments)
		require.NoError(t, err)
	}
	deliveries, err := ch.Consume(queue, "", true, false, false, false, nil)
	require.NoError(t, err)
	stop, slowest := make(chan struct{}), make(chan time.Duration, 1)
	go func() {
		worst := time.Duration(0)
		defer func() { slowest <- worst }()
		for {
			began := time.Now()
			if ch.Publish("", plan.WaitSteps[0].RoutingKey, true, false, amqp.Publishing{DeliveryMode: amqp.Persistent}) != nil {
				return
			}
			<-deliveries
			worst = max(worst, time.Since(began)-probed)
			select {
			case <-stop:
				return
			default:
			}
		}
	}()
	return func() time.Duration {
		close(stop)
		select {
		case worst := <-slowest:
			return worst
		case <-time.After(rig.Patience):
			t.Fatal("the probe has not ended")
			return 0
		}
	}
}

// publishAtRate publishes n numbered messages, so many a second, and waits until
// all are confirmed.
func publishAtRate(t testing.TB, url, queue string, n, rate int) {
	t.Helper()
	ch := testbroker.Channel(t, url)
	require.NoError(t, ch.Confirm(false))
	tick := time.NewTicker(time.Second / time.Duration(rate))
	defer tick.Stop()
	var confirms []*amqp.DeferredConfirmation
	for i := range n {
		<-tick.C
		confirm, err := ch.PublishWithDeferredConfirm("", queue, true, false,
			rig.Message(strconv.Itoa(i)))
		require.NoError(t, err)
		confirms = append(confirms, confirm)
	}
	ctx, cancel := context.WithTimeout(t.Context(), rig.Patience)
	defer cancel()
	for _, confirm := range confirms {
		ok, err := confirm.WaitContext(ctx)
		require.NoError(t, err)
		require.True(t, ok)
	}
}
