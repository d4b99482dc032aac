package operate_test

import (
	"encoding/json"
	"fmt"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/internal/order"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware/header"
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
// next one, then its key goes on. When it is dead again, then one letter blocks the key, and its
// place is kept.
func TestAMessageComesAgainAfterItsMark(t *testing.T) {
	t.Parallel()
	for _, handled := range []bool{true, false} {
		t.Run(fmt.Sprintf("handled: %t", handled), func(t *testing.T) {
			t.Parallel()
			k, mark := killedAtTheMark(t)
			k.mended.Store(handled)
			k.serve(true)
			if !handled {
				require.Equal(t, mark, k.blocked("a", 1).Mark)
				k.refuses()
				k.mended.Store(true)
				k.replays("a", 1)
			}
			k.ends("bad 1", "2")
		})
	}
}

// Given a process that was killed between the letter and the ack, then two letters have the mark of
// the message. Both are replayed in their place, one directly after the other. The dead letter of a
// message without a key leaves no mark, because no person could release it.
func TestTwoLettersOfOneMark(t *testing.T) {
	t.Parallel()
	k := newKeyed(t)
	const note = "block 1 1-3 1-1"
	rig.Publish(t, k.url, "", k.queue+".line", amqp.Publishing{
		DeliveryMode: amqp.Persistent, Headers: amqp.Table{keys.Key: "a", keys.Line: note},
	})
	letter := rig.Message("bad 1")
	letter.MessageId = "id of bad 1"
	letter.Headers = amqp.Table{
		"key": "a", header.DeadQueue: k.queue, keys.DeadKey: "a", keys.DeadLine: note,
	}
	rig.Publish(t, k.url, "", k.queue+".dlq", letter)
	rig.Publish(t, k.url, "", k.queue+".dlq", letter)
	k.serve(true)
	k.send("a", "2")
	k.blocked("a", 1)
	k.refuses()
	k.mended.Store(true)
	k.replays("a", 2)
	k.ends("bad 1", "bad 1", "2")

	k.mended.Store(false)
	k.send("", "bad 3", "4")
	k.depth(".dlq")
	k.ends("bad 1", "bad 1", "2", "4")
}

// manyBlocked blocks n keys, as their dead letters would.
func (k *keyed) manyBlocked(n int) {
	k.t.Helper()
	ch := testbroker.Channel(k.t, k.url)
	for i := range n {
		require.NoError(k.t, ch.Publish("", k.queue+".line", false, false, amqp.Publishing{
			DeliveryMode: amqp.Persistent,
			Headers: amqp.Table{
				keys.Key: fmt.Sprintf("key %04d", i), keys.Line: fmt.Sprintf("block 1 1-%d", i+1),
			},
		}))
	}
	rig.AwaitDepth(k.t, k.url, k.queue+".line", n)
}

// Given more blocked keys than an answer has, then each is found, released and replayed all the
// same, with a process that leads and without.
func TestMoreBlockedKeysThanAnAnswerHas(t *testing.T) {
	t.Parallel()
	const n = order.MaxKeys + 3
	for _, leads := range []bool{false, true} {
		t.Run(fmt.Sprintf("with a process: %t", leads), func(t *testing.T) {
			t.Parallel()
			k := newKeyed(t)
			k.manyBlocked(n)
			if leads {
				k.serve(true)
			}
			s := k.state("the keys", func(s operate.OrderState) bool {
				return s.Messages == n && (s.Instance != "") == leads
			})
			require.Equal(t, 3, s.Others)
			require.Len(t, s.Keys, order.MaxKeys)
			const last, mark = "key 1002", "1-1003"
			_, told := s.Find(last)
			require.False(t, told)
			for _, name := range [][2]string{{last, ""}, {"", mark}} {
				found, err := k.FindKey(t.Context(), k.plan, name[0], name[1])
				require.NoError(t, err)
				require.Equal(t, last, found.Key)
				require.Equal(t, mark, found.Mark)
			}
			found, err := k.FindKey(t.Context(), k.plan, "no such key", "")
			require.NoError(t, err)
			require.Equal(t, operate.OrderKey{Key: "no such key"}, found)

			require.ErrorIs(t, k.ReleaseKey(t.Context(), k.plan, last, "1-1"), operate.ErrNotBlocked)
			require.NoError(t, k.ReleaseKey(t.Context(), k.plan, last, mark))
			require.ErrorIs(t, k.ReleaseKey(t.Context(), k.plan, last, mark), operate.ErrNotBlocked)
			k.state("the others", func(s operate.OrderState) bool { return s.Messages == n-1 })
			_, err = k.ReplayKey(t.Context(), k.plan, "key 1001", operate.MoveOptions{})
			require.ErrorContains(t, err, "neither in queue", "it is known to be blocked")
		})
	}
}

// answers is a process that leads and answers all questions with a state. It returns the users who
// have sent messages to the line.
func (k *keyed) answers(state order.State) (users chan string) {
	k.t.Helper()
	ch := testbroker.Channel(k.t, k.url)
	asked, err := ch.Consume(k.queue+".line", "", true, false, false, false, nil)
	require.NoError(k.t, err)
	answer, err := json.Marshal(state)
	require.NoError(k.t, err)
	users = make(chan string, 100)
	go func() {
		for d := range asked {
			users <- d.UserId
			_ = ch.Publish("", d.ReplyTo, false, false, amqp.Publishing{Body: answer})
		}
	}()
	return users
}

// Given a process that leads and believes no release of this user, then the tool says so, and moves
// no letter. It names its user, which the broker has checked.
func TestAReleaseThatIsNotBelieved(t *testing.T) {
	t.Parallel()
	k := newKeyed(t)
	users := k.answers(order.State{
		Instance: "leader", Unbelieved: true,
		Keys: []order.KeyState{{Key: "a", Mark: "1-1"}},
	})
	const text = `the process that leads believes no release of user "guest"`
	require.ErrorContains(t, k.ReleaseKey(t.Context(), k.plan, "a", "1-1"), text)
	require.Len(t, users, 3, "two questions, and one release between them")
	for range len(users) {
		require.Equal(t, "guest", <-users)
	}
	_, err := k.ReplayKey(t.Context(), k.plan, "a", operate.MoveOptions{})
	require.ErrorContains(t, err, text)
	_, err = k.FindKey(t.Context(), k.plan, "", "")
	require.ErrorIs(t, err, operate.ErrInvalidOptions)
}
