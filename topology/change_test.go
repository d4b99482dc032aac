package topology_test

import (
	"strings"
	"testing"
	"time"

	"github.com/millpond-go/millpond/internal/testing/rig"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
)

// A policy changed from 2s/5s to 3s/5s, and then quorum changed to classic, on a
// live queue: no conflict, and what waits still comes back (T5).
func TestPolicyAndTypeChangeOnALiveQueue(t *testing.T) {
	t.Parallel()
	url, queue := testbroker.URL(t), testbroker.Queue(t)
	type call struct {
		body    string
		attempt int
	}
	calls := make(chan call, 100)
	release := func(strategy topology.PerQueue, policy backoff.List, failOn string) *rig.Service {
		return rig.Start(t, rig.Config{
			URL: url, Queue: queue, Strategy: strategy, Policy: policy,
			Handler: func(msg *message.Message) ([]*message.Message, error) {
				c := call{string(msg.Payload), middleware.Attempt(msg.Context())}
				calls <- c
				if c.body == failOn && c.attempt == 1 {
					return nil, rig.ErrFailed
				}
				return nil, nil
			},
		})
	}
	quorum, classic := topology.PerQueue{}, topology.PerQueue{Type: topology.Classic}
	returned := map[call]bool{} // also while the next release starts
	next := func() call {
		select {
		case c := <-calls:
			return c
		case <-time.After(rig.Patience):
			t.Fatalf("only these came back: %v", returned)
			return call{}
		}
	}
	deploy := func(strategy topology.PerQueue, policy backoff.List, body string) *rig.Service {
		r := release(strategy, policy, body)
		r.Publish(amqp.Publishing{Body: []byte(body)})
		for c := next(); c != (call{body, 1}); c = next() {
			require.Equal(t, 2, c.attempt, c.body)
			returned[c] = true
		}
		plan, err := strategy.Plan(queue, policy)
		require.NoError(t, err)
		rig.WaitFor(t, body+" waits", func() bool {
			return testbroker.Depth(t, url, plan.WaitSteps[0].RoutingKey) == 1
		})
		return r
	}
	deploy(quorum, backoff.List{2 * time.Second, 5 * time.Second}, "first").Stop()
	deploy(quorum, backoff.List{3 * time.Second, 5 * time.Second}, "second").Stop()
	last := deploy(classic, backoff.List{3 * time.Second, 5 * time.Second}, "third")

	for len(returned) < 3 {
		returned[next()] = true
	}
	require.Equal(t, map[call]bool{{"first", 2}: true, {"second", 2}: true, {"third", 2}: true}, returned)
	require.Contains(t, last.Logs.Text(), "it is used as it is", "the quorum DLQ is adopted")
	require.NotContains(t, last.Logs.Text(), "PRECONDITION_FAILED")
}

// A queue of the name of ours with other arguments: a clear error that names
// queue, argument, wanted and found.
func TestConflictingWaitQueueIsNamed(t *testing.T) {
	t.Parallel()
	url, queue := testbroker.URL(t), testbroker.Queue(t)
	_, err := testbroker.Channel(t, url).QueueDeclare(queue+".wait.1s", true, false, false, false,
		amqp.Table{"x-queue-type": "quorum", "x-message-ttl": int64(2000)})
	require.NoError(t, err)
	client, sub := rig.OpenSubscriber(t, url, topology.PerQueue{}, backoff.List{time.Second})
	_ = client
	_, err = sub.Subscribe(t.Context(), queue)
	var conflict *topology.ConflictError
	require.ErrorAs(t, err, &conflict)
	require.ErrorContains(t, err, "exists with other arguments")
	require.Equal(t, queue+".wait.1s", conflict.Name)
	require.NotEmpty(t, conflict.Argument)
	require.NotEmpty(t, conflict.Wanted)
	require.NotEmpty(t, conflict.Found)
	t.Log(err)
}

// An exchange of an older version has no alternate exchange: the error says that it
// may be deleted, and the next Subscribe declares it.
func TestConflictingExchangeIsNamed(t *testing.T) {
	t.Parallel()
	url, queue := testbroker.URL(t), testbroker.Queue(t)
	testbroker.Delete(t, queue+".retry.1.1s")
	exchange := queue + ".retry"
	ch := testbroker.Channel(t, url)
	require.NoError(t, ch.ExchangeDeclare(exchange, "direct", true, false, false, false, nil))
	t.Cleanup(func() { _ = testbroker.Channel(t, url).ExchangeDelete(exchange, false, false) })
	_, sub := rig.OpenSubscriber(t, url, topology.PerAttempt{}, backoff.List{time.Second})
	_, err := sub.Subscribe(t.Context(), queue)
	var conflict *topology.ConflictError
	require.ErrorAs(t, err, &conflict)
	require.Equal(t, "exchange "+exchange+" alternate-exchange", conflict.Kind+" "+conflict.Name+" "+conflict.Argument)
	require.ErrorContains(t, err, "stop all services that use it, delete it, and start them again")
	t.Log(err)
	require.NoError(t, ch.ExchangeDelete(exchange, false, false))
	_, err = sub.Subscribe(t.Context(), queue)
	require.NoError(t, err)
}

