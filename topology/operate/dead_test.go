package operate_test

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/operate"
)

func ids(letters []operate.Letter) []string {
	var found []string
	for _, l := range letters {
		found = append(found, l.ID)
	}
	return found
}

// Letters have all fields that are known, each condition of a filter chooses some, and they have
// groups. One that the broker has dead-lettered, and one that was only published to the queue, have
// fewer fields.
func TestDeadLettersAreReadChosenAndGrouped(t *testing.T) {
	forTypes(t, func(t *testing.T, b *box) {
		const cause = "order %d of 7f3e2a10-1111-4222-8333-%012d: no such customer"
		b.die(7, func(i int, n *header.RetryState, m *amqp.Publishing) {
			switch i {
			case 0:
				m.Headers[header.Replays] = "2"
			case 1:
				n.Reason, n.Error = header.ReasonPermanent, fmt.Sprintf(cause, 17, 1)
			case 3:
				m.MessageId, m.Headers["_watermill_message_uuid"] = "", "uuid-3"
			case 4:
				m.MessageId = ""
			case 5:
				n.Handler, n.Error = "bill", fmt.Sprintf(cause, 85, 5)
			case 6:
				n.Error, n.History, m.Body = "bytes", nil, []byte{0xff, 'a', 0xfe}
			}
		})
		name := b.other(amqp.Table{
			"x-queue-type": "classic", "x-message-ttl": int32(1),
			"x-dead-letter-exchange": "", "x-dead-letter-routing-key": b.dead,
		})
		b.publish(name, amqp.Publishing{MessageId: "expired"})
		b.depth(b.dead, 8)
		poisoned := amqp.Table{"reason_poisoned": "boom", "handler_poisoned": "old"}
		b.publish(b.dead, amqp.Publishing{MessageId: "bare", Headers: poisoned})

		found := b.letters(operate.Filter{})
		require.Len(t, found, 9)
		l := found[0]
		require.Error(t, l.Delivery.Ack(false), "a letter cannot be settled")
		require.Equal(t, int32(0), l.Delivery.Headers["tenant"])
		require.Len(t, l.History, 1)
		l.Delivery, l.History = amqp.Delivery{}, nil
		require.Equal(t, operate.Letter{
			ID: "order-0", Position: 1, Queue: b.queue, DeadAt: died(0), Attempts: 3,
			Reason: header.ReasonExhausted, Error: "connection refused", Class: header.ClassRetryable,
			Handler: "ship", Replays: 2, OriginExchange: "shop", OriginRoutingKey: "order.placed",
		}, l)
		require.Equal(t, []any{header.Reason("expired"), name}, []any{found[7].Reason, found[7].Queue})
		require.WithinDuration(t, time.Now(), found[7].DeadAt, rig.Patience)
		require.Equal(t, []string{"boom", "old"}, []string{found[8].Error, found[8].Handler})
		require.True(t, found[8].DeadAt.IsZero())

		groups, err := operate.GroupByError(b.Dead(t.Context(), b.plan, operate.Filter{}, 0))
		require.NoError(t, err)
		require.Len(t, groups, 5)
		require.Equal(t, "connection refused", groups[0].Error)
		require.Equal(t, operate.Group{
			ID: groups[1].ID, Error: "order # of <id>: no such customer", Count: 2,
			First: died(1), Last: died(5), Queues: map[string]int{b.queue: 2},
			Handlers: map[string]int{"ship": 1, "bill": 1},
			Reasons:  map[string]int{"permanent": 1, "exhausted": 1},
			Sample:   operate.Sample{ID: "order-1", Position: 2, Error: fmt.Sprintf(cause, 17, 1)},
		}, groups[1])
		require.Equal(t, "(no error: expired)", groups[2].Error)
		_, err = operate.GroupByError(func(yield func(operate.Letter, error) bool) {
			yield(operate.Letter{}, errNoLetters)
		})
		require.ErrorIs(t, err, errNoLetters)

		const hash = "sha256:f3e0792e105e"
		headers := func(name, value string) map[string]string { return map[string]string{name: value} }
		for want, filters := range map[string][]operate.Filter{
			"order-0 order-1 order-2 uuid-3 " + hash + " order-5 order-6 expired bare": {{}},

			"uuid-3 order-5": {{IDs: []string{"order-5", "uuid-3", "order-9"}}},
			"order-1":        {{Reason: header.ReasonPermanent}},
			"order-1 order-5": {
				{Error: "such customer"},
				{Error: `/customer$/`},
				{Group: groups[1].ID},
				{Payload: `/"n":[15]}$/`},
			},
			"order-5":         {{Handler: "bill"}, {Payload: `"n":5`}},
			"order-6 expired": {{Since: died(6)}},
			"order-0": {
				{Until: died(1)},
				{Match: func(l operate.Letter) bool { return l.Position == 1 }},
			},
			"order-2 order-5": {{Headers: headers("tenant", "2")}},
			"order-1 order-2 " + hash + " order-5": {
				{Headers: headers("tenant", "/^[12]$/")},
			},
			"order-6": {{Payload: "\xffa"}, {Payload: `/^\xff.\xfe$/`}},
			"order-2": {{Handler: "ship", Headers: headers("tenant", "2")}},
			"": {
				{Group: "0"},
				{Headers: headers("nothing", "")},
				{Headers: headers("nothing", "/(?:)/")},
			},
		} {
			for _, filter := range filters {
				require.Equal(t, want, strings.Join(ids(b.letters(filter)), " "), filter)
				dry := b.replay(operate.MoveOptions{Filter: filter, DryRun: true})
				require.Equal(t, len(strings.Fields(want)), dry.Chosen+dry.Foreign, filter)
			}
		}
		one := operate.MoveOptions{Filter: operate.Filter{Group: groups[1].ID}}
		require.Equal(t, 2, b.replay(one).Done)
		require.Len(t, b.letters(operate.Filter{}), 7)
	})
}

