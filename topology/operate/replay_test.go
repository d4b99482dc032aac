package operate_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
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

func numbered(from, to int) []string {
	var all []string
	for i := from; i < to; i++ {
		all = append(all, fmt.Sprintf(`{"n":%d}`, i))
	}
	return all
}

// Letters that are moved back arrive in their order, unchanged, counted, with their history.
func TestReplayMovesAllAsTheyWere(t *testing.T) {
	t.Parallel()
	forTypes(t, func(t *testing.T, b *box) {
		const dead = 1100
		b.die(dead, func(i int, _ *header.RetryState, m *amqp.Publishing) {
			m.Headers["CC"] = []any{b.dead} // left out
			delete(m.Headers, "CC")
			m.Headers[keys.Failures] = "7" // forged
			if i == 1 {
				m.Headers[header.Replays] = "41"
			}
		})
		var last operate.Progress
		done := b.replay(operate.ReplayOptions{Progress: func(p operate.Progress) { last = p }})
		require.Equal(t, operate.Progress{Total: dead, Seen: dead, Chosen: dead, Done: dead}, done)
		require.Equal(t, done, last)
		b.depth(b.dead, 0)
		arrived := b.drain(b.queue, dead)
		require.True(t, slices.Equal(numbered(0, dead), bodiesOf(arrived)), "in their order")
		d := arrived[0]
		require.Equal(t, "order-0", d.MessageId)
		require.Equal(t, "c", d.CorrelationId)
		require.Equal(t, "application/json", d.ContentType)
		require.Equal(t, amqp.Persistent, d.DeliveryMode)
		require.Equal(t, int32(0), d.Headers["tenant"])
		require.Equal(t, "1", d.Headers[header.Replays])
		require.Equal(t, "42", arrived[1].Headers[header.Replays])
		require.NotContains(t, d.Headers, keys.Failures)
		notes := header.Parse(b.queue,
			func(key string) (string, bool) { v, ok := d.Headers[key].(string); return v, ok })
		require.Zero(t, notes.Failures, "attempts start anew")
		require.Len(t, notes.History, 1, "history is kept")
		require.Equal(t, "shop order.placed", notes.OriginExchange+" "+notes.OriginRoutingKey)
	})
}

// Letters that are not chosen, or belong to another queue, stay in their order.
func TestReplayTakesWhatIsChosen(t *testing.T) {
	t.Parallel()
	forTypes(t, func(t *testing.T, b *box) {
		b.die(900, func(i int, n *header.RetryState, m *amqp.Publishing) {
			if i%3 == 0 {
				n.Error = "no such customer"
			}
		})
		other := testbroker.Queue(t)
		rig.DeclareQueue(t, b.url, other, nil)
		b.publish(b.dead,
			amqp.Publishing{Body: []byte("of another queue"), Headers: amqp.Table{header.DeadQueue: other}})

		chosen := operate.ReplayOptions{Filter: operate.Filter{Error: "customer"}, DryRun: true}
		done := b.replay(chosen)
		require.Equal(t, operate.Progress{Total: 901, Seen: 901, Chosen: 300}, done)
		b.depth(b.dead, 901)

		chosen.DryRun, chosen.Limit = false, 100
		done = b.replay(chosen)
		require.Equal(t, 100, done.Done)
		chosen.Limit = 0
		done = b.replay(chosen)
		require.Equal(t, operate.Progress{Total: 801, Seen: 801, Chosen: 200, Done: 200}, done)
		require.Len(t, b.bodies(b.queue, 300), 300)
		done = b.replay(operate.ReplayOptions{Filter: operate.Filter{Handler: "none"}})
		require.Zero(t, done.Done)

		done = b.replay(operate.ReplayOptions{Limit: 10})
		require.Equal(t, 10, done.Done)
		require.Equal(t, []string{`{"n":1}`, `{"n":2}`, `{"n":4}`}, b.bodies(b.queue, 10)[:3],
			"the oldest first")
		done = b.replay(operate.ReplayOptions{})
		require.Equal(t, 590, done.Done)
		require.Equal(t, 1, done.Foreign)
		done = b.replay(operate.ReplayOptions{To: other})
		require.Equal(t, 1, done.Done)
		require.Equal(t, []string{"of another queue"}, b.bodies(other, 1))
	})
}

// The handler still fails: everything comes back to the dead-letter queue while
// the replay goes on, which moves each message once and ends.
func TestReplayEndsThoughAllComesBack(t *testing.T) {
	t.Parallel()
	forTypes(t, func(t *testing.T, b *box) {
		const dead = 1500
		b.die(dead)
		ctx, cancel := context.WithTimeout(t.Context(), rig.Patience)
		defer cancel()
		broken := testbroker.Channel(t, b.url)
		deliveries, err := broken.Consume(b.queue, "", false, false, false, false, nil)
		require.NoError(t, err)
		back := make(chan int, 1)
		go func() {
			n := 0
			for d := range deliveries {
				_ = broken.PublishWithContext(ctx, "", b.dead, false, false,
					amqp.Publishing{Headers: d.Headers, Body: d.Body, DeliveryMode: amqp.Persistent})
				_ = d.Ack(false)
				if n++; n == dead {
					break
				}
			}
			back <- n
		}()
		done, err := b.Replay(ctx, b.plan, operate.ReplayOptions{})
		require.NoError(t, err)
		require.Equal(t, dead, done.Done)
		require.Equal(t, dead, <-back)
		b.depth(b.dead, dead)
		for _, l := range b.letters(operate.Filter{}) {
			require.Equal(t, 1, l.Replays, l.ID)
		}
	})
}

