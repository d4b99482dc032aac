package operate_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/operate"
)

// strandedAt is the time at which message i of box.strand was stranded.
func strandedAt(i int) time.Time { return time.Date(2026, 3, 1, 13, 0, i, 0, time.UTC) }

// strand publishes n messages of the box's queue to a queue, as the broker strands them.
func (b *box) strand(queue string, n int, changes ...change) {
	b.t.Helper()
	stranded := func(i int, notes *header.RetryState, m *amqp.Publishing) {
		*notes = header.RetryState{
			Failures: 2, Error: "no stock", Class: header.ClassRetryable, Delay: time.Second,
			OriginRoutingKey: "order.placed",
			History: []header.AttemptError{
				{Attempt: 1, At: died(0), Handler: "ship", Error: "no stock"},
				{Attempt: 2, At: died(1), Handler: "ship", Error: "no stock", Class: header.ClassRetryable},
			},
		}
		m.Headers["x-death"] = []any{amqp.Table{
			"queue": "millpond.wait.1s", "reason": "expired", "time": strandedAt(i),
			"routing-keys": []any{b.queue}, "exchange": "millpond.wait.1s", "count": int64(1),
		}}
	}
	b.failed(queue, n, header.RetryState.Headers, append([]change{stranded}, changes...)...)
}

// strandedQueue declares a queue for stranded messages.
func (b *box) strandedQueue() string {
	b.t.Helper()
	name := b.queue + ".stranded"
	kind := topology.Queue{Name: name}
	for _, q := range b.plan.Queues {
		if q.Name == b.dead {
			kind.Arguments = q.Arguments
		}
	}
	testbroker.Delete(b.t, name)
	require.NoError(b.t, b.Declare(b.t.Context(),
		topology.Plan{Queue: b.queue, Queues: []topology.Queue{kind}}))
	return name
}

func (b *box) strays(queue string, filter operate.Filter) (found []operate.StrandedMessage) {
	b.t.Helper()
	for m, err := range b.Stranded(b.t.Context(), queue, filter, 0) {
		require.NoError(b.t, err)
		found = append(found, m)
	}
	return found
}

func (b *box) returnStranded(queue string, options operate.MoveOptions) operate.Progress {
	b.t.Helper()
	return b.ok(b.ReturnStranded(b.t.Context(), queue, options))
}

// Given messages in a stranded queue, then a list has their retry state, and returned messages go
// on with it. The broker's headers, CC, the user id and the expiration are left out. Headers of an
// earlier death say nothing about a message that is alive again.
func TestStrandedMessagesGoOnWithTheirRetryState(t *testing.T) {
	forTypes(t, func(t *testing.T, b *box) {
		stranded := b.strandedQueue()
		b.strand(stranded, 3, func(i int, _ *header.RetryState, m *amqp.Publishing) {
			m.Headers["CC"] = []any{}
			m.Headers[header.DeadReason], m.Headers[header.DeadError] = "exhausted", "long ago"
			m.Headers[header.Replays], m.Headers[keys.Priority] = "1", "9"
			m.UserId, m.Expiration, m.Priority = "guest", "3600000", 4
			if i == 1 {
				delete(m.Headers, "x-death")
			}
		})
		list := b.strays(stranded, operate.Filter{})
		require.Len(t, list, 3)
		for i, m := range list {
			require.Equal(t, "order-"+strconv.Itoa(i), m.ID)
			require.Equal(t, []any{b.queue, 2, "no stock", "ship", 1, header.Reason("")},
				[]any{m.Queue, m.Attempts, m.Error, m.Handler, m.Replays, m.Reason})
			// 3.10 takes the x-death of a publisher.
			if i == 1 {
				require.True(t, m.DeadAt.IsZero())
				require.Empty(t, m.WaitQueue)
			}
			require.Equal(t, operate.CauseUnknown, m.Cause)
			require.Contains(t, m.Why, "it is not noted which exchange could not place the message")
			require.Len(t, m.History, 2)
		}
		r := b.returnStranded(stranded, operate.MoveOptions{})
		require.Equal(t, operate.Progress{Total: 3, Seen: 3, Chosen: 3, Done: 3}, r)
		b.depth(stranded, 0)
		for i, d := range b.drain(b.queue, 3) {
			require.Equal(t, numbered(0, 3)[i], string(d.Body))
			require.Equal(t, "2", d.Headers[keys.Failures])
			require.Equal(t, b.queue, d.Headers[header.Queue])
			require.Equal(t, int32(i), d.Headers["tenant"])
			require.Equal(t, "c", d.CorrelationId)
			require.Empty(t, d.UserId+d.Expiration)
			require.EqualValues(t, 9, d.Priority)
			require.NotContains(t, d.Headers, "x-death")
			require.NotContains(t, d.Headers, "CC")
			state := stateOf(b.queue, d)
			require.Equal(t, time.Second, state.Delay)
			require.Len(t, state.History, 2)
		}
	})
}

