package operate_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
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

func numbered(from, to int) []string {
	var all []string
	for i := from; i < to; i++ {
		all = append(all, fmt.Sprintf(`{"n":%d}`, i))
	}
	return all
}

// Letters that are moved back arrive in their order, unchanged, counted, with their history. A
// replay that is cancelled in the middle finishes the letters that it has begun, and leaves the
// others in the dead-letter queue.
func TestReplayMovesAllAsTheyWere(t *testing.T) {
	forTypes(t, func(t *testing.T, b *box) {
		const dead = 1100
		b.die(dead, func(i int, _ *header.RetryState, m *amqp.Publishing) {
			m.Headers[keys.Failures] = "7" // forged
			if i == 1 {
				m.Headers[header.Replays] = "41"
			}
		})
		third := operate.Filter{Headers: map[string]string{"tenant": "2"}}
		require.Equal(t, operate.Progress{Total: dead, Seen: dead, Chosen: 366, Done: 366},
			b.replay(operate.MoveOptions{Filter: third}))
		ctx, cancel := context.WithCancel(t.Context())
		first, err := b.Replay(ctx, b.plan, operate.MoveOptions{Progress: func(p operate.Progress) {
			if p.Done == 300 {
				cancel()
			}
		}})
		require.ErrorIs(t, err, context.Canceled)
		require.GreaterOrEqual(t, first.Done, 300)
		rest := 734 - first.Done
		b.depth(b.dead, rest)
		var last operate.Progress
		done := b.replay(operate.MoveOptions{Progress: func(p operate.Progress) { last = p }})
		require.Equal(t, operate.Progress{Total: rest, Seen: rest, Chosen: rest, Done: rest}, done)
		require.Equal(t, done, last)
		b.depth(b.dead, 0)
		var want [2][]string
		for i, body := range numbered(0, dead) {
			want[i%3/2] = append(want[i%3/2], body)
		}
		arrived := b.drain(b.queue, dead)
		bodies := rig.Bodies(arrived)
		require.Equal(t, want[1], bodies[:366], "in their order")
		require.Equal(t, want[0][:first.Done], bodies[366:][:first.Done], "in their order")
		require.ElementsMatch(t, want[0], bodies[366:], "each once")
		arrived = arrived[366:]
		d := arrived[0]
		require.Equal(t, []any{"order-0", "c", "application/json", amqp.Persistent, int32(0), "1"},
			[]any{
				d.MessageId, d.CorrelationId, d.ContentType, d.DeliveryMode, d.Headers["tenant"],
				d.Headers[header.Replays],
			})
		require.Equal(t, "42", arrived[1].Headers[header.Replays])
		require.NotContains(t, d.Headers, keys.Failures)
		notes := stateOf(b.queue, d)
		require.Zero(t, notes.Failures, "attempts start anew")
		require.Len(t, notes.History, 1, "history is kept")
		require.Equal(t, "shop order.placed", notes.OriginExchange+" "+notes.OriginRoutingKey)
	})
}

// stateOf is the retry state of a message of a queue.
func stateOf(queue string, d amqp.Delivery) header.RetryState {
	return header.Parse(queue, func(key string) (string, bool) {
		text, ok := d.Headers[key].(string)
		return text, ok
	})
}

// scene is an action on dead letters, and their numbers in the queues afterwards.
type scene struct {
	discard            bool // default: replay
	o                  operate.MoveOptions
	to                 string // "other" is a queue that is there
	p                  operate.Progress
	fails              error
	queue, other, dead string
}

