package operate_test

import (
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
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

func TestEveryFilter(t *testing.T) {
	forTypes(t, func(t *testing.T, b *box) {
		b.die(7, func(i int, n *header.RetryState, m *amqp.Publishing) {
			switch i {
			case 1:
				n.Reason, n.Error = header.ReasonPermanent, "no such customer 17"
			case 2:
				n.Handler = "bill"
			case 3:
				m.MessageId, m.Headers["_watermill_message_uuid"] = "", "uuid-3"
			case 4:
				m.MessageId = ""
			case 6:
				n.Error, n.History, m.Body = "bytes", nil, []byte{0xff, 'a', 0xfe}
			}
		})
		group, _ := operate.Fingerprint(operate.Letter{Error: "no such customer 4"})
		tenant := func(value string) operate.Filter {
			return operate.Filter{Headers: map[string]string{"tenant": value}}
		}
		for name, c := range map[string]struct {
			filter operate.Filter
			want   []string
		}{
			"none": {
				operate.Filter{},
				[]string{
					"order-0", "order-1", "order-2", "uuid-3", "sha256:f3e0792e105e", "order-5", "order-6",
				},
			},
			"id": {
				operate.Filter{IDs: []string{"order-5", "uuid-3", "order-9"}}, []string{"uuid-3", "order-5"},
			},
			"reason": {operate.Filter{Reason: header.ReasonPermanent}, []string{"order-1"}},
			"error":  {operate.Filter{Error: "such customer"}, []string{"order-1"}},
			"error, pattern": {
				operate.Filter{Error: `/customer \d+$/`}, []string{"order-1"},
			},
			"handler":        {operate.Filter{Handler: "bill"}, []string{"order-2"}},
			"since":          {operate.Filter{Since: died(6)}, []string{"order-6"}},
			"until":          {operate.Filter{Until: died(1)}, []string{"order-0"}},
			"group":          {operate.Filter{Group: group}, []string{"order-1"}},
			"no group":       {operate.Filter{Group: "0"}, nil},
			"header, number": {tenant("2"), []string{"order-2", "order-5"}},
			"header, pattern": {
				tenant("/^[12]$/"), []string{"order-1", "order-2", "sha256:f3e0792e105e", "order-5"},
			},
			"header, missing":       {operate.Filter{Headers: map[string]string{"nothing": ""}}, nil},
			"header, pattern, none": {operate.Filter{Headers: map[string]string{"nothing": "/(?:)/"}}, nil},
			"payload":               {operate.Filter{Payload: `"n":5`}, []string{"order-5"}},
			"payload, bytes":        {operate.Filter{Payload: "\xffa"}, []string{"order-6"}},
			"payload, pattern": {
				operate.Filter{Payload: `/"n":[15]}$/`}, []string{"order-1", "order-5"},
			},
			"payload, byte pattern": {operate.Filter{Payload: `/^\xff.\xfe$/`}, []string{"order-6"}},
			"match": {
				operate.Filter{Match: func(l operate.Letter) bool { return l.Position == 1 }},
				[]string{"order-0"},
			},
			"several": {
				operate.Filter{Handler: "ship", Headers: map[string]string{"tenant": "2"}}, []string{"order-5"},
			},
		} {
			require.Equal(t, c.want, ids(b.letters(c.filter)), name)
			dry := b.replay(operate.MoveOptions{Filter: c.filter, DryRun: true})
			require.Equal(t, len(c.want), dry.Chosen, name)
		}
		require.Len(t, b.bodies(b.dead, 7), 7)
	})
}

// A letter has all fields that are known. A message that the broker has dead-lettered, or that was
// only published to the queue, has fewer.
func TestLetterSaysWhatIsKnown(t *testing.T) {
	forTypes(t, func(t *testing.T, b *box) {
		b.die(1,
			func(_ int, _ *header.RetryState, m *amqp.Publishing) { m.Headers[header.Replays] = "2" })
		name := testbroker.Queue(t)
		rig.DeclareQueue(t, b.url, name, amqp.Table{
			"x-queue-type": "classic", "x-message-ttl": int32(1),
			"x-dead-letter-exchange": "", "x-dead-letter-routing-key": b.dead,
		})
		b.publish(name, amqp.Publishing{Body: []byte("expired")})
		b.depth(b.dead, 2)
		poisoned := amqp.Table{"reason_poisoned": "boom", "handler_poisoned": "old"}
		b.publish(b.dead, amqp.Publishing{Body: []byte("bare"), Headers: poisoned})

		found := b.letters(operate.Filter{})
		require.Len(t, found, 3)
		l := found[0]
		require.Equal(t, "order-0", l.ID)
		require.Equal(t, 1, l.Position)
		require.Equal(t, b.queue, l.Queue)
		require.Equal(t, died(0), l.DeadAt)
		require.Equal(t, 3, l.Attempts)
		require.Equal(t, header.ReasonExhausted, l.Reason)
		require.Equal(t, "connection refused", l.Error)
		require.Equal(t, header.ClassRetryable, l.Class)
		require.Equal(t, "ship", l.Handler)
		require.Equal(t, 2, l.Replays)
		require.Equal(t, "shop order.placed", l.OriginExchange+" "+l.OriginRoutingKey)
		require.Len(t, l.History, 1)
		require.Equal(t, int32(0), l.Delivery.Headers["tenant"])
		require.Error(t, l.Delivery.Ack(false), "a letter cannot be settled")

		require.Equal(t, header.Reason("expired"), found[1].Reason)
		require.Equal(t, name, found[1].Queue)
		require.WithinDuration(t, time.Now(), found[1].DeadAt, rig.Patience)
		require.Equal(t, "boom", found[2].Error)
		require.Equal(t, "old", found[2].Handler)
		require.True(t, found[2].DeadAt.IsZero())
	})
}

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

// Messages on an adopted queue whose limit would be used up are left alone.
func TestAQueueThatDeletesWhatIsLookedAtIsRefused(t *testing.T) {
	t.Parallel()
	b := newBox(t, topology.Quorum)
	adopted := testbroker.Queue(t)
	rig.DeclareQueue(t, b.url, adopted,
		amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": int32(5)})
	b.plan.Dead.RoutingKey = adopted
	b.publish(adopted, amqp.Publishing{Body: []byte("x")})
	for range 10 {
		require.ErrorIs(t, b.listError(), operate.ErrUnsafePeek)
	}
	require.Len(t, b.bodies(adopted, 1), 1)
	b.plan.Dead = topology.Route{Exchange: "theirs"}
	require.ErrorIs(t, b.listError(), operate.ErrNoQueue)
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
