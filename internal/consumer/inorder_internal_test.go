package consumer

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

	"github.com/millpond-go/millpond/internal/order"
	"github.com/millpond-go/millpond/middleware/header"
)

// A message of the line may arrive long before it is handled. Where nothing limits how long it is
// held, its hold begins with its handling.
func TestTheHoldOfAMessageThatHasWaitedInTheLine(t *testing.T) {
	t.Parallel()
	hour := arrival{at: time.Now().Add(-time.Hour)}
	for name, c := range map[string]struct {
		nackCounts bool
		want       time.Time
	}{
		"without a consumer timeout": {false, time.Now().Add(time.Minute)},
		"with a consumer timeout":    {true, hour.at.Add(time.Minute)},
	} {
		s := &Subscription{cfg: Config{Queue: "orders"}, stop: t.Context()}
		on := &consumer{
			ctx: t.Context(), hold: time.Minute, inOrder: &inOrder{},
			Limits: Limits{NackCounts: c.nackCounts},
		}
		d, end := s.newDelivery(on, hour)
		defer end()
		require.WithinDuration(t, c.want, d.HoldUntil, 10*time.Second, name)
	}
}

// The time until which a message of the line waits is bounded by the delay that it names, as in
// other queues.
func TestAForgedTimeInTheLine(t *testing.T) {
	t.Parallel()
	s := &Subscription{cfg: Config{Queue: "orders"}}
	far := time.Now().AddDate(10, 0, 0).UTC().Format(time.RFC3339Nano)
	headers := amqp.Table{header.Queue: "orders", header.NotBefore: far, header.Delay: "90s"}
	require.WithinDuration(t, time.Now().Add(90*time.Second), s.due(&amqp.Delivery{Headers: headers}),
		10*time.Second)
	delete(headers, header.Delay)
	require.Zero(t, s.due(&amqp.Delivery{Headers: headers}))
}

// A key stands in headers and in JSON: long keys and other bytes are written as short text. Keys
// that differ go on to differ.
func TestKeysAreShortText(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("é", 1024)
	seen := map[string]bool{}
	other := strings.Repeat("\xff", 5000)
	for _, key := range []string{"orders-17", long, long + "x", "\xff", "\xfe", other} {
		s := &Subscription{asking: make(chan struct{}, 1), cfg: Config{
			Order: &Order{KeyBy: func(*message.Message) string { return key }},
			Decode: func(amqp.Delivery) (*message.Message, error) {
				return message.NewMessage("", nil), nil
			},
		}}
		got := <-s.keyOf(&consumer{ctx: t.Context()}, &amqp.Delivery{})
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
	o := &inOrder{
		lines: &consumer{ctx: t.Context()}, line: order.New[arrival](order.Limits{}),
		mine: map[string]time.Time{"first": now.Add(-2 * time.Second), "second": now},
	}
	o.epoch.Store(5)
	token := order.Note{Kind: order.Token, Epoch: 5, Name: "second"}
	require.True(t, (&Subscription{}).token(o, amqp.Delivery{}, token))
	require.Empty(t, o.mine, "nothing keeps the next token back")
	require.True(t, o.leads())
}

// A message that ends the process slowly is not taken for harmless: the trying lasts a minute.
func TestTheTryingEndsAfterAMinute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &Subscription{places: newPlaces(1, nil)}
		o := &inOrder{
			line: order.New[arrival](order.Limits{}), careful: true, crashes: mostCrashes,
			since: time.Now(), tokens: make([]amqp.Delivery, 1),
		}
		beat := func() {
			o.mine = map[string]time.Time{"on its way": time.Now()}
			require.True(t, s.beat(o))
		}
		time.Sleep(calm - time.Nanosecond)
		beat()
		require.True(t, o.careful)
		time.Sleep(time.Nanosecond)
		beat()
		require.False(t, o.careful)
		require.Zero(t, o.crashes)
	})
}