var errNoLetters = errors.New("no letters")

// A loop that ends early gives all back, also by a panic in its body.
func TestLoopThatEndsEarlyGivesAllBack(t *testing.T) {
	forTypes(t, func(t *testing.T, b *box) {
		b.die(1200)
		for l, err := range b.Dead(t.Context(), b.plan, operate.Filter{}, 0) {
			require.NoError(t, err)
			require.Equal(t, "order-0", l.ID)
			break
		}
		require.Panics(t, func() {
			for range b.Dead(t.Context(), b.plan, operate.Filter{}, 0) {
				panic("of the caller")
			}
		})
		require.Len(t, b.letters(operate.Filter{}), 1200, "three pages")
		require.True(t, slices.Equal(numbered(0, 1200), b.bodies(b.dead, 1200)), "in their order")
	})
}

// 10 000 letters of 8 KiB, 80 MiB in all, pass through in the memory of a few pages.
// Not parallel, because the heap belongs to all tests that run.
func TestListOfTenThousandTakesBoundedMemory(t *testing.T) {
	eachType(t, func(t *testing.T, b *box) {
		const dead = 10_000
		pad := make([]byte, 8<<10)
		b.die(dead, func(_ int, _ *header.RetryState, m *amqp.Publishing) { m.Body = pad })
		began, seen := time.Now(), 0
		var most uint64
		for _, err := range b.Dead(t.Context(), b.plan, operate.Filter{}, 0) {
			require.NoError(t, err)
			if seen++; seen%1000 == 0 {
				most = max(most, heap())
			}
		}
		took := time.Since(began)
		require.Equal(t, dead, seen)
		require.Less(t, most, uint64(48<<20), "live heap of both")
		t.Logf("%d letters in %v (%.0f/s), at most %d KiB of live heap for both together", seen,
			took.Round(time.Millisecond), float64(seen)/took.Seconds(), most>>10)
	})
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// A message that fills its frame ends the connection that reads it from a
// quorum queue (F25): the error says so, and nothing is lost.
func TestUnreadableMessageIsNamed(t *testing.T) {
	t.Parallel()
	b := newBox(t, topology.Quorum)
	b.die(3)
	const (
		payload    = 131064
		properties = 2 + 2 + 8 + 4 + 1 // class, flags, size, table, delivery mode
		key        = 1 + 1 + 1 + 4     // name, type, length
	)
	full := amqp.Table{"x": strings.Repeat("x", payload-properties-key-8)}
	b.publish(b.dead, amqp.Publishing{Headers: full, Body: []byte("full")})
	b.depth(b.dead, 4)
	var err error
	for range 3 { // from 4.0 on it can be read once
		if err = b.listError(); err != nil {
			break
		}
	}
	require.ErrorIs(t, err, operate.ErrUnreadable)
	b.depth(b.dead, 4)
}