// Given messages whose queue exists, whose queue does not, and without a queue, then a return moves
// the first in their order, counts the others by their queue, and leaves them. With a named queue
// they belong to that queue.
func TestReturnLeavesMessagesWhoseQueueIsGone(t *testing.T) {
	forTypes(t, func(t *testing.T, b *box) {
		stranded, gone := b.strandedQueue(), b.queue+".gone"
		const n = 50
		b.strand(stranded, n, func(i int, _ *header.RetryState, m *amqp.Publishing) {
			switch i % 5 {
			case 1:
				m.Headers[header.Queue] = gone
			case 2:
				m.Headers[header.Queue] = nil
			case 3:
				m.Headers[header.Queue] = strings.Repeat("x", 300) + "\x1b[31m" // no name that AMQP has
			case 4:
				m.Headers[header.Queue] = stranded
			}
		})
		list := b.strays(stranded, operate.Filter{})
		require.Equal(t, operate.CauseQueueGone, list[1].Cause)
		require.Equal(t, fmt.Sprintf("queue %q does not exist or cannot be reached", gone), list[1].Why)
		require.Equal(t, operate.CauseUnknown, list[2].Cause)
		require.Equal(t, "no header names its queue", list[2].Why)
		require.Equal(t, operate.CauseQueueGone, list[3].Cause)
		require.NotContains(t, list[3].Why, "\x1b")

		left := []operate.QueueCount{
			{Messages: 10},
			{Queue: gone, Messages: 10},
			{Queue: stranded, Messages: 10},
			{Queue: strings.Repeat("x", 300) + "\x1b[31m", Messages: 10},
		}
		r := b.returnStranded(stranded, operate.MoveOptions{DryRun: true})
		require.Equal(t, left, r.Left)
		require.Equal(t, []int{n, n, 0}, []int{r.Total, r.Chosen, r.Done})
		r = b.returnStranded(stranded, operate.MoveOptions{
			Filter: operate.Filter{Headers: map[string]string{"tenant": "9"}},
		})
		require.Equal(t, []int{n, 0, 0}, []int{r.Total, r.Chosen, r.Done})
		r = b.returnStranded(stranded, operate.MoveOptions{Limit: 4})
		require.Equal(t, 4, r.Done)
		r = b.returnStranded(stranded, operate.MoveOptions{})
		require.Equal(t, left, r.Left)
		require.Equal(t, 6, r.Done)
		var want []string
		for i, body := range numbered(0, n) {
			if i%5 == 0 {
				want = append(want, body)
			}
		}
		require.Equal(t, want, b.bodies(b.queue, 10))
		b.depth(stranded, 40)

		other := testbroker.Queue(t)
		rig.DeclareQueue(t, b.url, other, nil)
		toGone := operate.MoveOptions{
			To:     other,
			Filter: operate.Filter{Match: func(l operate.Letter) bool { return l.Queue == gone }},
		}
		require.Equal(t, 10, b.returnStranded(stranded, toGone).Done)
		for _, d := range b.drain(other, 10) {
			require.Equal(t, other, d.Headers[header.Queue], "its retry state counts there")
			require.Equal(t, "2", d.Headers[keys.Failures])
			require.Equal(t, "order.placed", d.Headers[keys.OriginRoutingKey])
		}
		for _, options := range []operate.MoveOptions{{To: stranded}, {Named: true}, {Edit: repair}} {
			_, err := b.ReturnStranded(t.Context(), stranded, options)
			require.ErrorIs(t, err, operate.ErrInvalidOptions)
		}
		_, err := b.ReturnStranded(t.Context(), gone, operate.MoveOptions{})
		rig.RequireTexts(t, err, gone, "does not exist", "name the prefix")
		for _, err := range b.Stranded(t.Context(), gone, operate.Filter{}, 0) {
			rig.RequireTexts(t, err, gone, "does not exist", "name the prefix")
		}
	})
}

// Given a queue that is deleted while its messages are returned, then the messages that it did not
// take stay and are counted.
func TestQueueThatVanishesDuringAReturn(t *testing.T) {
	t.Parallel()
	b := newBox(t, topology.Classic)
	stranded := b.strandedQueue()
	const n = 60
	b.strand(stranded, n)
	seen := 0
	r := b.returnStranded(stranded, operate.MoveOptions{
		Filter: operate.Filter{Match: func(operate.Letter) bool {
			if seen++; seen == n/2 { // the queue was found before, and is not asked for again
				rig.DeleteQueue(t, b.url, b.queue)
			}
			return true
		}},
	})
	require.Less(t, r.Done, n/2)
	require.Equal(t, []operate.QueueCount{{Queue: b.queue, Messages: n - r.Done}}, r.Left)
	b.depth(stranded, n-r.Done)
}
