//go:build unix

package random

import (
	"fmt"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Given two quorum queues, each with a confirmed message, when the node is killed within a second
// of the last declaration, then the queue that was declared last is empty (F48).
func TestAKillSoonAfterADeclaration(t *testing.T) {
	b := broker(t)
	r := &run{broker: b}
	declared := func(name string) {
		require.NoError(t, r.admin(func(ch *amqp.Channel) error {
			_, err := ch.QueueDeclare(name, true, false, false, false,
				amqp.Table{"x-queue-type": "quorum"})
			return err
		}))
	}
	forgotten := false
	for try := 0; try < 5 && !forgotten; try++ { // a busy machine kills too late
		old := fmt.Sprintf("old-%s", unique())
		young := fmt.Sprintf("young-%s", unique())
		declared(old)
		rest(t.Context(), fresh)
		declared(young)
		for _, name := range []string{old, young} {
			require.NoError(t, r.send(t.Context(), "", name, "1"))
		}
		require.NoError(t, b.Kill(0))
		require.NoError(t, b.Start(t.Context(), 0))
		assert.Eventually(t, func() bool {
			n, err := r.depth(old)
			return err == nil && n == 1
		}, startLimit, 50*time.Millisecond, "the message of the queue that was declared first")
		rest(t.Context(), time.Second) // the other message would be there, too
		n, err := r.depth(young)
		require.NoError(t, err)
		forgotten = n == 0
		require.NoError(t, r.admin(func(ch *amqp.Channel) error {
			for _, name := range []string{old, young} {
				if _, err := ch.QueueDelete(name, false, false, false); err != nil {
					return err
				}
			}
			return nil
		}))
	}
	assert.True(t, forgotten)
}
