package operate_test

import (
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/topology/operate"
)

// killedAtTheMark returns a queue whose process was killed between the mark and the ack of a dead
// letter: the dead-letter queue refuses all, so the mark is in the line and the letter is refused.
func killedAtTheMark(t *testing.T) (k *keyed, mark string) {
	t.Helper()
	k = newKeyed(t)
	ch := testbroker.Channel(t, k.url)
	_, err := ch.QueueDelete(k.queue+".dlq", false, false, false)
	require.NoError(t, err)
	rig.DeclareQueue(t, k.url, k.queue+".dlq", amqp.Table{
		"x-max-length": int32(0), "x-overflow": "reject-publish",
	})
	proxy := testbroker.NewProxy(t, k.url)
	k.via = proxy.URL()
	k.serve(true)
	k.via = ""
	k.send("a", "bad 1", "2")
	s := k.state("the mark", func(s operate.OrderState) bool { return len(s.BlockedKeys()) == 1 })
	proxy.Refuse(true)
	proxy.Cut()
	_, err = ch.QueueDelete(k.queue+".dlq", false, false, false)
	require.NoError(t, err)
	require.NoError(t, k.Declare(t.Context(), k.plan))
	return k, s.Keys[0].Mark
}

// Given a process that was killed between the mark and the ack, when the message is handled by the
// next one, then its key goes on.
func TestAMessageIsHandledAfterItsMark(t *testing.T) {
	t.Parallel()
	k, _ := killedAtTheMark(t)
	k.mended.Store(true)
	k.serve(true)
	k.ends("bad 1", "2")
}

// The same, when the message is dead again, then one letter blocks the key, and its place is kept.
func TestAMessageIsDeadAgainAfterItsMark(t *testing.T) {
	t.Parallel()
	k, mark := killedAtTheMark(t)
	k.serve(true)
	require.Equal(t, mark, k.blocked("a", 1).Mark)
	_, err := k.Replay(t.Context(), k.plan, operate.ReplayOptions{})
	require.ErrorContains(t, err, "millpond order replay")
	k.mended.Store(true)
	p, err := k.ReplayKey(t.Context(), k.plan, "a", operate.ReplayOptions{})
	require.NoError(t, err)
	require.Equal(t, 1, p.Done)
	k.ends("bad 1", "2")
}

// Given a message without a key, then its dead letter leaves no mark, because no person could
// release it.
func TestADeadLetterWithoutAKeyLeavesNoMark(t *testing.T) {
	t.Parallel()
	k := newKeyed(t)
	k.serve(true)
	k.send("", "bad 1", "2")
	k.depth(".dlq")
	k.ends("2")
}