// A queue that is not there: nothing is lost, and the error says so.
func TestReplayToNowhereLosesNothing(t *testing.T) {
	t.Parallel()
	forTypes(t, func(t *testing.T, b *box) {
		b.die(700)
		done, err := b.Replay(t.Context(), b.plan, operate.ReplayOptions{To: b.queue + ".nowhere"})
		require.ErrorIs(t, err, topology.ErrUnroutable)
		require.Zero(t, done.Done)
		_, err = b.Replay(t.Context(), b.plan, operate.ReplayOptions{To: b.dead})
		require.ErrorIs(t, err, operate.ErrInvalidOptions)
		_, err = b.Replay(t.Context(), b.plan, operate.ReplayOptions{Rate: -1})
		require.ErrorIs(t, err, operate.ErrInvalidOptions)
		require.True(t, slices.Equal(numbered(0, 700), b.bodies(b.dead, 700)),
			"all there, in their order")
	})
}

// Cancelled in the middle, what has begun is finished and the rest stays.
func TestReplayThatIsCancelledLeavesTheRest(t *testing.T) {
	t.Parallel()
	forTypes(t, func(t *testing.T, b *box) {
		const dead = 1000
		b.die(dead)
		ctx, cancel := context.WithCancel(t.Context())
		done, err := b.Replay(ctx, b.plan, operate.ReplayOptions{Progress: func(p operate.Progress) {
			if p.Done == 300 {
				cancel()
			}
		}})
		require.ErrorIs(t, err, context.Canceled)
		require.GreaterOrEqual(t, done.Done, 300)
		moved, left := b.bodies(b.queue, done.Done), b.bodies(b.dead, dead-done.Done)
		require.Len(t, moved, done.Done)
		require.ElementsMatch(t, numbered(0, dead), append(moved, left...), "each once")
	})
}

// An edit repairs the payload; the original is kept, and a letter that cannot be
// repaired stays.
func TestEditRepairsAndKeepsTheOriginal(t *testing.T) {
	t.Parallel()
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
		options := operate.ReplayOptions{Edit: repair, EditedBy: "ann", DryRun: true}
		done, err := b.Replay(t.Context(), b.plan, options)
		require.ErrorContains(t, err, `message "order-2" stays: beyond repair`)
		require.Equal(t, operate.Progress{Total: 4, Seen: 4, Chosen: 4, Refused: 1}, done)
		options.DryRun = false
		done, err = b.Replay(t.Context(), b.plan, options)
		require.ErrorContains(t, err, `message "order-2" stays: beyond repair`)
		require.Equal(t, operate.Progress{Total: 4, Seen: 4, Chosen: 4, Done: 3, Refused: 1}, done)
		moved := b.drain(b.queue, 3)
		require.Equal(t, `{"N":0}`, string(moved[0].Body))
		require.Equal(t, true, moved[1].Headers["repaired"])
		require.Equal(t, "ann", moved[1].Headers[header.EditedBy])
		require.NotEmpty(t, moved[1].Headers[header.EditedAt])
		require.NotContains(t, moved[2].Headers, header.EditedBy, "it is unchanged")
		require.Equal(t, int32(1), moved[1].Headers["tenant"])
		require.Equal(t, `{"n":3}`, string(moved[2].Body))
		originals := b.drain(b.dead+".originals", 2)
		require.Len(t, originals, 2, "an unchanged letter needs none")
		require.Equal(t, `{"n":0}`, string(originals[0].Body))
		require.Equal(t, "exhausted", originals[0].Headers[header.DeadReason])
		require.Equal(t, []string{`{"n":2}`}, b.bodies(b.dead, 1))
	})
}

// Given a dead-letter queue of several queues, a letter that names no queue went to the first of
// them.
func TestALetterWithoutAQueueWasReplayedToTheFirst(t *testing.T) {
	t.Parallel()
	forTypes(t, func(t *testing.T, b *box) {
		b.die(1)
		other := testbroker.Queue(t)
		rig.DeclareQueue(t, b.url, other, nil)
		b.publish(b.dead,
			amqp.Publishing{Body: []byte("of nobody")},
			amqp.Publishing{Body: []byte("of other"), Headers: amqp.Table{header.DeadQueue: other}})
		named := quick(operate.RampOptions{Canary: -1, StopAt: 1, Watch: time.Second})
		named.Named = true
		h, err := b.Rehearse(t.Context(), b.plan, named)
		require.NoError(t, err)
		require.Equal(t, []int{1, 2}, []int{h.Chosen, h.Foreign})
		r, err := b.Ramp(t.Context(), b.plan, named)
		require.NoError(t, err)
		require.Equal(t, []int{1, 2}, []int{r.Replayed(), r.Foreign})
		require.Equal(t, []string{`{"n":0}`}, b.bodies(b.queue, 1))
		for _, to := range []string{"", other} {
			done := b.replay(operate.ReplayOptions{Named: true, To: to})
			require.Equal(t, operate.Progress{Total: 2, Seen: 2, Foreign: 2}, done)
		}
		require.Equal(t, 1, b.replay(operate.ReplayOptions{}).Done)
		require.Equal(t, []string{"of nobody"}, b.bodies(b.queue, 1), "without Named, as ever")
	})
}