// Each action moves what it says, and leaves the rest in its order. Of eight letters 0, 3 and 6
// have another error, 4 is of another queue, 5 of none, and 7 was replayed twice.
func TestActionsOnDeadLetters(t *testing.T) {
	t.Parallel()
	type (
		options = operate.MoveOptions
		counts  = operate.Progress
	)
	const all = "0 1 2 3 4 5 6 7"
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, full.Close()) })
	repaired := func(_ operate.Letter, msg *amqp.Publishing) error {
		msg.Body = []byte("repaired")
		return nil
	}
	some := operate.Filter{Error: "customer"}
	two := counts{Total: 8, Seen: 4, Chosen: 2, Done: 2}
	rig.Each(t, map[string]scene{
		"replay":        {p: counts{Chosen: 7, Done: 7, Foreign: 1}, queue: "0 1 2 3 5 6 7", dead: "4"},
		"none":          {o: options{Filter: operate.Filter{Handler: "none"}}, dead: all},
		"rehearsal":     {o: options{Filter: some, DryRun: true}, p: counts{Chosen: 3}, dead: all},
		"some, limited": {o: options{Filter: some, Limit: 2}, p: two, queue: "0 3", dead: "1 2 4 5 6 7"},
		"the oldest": {
			o: options{Limit: 2}, p: counts{Total: 8, Seen: 2, Chosen: 2, Done: 2}, queue: "0 1",
			dead: "2 3 4 5 6 7",
		},
		"not often": {
			o: options{MaxReplays: 2}, p: counts{Chosen: 6, Done: 6, Foreign: 1, Spent: 1},
			queue: "0 1 2 3 5 6", dead: "4 7",
		},
		"named": {
			o: options{Named: true}, p: counts{Chosen: 6, Done: 6, Foreign: 2}, queue: "0 1 2 3 6 7",
			dead: "4 5",
		},
		"to another queue": {to: "other", p: counts{Chosen: 8, Done: 8}, other: all},
		"named, to another queue": {
			to: "other", o: options{Named: true}, p: counts{Chosen: 6, Done: 6, Foreign: 2},
			other: "0 1 2 3 6 7", dead: "4 5",
		},
		"to a missing queue": {to: "nowhere", fails: topology.ErrUnroutable, dead: all},
		// Each failed replay left a copy among the originals.
		"edited, to a missing queue": {
			to: "nowhere", o: options{Edit: repaired}, fails: topology.ErrUnroutable, dead: all,
		},
		"to itself":    {to: "dead", fails: operate.ErrInvalidOptions, dead: all},
		"kept":         {o: options{KeepIn: full}, fails: operate.ErrInvalidOptions, dead: all},
		"no rate":      {o: options{Rate: -1}, fails: operate.ErrInvalidOptions, dead: all},
		"discard":      {discard: true, p: counts{Chosen: 8, Done: 8}},
		"discard, dry": {discard: true, o: options{DryRun: true}, p: counts{Chosen: 8}, dead: all},
		"discard of some": {
			discard: true, o: options{Filter: some, Limit: 2}, p: two, dead: "1 2 4 5 6 7",
		},
		"discard of none": {
			discard: true, o: options{KeepIn: full}, fails: syscall.ENOSPC, dead: all,
		},
		"discard to a queue": {discard: true, to: "other", fails: operate.ErrInvalidOptions, dead: all},
		"discard of edited letters": {
			discard: true, o: options{Edit: repaired}, fails: operate.ErrInvalidOptions, dead: all,
		},
	}, func(t *testing.T, c scene) {
		eachType(t, func(t *testing.T, b *box) {
			other := b.other(nil)
			b.die(8, func(i int, n *header.RetryState, m *amqp.Publishing) {
				switch i {
				case 0, 3, 6:
					n.Error = "no such customer"
				case 4:
					m.Headers[header.DeadQueue] = other
				case 5:
					m.Headers[header.DeadQueue] = nil
				case 7:
					m.Headers[header.Replays] = "2"
				}
			})
			o, p, act := c.o, c.p, b.Replay
			o.To = map[string]string{
				"other": other, "nowhere": b.queue + ".nowhere", "dead": b.dead,
			}[c.to]
			if c.discard {
				act = b.Discard
			}
			if p.Total == 0 {
				p.Total, p.Seen = 8, 8
			}
			done, err := act(t.Context(), b.plan, o)
			require.ErrorIs(t, err, c.fails)
			if c.fails == nil {
				require.Equal(t, p, done)
			}
			require.Equal(t, p.Done, done.Done)
			for queue, numbers := range map[string]string{
				b.queue: c.queue, other: c.other, b.dead: c.dead,
			} {
				b.holds(queue, numbers)
			}
			require.Equal(t, -1, testbroker.Depth(t, b.url, b.dead+".originals"))
		})
	})
}

// The handler still fails: everything comes back to the dead-letter queue while
// the replay goes on, which moves each message once and ends.
func TestReplayEndsThoughAllComesBack(t *testing.T) {
	forTypes(t, func(t *testing.T, b *box) {
		const dead = 1500
		b.die(dead)
		broken := testbroker.Channel(t, b.url)
		deliveries, err := broken.Consume(b.queue, "", false, false, false, false, nil)
		require.NoError(t, err)
		back := make(chan int, 1)
		go func() {
			n := 0
			for d := range deliveries {
				_ = broken.Publish("", b.dead, false, false,
					amqp.Publishing{Headers: d.Headers, Body: d.Body, DeliveryMode: amqp.Persistent})
				_ = d.Ack(false)
				if n++; n == dead {
					break
				}
			}
			back <- n
		}()
		require.Equal(t, dead, b.replay(operate.MoveOptions{}).Done)
		require.Equal(t, dead, rig.Await(t, back))
		b.depth(b.dead, dead)
		for _, l := range b.letters(operate.Filter{}) {
			require.Equal(t, 1, l.Replays, l.ID)
		}
	})
}

