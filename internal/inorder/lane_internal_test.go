package inorder

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/consumer"
	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/internal/order"
	"github.com/millpond-go/millpond/middleware/header"
)

// The time until which a message of the line waits is bounded by the delay that it names, as in
// other queues.
func TestAForgedTimeInTheLine(t *testing.T) {
	t.Parallel()
	l := &lane{cfg: &consumer.Config{Queue: "orders"}}
	far := time.Now().AddDate(10, 0, 0).UTC().Format(time.RFC3339Nano)
	headers := amqp.Table{header.Queue: "orders", keys.NotBefore: far, keys.Delay: "90s"}
	require.WithinDuration(t, time.Now().Add(90*time.Second), l.due(&amqp.Delivery{Headers: headers}),
		10*time.Second)
	delete(headers, keys.Delay)
	require.Zero(t, l.due(&amqp.Delivery{Headers: headers}))
}

// A key stands in headers and in JSON: long keys and other bytes are written as short text. Keys
// that differ go on to differ.
func TestKeysAreShortText(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("é", 1024)
	seen := map[string]bool{}
	other := strings.Repeat("\xff", 5000)
	for _, key := range []string{"orders-17", long, long + "x", "\xff", "\xfe", other} {
		l := &lane{
			q: New(Config{KeyBy: func(*message.Message) string { return key }}),
			cfg: &consumer.Config{Decode: func(amqp.Delivery) (*message.Message, error) {
				return message.NewMessage("", nil), nil
			}},
		}
		got := <-l.keyOf(t.Context(), &amqp.Delivery{})
		require.LessOrEqual(t, len(got), 1024)
		require.True(t, utf8.ValidString(got), got)
		require.False(t, seen[got], got)
		seen[got] = true
	}
	require.True(t, seen["orders-17"])
}

// The token with which a process has begun to stand by is acked by the leader of that time. When
// the process leads, it does not wait for that token: its lease would end meanwhile.
func TestANewLeaderDoesNotWaitForATokenThatIsGone(t *testing.T) {
	t.Parallel()
	now := time.Now()
	l, _ := leading(t)
	l.tokens = nil
	l.mine = map[string]time.Time{"first": now.Add(-2 * time.Second), "second": now}
	token := order.Note{Kind: order.Token, Epoch: 5, Name: "second"}
	require.True(t, l.token(amqp.Delivery{}, token))
	require.Empty(t, l.mine, "nothing keeps the next token back")
	require.True(t, l.leads())
}

// A message that ends the process slowly is not taken for harmless: the trying lasts a minute.
func TestTheTryingEndsAfterAMinute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, _ := leading(t)
		l.careful, l.crashes, l.since = true, mostCrashes, time.Now()
		beat := func() {
			l.mine = map[string]time.Time{"on its way": time.Now()}
			require.True(t, l.beat())
		}
		time.Sleep(calm - time.Nanosecond)
		beat()
		require.True(t, l.careful)
		time.Sleep(time.Nanosecond)
		beat()
		require.False(t, l.careful)
		require.Zero(t, l.crashes)
	})
}

// leading is a process that leads in epoch 5, with a blocked key in the line, and the deliveries of
// the line that it acks.
func leading(t *testing.T, users ...string) (l *lane, acked *[]uint64) {
	t.Helper()
	acked = new([]uint64)
	l = &lane{
		q: New(Config{ControlUsers: users}), cfg: &consumer.Config{}, logger: watermill.NopLogger{},
		lines: new(consumer.Channel), ctx: t.Context(), ack: func(tag uint64) error {
			*acked = append(*acked, tag)
			return nil
		},
		line: order.New[consumer.Arrival](order.Limits{}), mine: map[string]time.Time{},
		alive: map[uint64]bool{}, tokens: []amqp.Delivery{{DeliveryTag: 1}},
	}
	l.line.Returned(order.Waiting[consumer.Arrival]{
		Key: "a", Seq: 1, ID: order.ID{Epoch: 5, N: 1}, Block: true,
		Item: consumer.Arrival{Raw: amqp.Delivery{DeliveryTag: 2}},
	})
	l.line.Know(5, true)
	l.epoch.Store(5)
	return l, acked
}