// The user's own queue or exchange is not one of the strategy, so no other name in the
// strategy helps: the error names the field of the configuration.
func TestConflictOnTheUsersOwnQueueNamesTheField(t *testing.T) {
	t.Parallel()
	url := testbroker.URL(t)
	ch := testbroker.Channel(t, url)
	client, err := topology.Open(t.Context(), rig.ConnectionConfig(url), topology.PerQueue{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	for name, c := range map[string]struct {
		exists, wanted amqp.Table
		want           string
	}{
		"another type": {amqp.Table{"x-queue-type": "quorum"}, nil, `set Queue.Arguments["x-queue-type"] of the configuration to what the queue has, or delete the queue once it is empty`},
		"has one more": {amqp.Table{"x-max-priority": int32(5)}, nil, `set Queue.Arguments["x-max-priority"] of the configuration to what the queue has, or`},
		"lacks one":    {nil, amqp.Table{"x-single-active-consumer": true}, `leave Queue.Arguments["x-single-active-consumer"] out of the configuration, or`},
		"other value":  {amqp.Table{"x-max-priority": int32(5)}, amqp.Table{"x-max-priority": int32(6)}, `x-max-priority is '5', wanted '6'; set Queue.Arguments["x-max-priority"] of the`},
	} {
		queue := testbroker.Queue(t)
		_, err := ch.QueueDeclare(queue, true, false, false, false, c.exists)
		require.NoError(t, err)
		cfg := rig.QueueConfig(url)
		cfg.Queue.Arguments = c.wanted
		err = rig.SubscribeError(t, client, cfg, queue, backoff.List{time.Second})
		t.Log(err)
		var conflict *topology.ConflictError
		require.ErrorAs(t, err, &conflict, name)
		require.Equal(t, "queue "+queue, conflict.Kind+" "+conflict.Name)
		require.ErrorContains(t, err, c.want, name)
		require.NotContains(t, err.Error(), "in the strategy")
	}

	exchange := testbroker.Queue(t)
	require.NoError(t, ch.ExchangeDeclare(exchange, "direct", true, false, false, false, nil))
	t.Cleanup(func() { _ = testbroker.Channel(t, url).ExchangeDelete(exchange, false, false) })
	testbroker.Delete(t, exchange+"_shipping")
	err = rig.SubscribeError(t, client, wamqp.NewDurablePubSubConfig(url, wamqp.GenerateQueueNameTopicNameWithSuffix("shipping")), exchange, backoff.List{time.Second})
	t.Log(err)
	var conflict *topology.ConflictError
	require.ErrorAs(t, err, &conflict)
	require.Equal(t, "exchange "+exchange+" type", conflict.Kind+" "+conflict.Name+" "+conflict.Argument)
	require.ErrorContains(t, err, "set Exchange.Type of the configuration to what the exchange has")
}

// The broker cuts what it says at 255 bytes, and with a long name the values of
// a conflict are missing: it is a conflict all the same, and a dead-letter queue
// that exists is adopted.
func TestConflictWithALongNameWasNotRecognised(t *testing.T) {
	t.Parallel()
	url, queue := testbroker.URL(t), testbroker.Queue(t)+strings.Repeat("-long", 24)
	testbroker.Delete(t, queue, queue+".dlq", queue+".wait.1s", queue+".wait.2s")
	ch := testbroker.Channel(t, url)
	_, err := ch.QueueDeclare(queue+".dlq", true, false, false, false, amqp.Table{"x-queue-type": "quorum"})
	require.NoError(t, err)
	_, sub := rig.OpenSubscriber(t, url, topology.PerQueue{}, backoff.List{time.Second})
	_, err = sub.Subscribe(t.Context(), queue)
	require.NoError(t, err)

	_, err = ch.QueueDeclare(queue+".wait.2s", true, false, false, false, amqp.Table{"x-queue-type": "quorum"})
	require.NoError(t, err)
	_, sub = rig.OpenSubscriber(t, url, topology.PerQueue{}, backoff.List{2 * time.Second})
	_, err = sub.Subscribe(t.Context(), queue)
	var conflict *topology.ConflictError
	require.ErrorAs(t, err, &conflict)
	require.Equal(t, queue+".wait.2s", conflict.Name)
	require.NotEmpty(t, conflict.Argument)
	t.Log(err)
}