// leading is a process that leads in epoch 5, with a blocked key in the line. Its acks are noted
// and not sent.
func leading(t *testing.T, users ...string) (*Subscription, *inOrder) {
	t.Helper()
	o := &inOrder{
		lines: &consumer{ctx: t.Context(), acks: acks{flushing: true}},
		line:  order.New[arrival](order.Limits{}), mine: map[string]time.Time{},
		alive: map[uint64]bool{}, tokens: []amqp.Delivery{{DeliveryTag: 1}},
	}
	o.line.Returned(order.Waiting[arrival]{
		Key: "a", Seq: 1, ID: order.ID{Epoch: 5, N: 1}, Block: true,
		Item: arrival{raw: amqp.Delivery{DeliveryTag: 2}},
	})
	o.line.Know(5, true)
	o.epoch.Store(5)
	o.lines.inOrder = o
	return &Subscription{
		cfg: Config{Order: &Order{ControlUsers: users}}, logger: watermill.NopLogger{},
	}, o
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
			deliver := func(s *Subscription, o *inOrder, note string) bool {
				return s.fromLine(o.lines, amqp.Delivery{
					DeliveryTag: 3, UserId: c.user, Headers: amqp.Table{header.Line: note, header.Key: "a"},
				})
			}
			s, o := leading(t, c.users...)
			require.Equal(t, !c.believed, deliver(s, o, "token 6 x 1 1000 5-1"), "it leads")
			require.Equal(t, uint64(6), o.line.Epoch())
			require.Equal(t, !c.believed, slices.Contains(o.lines.acks.wanted, 3))

			s, o = leading(t, c.users...)
			o.gate, o.tokens = "gate", []amqp.Delivery{{}} // it reads, and leads later
			o.epoch.Store(0)
			require.True(t, deliver(s, o, "token 6 x 1 1000 5-1"))
			require.Equal(t, uint64(6), o.line.Epoch())
			require.Empty(t, o.lines.acks.wanted, "it stays until this process leads")
			require.Equal(t, c.believed, o.crashes > 0)

			s, o = leading(t, c.users...)
			require.True(t, deliver(s, o, "release 5-1"))
			want := []uint64{3}
			if c.believed {
				want = []uint64{2, 3}
			}
			require.Equal(t, want, o.lines.acks.wanted)
		})
	}
}

// Forged notes of processes that have survived take no memory without bound, and hide no true one.
func TestForgedNotesOfSurvivalAreBounded(t *testing.T) {
	t.Parallel()
	s, o := leading(t)
	o.last = order.Note{Kind: order.Token, Epoch: 5000, Crashes: 1}
	for n := range 5000 {
		note := order.Note{Kind: order.Token, Name: "x", Trying: order.ID{Epoch: uint64(n + 1)}}
		require.True(t, s.token(o, amqp.Delivery{}, note))
	}
	require.LessOrEqual(t, len(o.alive), order.MaxCrashes)
	require.Equal(t, 1, o.crashes, "the last one is true")
	for n := range 1001 {
		note := order.Note{Kind: order.Token, Name: "x", Trying: order.ID{Epoch: uint64(n + 9000)}}
		require.True(t, s.token(o, amqp.Delivery{}, note))
	}
	require.Equal(t, 1, o.crashes, "the true one is not forgotten")
}

// While messages are tried, the messages that follow are taken one by one: each needs room in the
// line, which the copy before it takes at its end.
func TestWhatIsTakenTogether(t *testing.T) {
	t.Parallel()
	_, o := leading(t)
	o.careful, o.line = true, order.New[arrival](order.Limits{Messages: 100, Bytes: 1 << 20})
	o.line.Know(5, true)
	o.line.BeCareful(true, order.MaxTried)
	for n := range 10 {
		o.line.Arrived(strconv.Itoa(n), arrival{}, true, true)
	}
	next := o.take(time.NewTimer(0))
	require.True(t, next.Follows)
	require.Empty(t, o.behind)
}