// A token or a release of a user who is not named is acked and has no effect, but for its epoch:
// while users change, no epoch falls. Without names every user's count.
func TestNotesOfOtherUsers(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		users    []string
		user     string
		believed bool
	}{
		"no names":                 {nil, "", true},
		"a user who is named":      {[]string{"old", "new"}, "old", true},
		"the same, after a change": {[]string{"new"}, "old", false},
		"another user":             {[]string{"new"}, "mallory", false},
		"no user":                  {[]string{"new"}, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			deliver := func(l *lane, note string) bool {
				return l.fromLine(amqp.Delivery{
					DeliveryTag: 3, UserId: c.user, Headers: amqp.Table{keys.Line: note, keys.Key: "a"},
				})
			}
			l, acked := leading(t, c.users...)
			require.Equal(t, !c.believed, deliver(l, "token 6 x 1 1000 5-1"), "it leads")
			require.Equal(t, uint64(6), l.line.Epoch())
			require.Equal(t, !c.believed, slices.Contains(*acked, 3))

			l, acked = leading(t, c.users...)
			l.barrier, l.tokens = "gate", []amqp.Delivery{{}} // it reads, and leads later
			l.epoch.Store(0)
			require.True(t, deliver(l, "token 6 x 1 1000 5-1"))
			require.Equal(t, uint64(6), l.line.Epoch())
			require.Empty(t, *acked, "it stays until this process leads")
			require.Equal(t, c.believed, l.crashes > 0)

			l, acked = leading(t, c.users...)
			require.True(t, deliver(l, "release 5-1"))
			want := []uint64{3}
			if c.believed {
				want = []uint64{2, 3}
			}
			require.Equal(t, want, *acked)
		})
	}
}

// Forged notes of processes that have survived take no memory without bound, and hide no true one.
func TestForgedNotesOfSurvivalAreBounded(t *testing.T) {
	t.Parallel()
	l, _ := leading(t)
	l.last = order.Note{Kind: order.Token, Epoch: 5000, Crashes: 1}
	for n := range 5000 {
		note := order.Note{Kind: order.Token, Name: "x", Trying: order.ID{Epoch: uint64(n + 1)}}
		require.True(t, l.token(amqp.Delivery{}, note))
	}
	require.LessOrEqual(t, len(l.alive), order.MaxCrashes)
	require.Equal(t, 1, l.crashes, "the last one is true")
	for n := range 1001 {
		note := order.Note{Kind: order.Token, Name: "x", Trying: order.ID{Epoch: uint64(n + 9000)}}
		require.True(t, l.token(amqp.Delivery{}, note))
	}
	require.Equal(t, 1, l.crashes, "the true one is not forgotten")
}

// While messages are tried, the messages that follow are taken one by one: each needs room in the
// line, which the copy before it takes at its end.
func TestWhatIsTakenTogether(t *testing.T) {
	t.Parallel()
	l, _ := leading(t)
	l.careful, l.line = true, order.New[consumer.Arrival](order.Limits{Messages: 100, Bytes: 1 << 20})
	l.line.Know(5, true)
	l.line.BeCareful(true, order.MaxTried)
	for n := range 10 {
		l.line.Arrived(strconv.Itoa(n), consumer.Arrival{}, true, true)
	}
	next := l.take(time.NewTimer(0))
	require.True(t, next.Follows)
	require.Empty(t, l.behind)
}

// Given a step that was offered, when the lease ends before it begins, then it does not begin, and
// is offered again under the next lease. Meanwhile the lane is not idle: a probe is undecided.
func TestAStepWhoseLeaseHasEnded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, _ := leading(t)
		l.begun, l.changed = make(chan bool, 1), make(chan struct{}, 1)
		l.line.Returned(order.Waiting[consumer.Arrival]{Key: "b", Seq: 1, ID: order.ID{Epoch: 5, N: 2}})
		l.tokens = nil // none renews the lease
		l.renewLease(time.Now().Add(lease))
		offers, _, halt := l.Run()
		offer := <-offers
		time.Sleep(lease)
		require.False(t, offer.Step.Begin())
		synctest.Wait()
		require.Empty(t, offers)
		require.False(t, l.Idle())
		l.renewLease(time.Now().Add(lease))
		l.changed <- struct{}{}
		require.True(t, (<-offers).Step.Begin())
		halt()
		require.False(t, offer.Step.Begin(), "another process may lead")
	})
}

// If the queue cannot be opened, the messages in progress have as long as they need: no other
// process has the lead.
func TestAQueueThatCannotBeOpened(t *testing.T) {
	t.Parallel()
	l, _ := leading(t)
	require.False(t, l.mainOpened(newMain{err: errNotBelieved}))
	require.False(t, l.lines.HasEnded())
	require.False(t, l.orEnds(false))
	require.True(t, l.lines.HasEnded())
}