// An edit repairs the payload; the original is kept, and a letter that cannot be
// repaired stays.
func TestEditRepairsAndKeepsTheOriginal(t *testing.T) {
	forTypes(t, func(t *testing.T, b *box) {
		b.die(4)
		repair := func(l operate.Letter, msg *amqp.Publishing) error {
			l.Delivery.Headers["tenant"] = "a copy of the hook's own"
			switch l.ID {
			case "order-0":
				copy(msg.Body, `{"N"`) // in place
			case "order-1":
				msg.Headers["repaired"] = true
			case "order-2":
				return errors.New("beyond repair")
			}
			return nil
		}
		for _, dry := range []bool{true, false} {
			done, err := b.Replay(t.Context(), b.plan,
				operate.MoveOptions{Edit: repair, EditedBy: "ann", DryRun: dry})
			require.ErrorContains(t, err, `message "order-2" stays: beyond repair`)
			want := operate.Progress{Total: 4, Seen: 4, Chosen: 4, Refused: 1}
			if !dry {
				want.Done = 3
			}
			require.Equal(t, want, done)
		}
		moved := b.drain(b.queue, 3)
		require.Equal(t, []string{`{"N":0}`, `{"n":1}`, `{"n":3}`}, rig.Bodies(moved))
		require.Equal(t, true, moved[1].Headers["repaired"])
		require.Equal(t, "ann", moved[1].Headers[header.EditedBy])
		require.NotEmpty(t, moved[1].Headers[header.EditedAt])
		require.NotContains(t, moved[2].Headers, header.EditedBy, "it is unchanged")
		require.Equal(t, int32(1), moved[1].Headers["tenant"])
		originals := b.drain(b.dead+".originals", 2)
		require.Equal(t, numbered(0, 2), rig.Bodies(originals), "an unchanged letter needs none")
		require.Equal(t, "exhausted", originals[0].Headers[header.DeadReason])
		b.holds(b.dead, "2")
	})
}

// A letter that fills its frame loses its history, and one of a foreign header
// stays; neither stops the others.
func TestReplayOfLettersThatFillTheirFrame(t *testing.T) {
	forTypes(t, func(t *testing.T, b *box) {
		const frame = 131072
		b.die(1)
		long := amqp.Table{
			"theirs": strings.Repeat("x", frame-400), keys.DeadHistory: strings.Repeat("h", 300),
		}
		full := amqp.Table{"theirs": strings.Repeat("x", frame-120)}
		b.publish(b.dead, amqp.Publishing{MessageId: "long", Headers: long},
			amqp.Publishing{MessageId: "full", Headers: full})
		done, err := b.Replay(t.Context(), b.plan, operate.MoveOptions{})
		require.ErrorIs(t, err, topology.ErrTooLarge)
		require.ErrorContains(t, err, `"full"`)
		require.Equal(t, []int{2, 1}, []int{done.Done, done.Refused})
		moved := b.drain(b.queue, 2)
		require.Len(t, moved[1].Headers["theirs"], frame-400)
		require.NotContains(t, moved[1].Headers, keys.DeadHistory)
		b.holds(b.dead, "full")
	})
}

// Slower than messages may be held, a replay gives back and begins again, until all are moved. It
// is never faster than the rate that was asked for.
func TestSlowReplayHoldsNothingForLong(t *testing.T) {
	defer operate.SetHoldLimit(300 * time.Millisecond)()
	b := newBox(t, topology.Quorum)
	b.die(60)
	began := time.Now()
	done := b.replay(operate.MoveOptions{
		Rate: 20, Filter: operate.Filter{Headers: map[string]string{"tenant": "1"}},
	})
	require.Equal(t, operate.Progress{Total: 60, Seen: 60, Chosen: 20, Done: 20}, done)
	require.GreaterOrEqual(t, time.Since(began), 19*time.Second/20)
	require.Len(t, b.bodies(b.queue, 20), 20)
	require.Len(t, b.bodies(b.dead, 40), 40)
}
