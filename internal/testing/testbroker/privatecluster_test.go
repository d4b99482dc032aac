//go:build unix

package testbroker_test

import (
	"fmt"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

// members returns the number of the queue's replicas that one node sees online.
func members(t *testing.T, n *testbroker.Node, queue string) int {
	t.Helper()
	for line := range strings.Lines(n.Ctl(t, "list_queues", "--no-table-headers", "name", "online")) {
		if name, online, _ := strings.Cut(strings.TrimSpace(line), "\t"); name == queue {
			return strings.Count(online, "@")
		}
	}
	return -1
}

// Given a cluster of three, then a quorum queue has three members. It works without one of them,
// stops without two, and gets them back.
func TestCluster(t *testing.T) {
	t.Parallel()
	c := testbroker.PrivateCluster(t, 3)
	ch := testbroker.Channel(t, c.Node(0).URL())
	_, err := ch.QueueDeclare("q", true, false, false, false, amqp.Table{"x-queue-type": "quorum"})
	require.NoError(t, err)
	require.NoError(t, ch.Confirm(false))
	testbroker.WaitFor(t, "three members", limit,
		func() bool { return members(t, c.Node(0), "q") == 3 })
	for i, url := range c.URLs() {
		sent := testbroker.Channel(t, url)
		require.NoError(t, sent.Confirm(false))
		confirmed(t, publish(t, sent, "q", fmt.Sprint("through node ", i)))
	}

	require.NoError(t, c.Kill(2))
	assert.False(t, c.Running(2))
	confirmed(t, publish(t, ch, "q", "without one"))
	require.NoError(t, c.Freeze(1))
	stuck := publish(t, ch, "q", "without a majority")
	select {
	case <-stuck.Done():
		t.Error("confirmed by one node of three")
	default:
	}
	require.NoError(t, c.Thaw(1))
	confirmed(t, stuck)
	require.NoError(t, c.Start(t.Context(), 2))
	assert.True(t, c.Running(2))
	testbroker.WaitFor(t, "all three members again", limit,
		func() bool { return members(t, c.Node(2), "q") == 3 })
	testbroker.WaitFor(t, "the messages, through the node that was dead", limit, func() bool {
		return testbroker.Depth(t, c.Node(2).URL(), "q") == 5
	})
}

func TestClusterAlarm(t *testing.T) {
	t.Parallel()
	c := testbroker.PrivateCluster(t, 1)
	conn := testbroker.Dial(t, c.Node(0).URL())
	blocked := conn.NotifyBlocked(make(chan amqp.Blocking, 2))
	ch, err := conn.Channel()
	require.NoError(t, err)
	require.NoError(t, c.Alarm(t.Context(), 0, true))
	require.NoError(t, ch.Publish("", "nowhere", false, false, amqp.Publishing{}))
	assert.True(t, nextBlocking(t, blocked).Active)
	require.NoError(t, c.Alarm(t.Context(), 0, false))
	assert.False(t, nextBlocking(t, blocked).Active)
}

func TestClusterCloseLeavesNothing(t *testing.T) {
	t.Parallel()
	c := testbroker.PrivateCluster(t, 2)
	pids := append(c.Node(0).Pids(), c.Node(1).Pids()...)
	for _, pid := range pids {
		require.True(t, alive(pid))
	}
	require.NoError(t, c.Freeze(1))
	require.NoError(t, c.Node(1).Close())
	for _, pid := range pids {
		assert.False(t, alive(pid), "process %d", pid)
	}
	assert.NoDirExists(t, c.Node(0).Folder())
	assert.NoError(t, c.Close(), "again")
}