// Each failed replay left a copy of a letter among the originals.
func TestReplayToAMissingQueueKeptAnOriginalEachTime(t *testing.T) {
	t.Parallel()
	forTypes(t, func(t *testing.T, b *box) {
		b.die(2)
		rig.DeleteQueue(t, b.url, b.queue)
		kept := testbroker.Queue(t)
		rig.DeclareQueue(t, b.url, kept, nil)
		options := operate.ReplayOptions{Edit: func(_ operate.Letter, msg *amqp.Publishing) error {
			msg.Body = []byte("repaired")
			return nil
		}}
		for _, options.Originals = range []string{"", kept} {
			done, err := b.Replay(t.Context(), b.plan, options)
			require.ErrorIs(t, err, topology.ErrUnroutable)
			require.ErrorContains(t, err, b.queue)
			require.Zero(t, done.Done)
		}
		require.Empty(t, b.bodies(kept, 0), "originals")
		b.depth(b.dead, 2)
		_, err := testbroker.Channel(t, b.url).QueueDeclarePassive(
			b.dead+".originals", true, false, false, false, nil)
		require.ErrorContains(t, err, "NOT_FOUND")
	})
}

// A letter that fills its frame loses its history, and one of a foreign header
// stays; neither stops the others.
func TestReplayOfLettersThatFillTheirFrame(t *testing.T) {
	t.Parallel()
	forTypes(t, func(t *testing.T, b *box) {
		const frame = 131072
		b.die(1)
		b.publish(b.dead,
			amqp.Publishing{
				MessageId: "long",
				Headers: amqp.Table{
					"theirs": strings.Repeat("x", frame-400), keys.DeadHistory: strings.Repeat("h", 300),
				},
			},
			amqp.Publishing{
				MessageId: "full", Headers: amqp.Table{"theirs": strings.Repeat("x", frame-120)},
			})
		done, err := b.Replay(t.Context(), b.plan, operate.ReplayOptions{})
		require.ErrorIs(t, err, topology.ErrTooLarge)
		require.ErrorContains(t, err, `"full"`)
		require.Equal(t, 2, done.Done)
		require.Equal(t, 1, done.Refused)
		moved := b.drain(b.queue, 2)
		require.Len(t, moved[1].Headers["theirs"], frame-400)
		require.NotContains(t, moved[1].Headers, keys.DeadHistory)
		require.Equal(t, 1, testbroker.Depth(t, b.url, b.dead))
	})
}

// Slower than messages may be held, a replay gives back and begins again, until
// all are moved.
func TestSlowReplayHoldsNothingForLong(t *testing.T) {
	defer operate.SetHoldLimit(300 * time.Millisecond)()
	b := newBox(t, topology.Quorum)
	b.die(60)
	done, err := b.Replay(
		t.Context(), b.plan,
		operate.ReplayOptions{
			Rate: 60, Filter: operate.Filter{Headers: map[string]string{"tenant": "1"}},
		},
	)
	require.NoError(t, err)
	require.Equal(t, operate.Progress{Total: 60, Seen: 60, Chosen: 20, Done: 20}, done)
	require.Len(t, b.bodies(b.queue, 20), 20)
	require.Len(t, b.bodies(b.dead, 40), 40)
}

// Within 5 % of the rate that was asked for; a busy machine is given more room.
func TestReplayKeepsItsRate(t *testing.T) {
	t.Parallel()
	forTypes(t, func(t *testing.T, b *box) {
		const dead, rate = 300, 100
		b.die(dead)
		began := time.Now()
		b.replay(operate.ReplayOptions{Rate: rate})
		measured := dead / time.Since(began).Seconds()
		t.Logf("asked for %d/s, measured %.1f/s", rate, measured)
		require.LessOrEqual(t, measured, rate*1.05)
		require.GreaterOrEqual(t, measured, rate*0.3)
	})
}

// BenchmarkReplay is how fast dead letters of 1 KiB are moved back.
func BenchmarkReplay(bench *testing.B) {
	for _, kind := range types {
		bench.Run(string(kind), func(bench *testing.B) {
			b := newBox(bench, kind)
			pad := make([]byte, 1024)
			b.die(bench.N, func(_ int, _ *header.RetryState, m *amqp.Publishing) { m.Body = pad })
			bench.ResetTimer()
			done, err := b.Replay(bench.Context(), b.plan, operate.ReplayOptions{})
			require.NoError(bench, err)
			require.Equal(bench, bench.N, done.Done)
			bench.ReportMetric(float64(done.Done)/bench.Elapsed().Seconds(), "messages/s")
		})
	}
}
