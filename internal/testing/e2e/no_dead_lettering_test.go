//go:build unix

package e2e_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/operate"
)

// endDeadLettering ends the workers until their supervisor gives up, as it does when queues are
// deleted while their workers start (F47).
const endDeadLettering = `
	End = fun F() -> case whereis(rabbit_fifo_dlx_sup) of
		undefined -> ended;
		_ ->
			try [exit(P, kill) || {_, P, _, _} <- supervisor:which_children(rabbit_fifo_dlx_sup),
				is_pid(P)] catch exit:_ -> ok end,
			F()
	end end,
	End().`

// Given a node whose dead-lettering has ended, then messages whose wait ends stay, and come back
// when the node has been started again (F47).
func TestMessagesSurviveTheEndOfDeadLettering(t *testing.T) {
	t.Parallel()
	const waiting = 20
	node := testbroker.Private(t)
	queue := testbroker.Queue(t)
	plan, err := topology.PlanFor(topology.PerQueue{}, queue,
		backoff.Constant{Interval: blockedDelay, Retries: 1})
	require.NoError(t, err)
	ch := testbroker.Channel(t, node.URL())
	_, err = ch.QueueDeclare(queue, true, false, false, false, amqp.Table{"x-queue-type": "quorum"})
	require.NoError(t, err)
	operator, err := operate.Open(t.Context(), node.URL())
	require.NoError(t, err)
	require.NoError(t, operator.Declare(t.Context(), plan))
	require.NoError(t, operator.Close())

	require.NoError(t, ch.Confirm(false))
	for i := range waiting {
		confirm, err := ch.PublishWithDeferredConfirm("", waitQueue(t, plan), true, false,
			amqp.Publishing{Body: []byte(fmt.Sprint(i)), DeliveryMode: amqp.Persistent})
		require.NoError(t, err)
		ok, err := confirm.WaitContext(t.Context())
		require.NoError(t, err)
		require.True(t, ok)
	}
	begun := time.Now()
	assert.Equal(t, "ended", strings.TrimSpace(node.Ctl(t, "eval", endDeadLettering)))
	require.Less(t, time.Since(begun), blockedDelay, "dead-lettering ended while the messages waited")
	time.Sleep(time.Until(begun.Add(blockedDelay + 3*time.Second))) // nothing tells that nothing comes
	require.Zero(t, testbroker.Depth(t, node.URL(), queue))

	node.Stop(t)
	node.Start(t)
	testbroker.WaitFor(t, "the messages", patience, func() bool {
		return testbroker.Depth(t, node.URL(), queue) == waiting
	})
	assert.Equal(t, waiting, distinct(t, node.URL(), queue))
}
