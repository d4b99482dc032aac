package e2e_test

import (
	"fmt"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

// Given two quorum queues, each with a confirmed message, when the node is killed within a second
// of the last declaration, then the queue that was declared last is empty (F48).
func TestAKillSoonAfterADeclaration(t *testing.T) {
	t.Parallel()
	node := testbroker.Private(t)
	forgotten := false
	for try := 0; try < 5 && !forgotten; try++ { // a busy machine kills too late
		old, young := fmt.Sprint("old", try), fmt.Sprint("young", try)
		quorum := amqp.Table{"x-queue-type": "quorum"}
		rig.DeclareQueue(t, node.URL(), old, quorum)
		time.Sleep(1500 * time.Millisecond) // the broker then knows it for good
		rig.DeclareQueue(t, node.URL(), young, quorum)
		for _, name := range []string{old, young} {
			rig.Publish(t, node.URL(), "", name, rig.Message("1"))
		}
		node.Kill(t)
		node.Start(t)
		rig.WaitFor(t, "the message of the queue that was declared first", func() bool {
			return testbroker.Depth(t, node.URL(), old) == 1
		})
		time.Sleep(time.Second) // the other message would be there, too
		forgotten = testbroker.Depth(t, node.URL(), young) == 0
	}
	require.True(t, forgotten)
}
