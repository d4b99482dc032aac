package consumer

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/internal/publisher"
	"github.com/millpond-go/millpond/internal/wire"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology/wait"
)

func TestDeadlineOfATimestampWindow(t *testing.T) {
	t.Parallel()
	arrived := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	hour, none := TimestampWindow{time.Hour, time.Minute}, TimestampWindow{}
	widest, past := TimestampWindow{1<<63 - 1, 1<<63 - 1}, TimestampWindow{1<<63 - 1, 0}
	const s, tenYears, unset = time.Second, 87600 * time.Hour, time.Duration(-1 << 63)
	epoch := time.Unix(0, 0).Sub(arrived)
	for name, c := range map[string]struct {
		window         TimestampWindow
		expiration     string
		timestamp, end time.Duration // from the arrival
		from           string
	}{
		"no expiration":              {hour, "", 0, unset, ""},
		"no number":                  {hour, "soon", 0, unset, ""},
		"negative":                   {hour, "-1", 0, unset, ""},
		"zero expiration":            {hour, "0", 0, 0, "arrival"},
		"ten years at most":          {hour, "9223372036854775807", unset, tenYears, "arrival"},
		"at the arrival":             {hour, "1000", 0, s, "timestamp"},
		"nothing counts":             {none, "1000", 0, s, "arrival"},
		"at the edge of the past":    {hour, "7200000", -time.Hour, 2 * time.Hour, "arrival"},
		"inside the edge":            {hour, "7200000", -time.Hour + 1, time.Hour + 1, "timestamp"},
		"at the edge of the future":  {hour, "1000", time.Minute, s, "arrival"},
		"inside that edge":           {hour, "1000", time.Minute - 1, time.Minute + s - 1, "timestamp"},
		"over at the arrival":        {hour, "1000", -s, s, "arrival"},
		"nearly over at the arrival": {hour, "1000", -s + 1, 1, "timestamp"},
		"the widest window there is": {widest, "1000", epoch, s, "arrival"},
		"ahead in the widest one":    {widest, "1000", time.Hour, time.Hour + s, "timestamp"},
		"no timestamp in the widest": {widest, "1000", unset, s, "arrival"},
		"zero, valid for ten years":  {past, "315360000000", epoch, tenYears, "arrival"},
	} {
		at := func(d time.Duration) time.Time {
			if d == unset {
				return time.Time{}
			}
			return arrived.Add(d)
		}
		raw := amqp.Delivery{Expiration: c.expiration, Timestamp: at(c.timestamp)}
		end, from := c.window.deadline(&raw, arrived)
		require.Equal(t, c.from, from, name)
		require.True(t, at(c.end).Equal(end), "%s: %v", name, end)
	}
}

// The note of a priority counts where the other notes do, and for the siblings of a
// queue that retries through an exchange. A forged priority is bounded.
func TestNoteOfAPriority(t *testing.T) {
	t.Parallel()
	const property = 4
	for name, c := range map[string]struct {
		queue, exchange string
		note            any
		want            uint8
	}{
		"noted":                     {"orders", "", "9", 9},
		"the highest":               {"orders", "", "255", 255},
		"too high":                  {"orders", "", "256", property},
		"negative":                  {"orders", "", "-1", property},
		"empty":                     {"orders", "", "", property},
		"no whole number":           {"orders", "", "9.0", property},
		"no text":                   {"orders", "", int32(9), property},
		"none":                      {"orders", "", nil, property},
		"of another queue":          {"mail", "", "9", property},
		"of no queue":               {"", "", "9", property},
		"of a sibling, returned":    {"mail", "millpond.via", "9", 9},
		"of a sibling, not by us":   {"mail", "events", "9", property},
		"of no queue, but returned": {"", "millpond.via", "9", property},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			headers := amqp.Table{keys.Priority: c.note}
			if c.queue != "" {
				headers[header.Queue] = c.queue
			}
			via := Via{Exchanges: []string{"events"}, Through: []string{"millpond.via"}}
			d := fuzzedDelivery(t, testWaits(via),
				amqp.Delivery{Headers: headers, Exchange: c.exchange, Priority: property})
			require.Equal(t, c.want, d.raw.Priority)
			if c.queue != "orders" {
				require.NotContains(t, d.raw.Headers, keys.Priority)
			}
		})
	}
}

// Only wait queues that sort by priority get a message with a lower priority than its own,
// and only above priority 4.
func TestPriorityOfAMessageThatWaits(t *testing.T) {
	t.Parallel()
	for _, sorts := range []bool{true, false} {
		for priority, above := range map[uint8]bool{
			0: false, 1: false, 4: false, 5: true, 9: true,
			255: true,
		} {
			waits := testWaits(Via{})
			waits.SortsPriorities = sorts
			d := fuzzedDelivery(t, waits, amqp.Delivery{Priority: priority})
			state := d.State
			_, msg, err := d.waiting(time.Now(), time.Second, &state)
			require.NoError(t, err)
			lowered := msg.Headers[keys.Priority] != nil
			require.Equal(t, sorts && above, lowered, "priority %d", priority)
			if lowered {
				require.EqualValues(t, 4, msg.Priority)
			} else {
				require.Equal(t, priority, msg.Priority)
			}
		}
	}
}

// Given a message whose own headers leave no room for the history, when it waits, then the values
// that would follow from the history have their own headers.
func TestWithoutRoomForTheHistoryItsValuesAreWritten(t *testing.T) {
	t.Parallel()
	noon := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	theirs := strings.Repeat("x", waitingRoom(131072, &wait.Route{Hops: 1}).bytes-1000)
	d := fuzzedDelivery(t, testWaits(Via{}), amqp.Delivery{
		RoutingKey: "orders", Headers: amqp.Table{"theirs": theirs},
	})
	state := header.RetryState{
		Failures: 40, FirstSeen: noon, FirstFailure: noon, WaitingSince: noon.Add(39 * time.Second),
		Delay: time.Second, Error: strings.Repeat("e", 200), Class: header.ClassRetryable,
		OriginRoutingKey: "orders",
	}
	for i := range state.Failures {
		state.History = append(state.History, header.AttemptError{
			Attempt: i + 1, At: noon.Add(time.Duration(i) * time.Second), Class: state.Class,
			Error: state.Error, Delay: "1s",
		})
	}
	written := state
	_, msg, err := d.waiting(noon, time.Second, &written)
	require.NoError(t, err)
	got := header.Parse("orders", func(key string) (string, bool) {
		text, ok := msg.Headers[key].(string)
		return text, ok
	})
	state.History = nil
	require.Equal(t, state, got)
	require.Equal(t, theirs, msg.Headers["theirs"])
}

// Given a message that comes from the levels of an earlier version, which routed by headers, then
// its next copy passes the exchange again, and neither it nor the dead letter has these headers.
func TestHeadersOfOlderLevelsEndWithTheirWait(t *testing.T) {
	t.Parallel()
	for _, owner := range []string{"orders", "mail"} {
		d := fuzzedDelivery(t, testWaits(Via{
			Exchanges: []string{"events"}, Through: []string{"millpond.via"},
		}), amqp.Delivery{Exchange: "millpond.level.1.via", RoutingKey: "a.b", Headers: amqp.Table{
			header.Queue: owner, keys.Failures: "2", keys.Via: ViaHeader(owner, "events"),
			"millpond-level-2": "first", "millpond-level-0": "next", "tenant": "a",
		}})
		state := d.State
		state.Failures++
		_, waits, err := d.waiting(time.Now(), time.Second, &state)
		require.NoError(t, err)
		if owner == "orders" {
			require.Equal(t, "through events orders", waits.Headers[keys.Via])
		}
		dead, _ := d.dead("subscriber", d.State)
		for _, msg := range []*amqp.Publishing{waits, dead} {
			require.Equal(t, "a", msg.Headers["tenant"])
			require.NotContains(t, msg.Headers, "millpond-level-2")
			require.NotContains(t, msg.Headers, "millpond-level-0")
		}
		require.Equal(t, owner != "orders", d.State.Failures == 0)
	}
}

// Only the first publish after the first failure goes straight to the queue.
func TestWhichCopyComesAtOnce(t *testing.T) {
	t.Parallel()
	type testCase struct {
		delay          time.Duration
		failed, before int // failures with this one, and before it
		set            func(d *delivery)
		want           bool
	}
	tried := func(d *delivery) { d.triedAtOnce = true }
	outage := func(d *delivery) { d.sub.outage.active.Store(true) }
	via := func(d *delivery) { d.sub.cfg.Waits.Via.Through = []string{"back"} }
	for name, c := range map[string]testCase{
		"the first failure":          {failed: 1, want: true},
		"the first, with a delay":    {delay: time.Millisecond, failed: 1},
		"the second":                 {failed: 2, before: 1},
		"the second, counted as one": {failed: 1, before: 1},
		"a snooze":                   {},
		"a snooze after a failure":   {failed: 1, before: 1},
		"a second publish":           {failed: 1, set: tried},
		"during an outage":           {failed: 1, set: outage},
		"through an exchange":        {failed: 1, set: via},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sub := &Subscription{cfg: Config{Waits: Waits{
				Route: func(wait.Retry) (wait.Route, error) {
					return wait.Route{RoutingKey: "wait", Delay: time.Second}, nil
				},
			}}}
			d := &delivery{sub: sub}
			d.Queue, d.State.Failures = "orders", c.before
			if c.set != nil {
				c.set(d)
			}
			state := header.RetryState{Failures: c.failed}
			require.Equal(t, c.want, d.comesAtOnce(c.delay, &state))
			first, err := d.route(c.delay, &state)
			require.NoError(t, err)
			require.Equal(t, c.want, isAtOnce(&first))
			require.Equal(t, c.want, d.isOwn(&first))
			second, err := d.route(c.delay, &state)
			require.NoError(t, err)
			require.Equal(t, "wait", second.RoutingKey)
		})
	}
}

func TestWhichErrorsDeclineAMessage(t *testing.T) {
	t.Parallel()
	for _, err := range []error{
		publisher.ErrRefused, &publisher.ReturnedError{},
		fmt.Errorf("unknown: %w", &amqp.Error{Code: amqp.AccessRefused}),
	} {
		require.True(t, isDeclined(fmt.Errorf("publish: %w", err)), "%v", err)
	}
	for _, err := range []error{
		nil, publisher.ErrNotSent, publisher.ErrUnknown, errors.New("other"),
		&amqp.Error{Code: amqp.NotFound},
	} {
		require.False(t, isDeclined(err), "%v", err)
	}
}

// Given a message that waits in rounds, then each round is asked for with the rest of the delay and
// the whole delay. The message is due when no rest is left, however short the rest is. The last
// round names no time, so that no clock can add another round.
func TestEachRoundIsAskedForWithTheWholeDelay(t *testing.T) {
	t.Parallel()
	for name, whole := range map[string]header.RetryState{
		"after a failure":                 {Failures: 2, Delay: 13 * time.Second},
		"after a snooze":                  {Snoozed: 13 * time.Second},
		"a snooze after a longer failure": {Failures: 1, Delay: time.Hour, Snoozed: 13 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var asked []wait.Retry
			waits := testWaits(Via{})
			waits.Steps = []time.Duration{5 * time.Second}
			waits.Route = func(r wait.Retry) (wait.Route, error) {
				asked = append(asked, r)
				return wait.Route{RoutingKey: "wait", Delay: 5 * time.Second, Hops: 1}, nil
			}
			d := fuzzedDelivery(t, waits, amqp.Delivery{RoutingKey: "orders"})
			now := time.Now()
			state := whole
			_, msg, err := d.waiting(now, 13*time.Second, &state)
			require.NoError(t, err)
			require.Equal(t, now.Add(13*time.Second), state.NotBefore)
			require.Contains(t, msg.Headers, keys.NotBefore)

			for _, left := range []time.Duration{8 * time.Second, time.Millisecond, -time.Second} {
				state.NotBefore = time.Now().Add(left)
				d.State = state
				if left < 0 {
					require.Zero(t, d.remaining())
					continue
				}
				require.LessOrEqual(t, d.remaining(), left)
				if left > time.Second {
					require.Greater(t, d.remaining(), left-time.Second)
				}
				again := state
				_, msg, err = d.waiting(time.Now(), left, &again)
				require.NoError(t, err)
				if left < 5*time.Second {
					require.NotContains(t, msg.Headers, keys.NotBefore, "the last round")
				}
			}
			require.Len(t, asked, 3)
			for i, rest := range []time.Duration{13 * time.Second, 8 * time.Second, time.Millisecond} {
				require.Equal(t, rest, asked[i].Delay)
				require.Equal(t, 13*time.Second, asked[i].Asked)
			}
		})
	}
}

// A rest under a hundredth of the delay was left out: the message was early.
func TestAShortRestIsNotLeftOut(t *testing.T) {
	t.Parallel()
	d := fuzzedDelivery(t, testWaits(Via{}), amqp.Delivery{RoutingKey: "orders"})
	d.State = header.RetryState{Delay: time.Hour, NotBefore: time.Now().Add(20 * time.Second)}
	require.Positive(t, d.remaining(), "less than a hundredth of the delay is left")
}

// A message that has failed once, with an error in its copy, and that was rejected since then has
// the failures of both. The error is not the last one, which the broker does not keep. A consumer
// that rejects nothing counts the rejects of others and takes them for no ends of processes.
func TestFailuresThatTheBrokerCountsLeaveNoError(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		rejected func(count int) time.Duration
		failures int
		verdict  verdict
	}{
		"rejects, its own or of others": {
			func(count int) time.Duration { return time.Duration(count) * time.Second }, 6, innocent,
		},
		"nothing is rejected": {nil, 1, suspect},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			on := &Channel{
				ctx: t.Context(), hold: time.Minute, Limits: Limits{Deliveries: 20, Rejected: c.rejected},
			}
			s := &Subscription{
				cfg: Config{Queue: "orders", Keeper: copies{}}, logger: watermill.NopLogger{},
				stop: t.Context(),
			}
			raw := amqp.Delivery{Redelivered: true, Headers: amqp.Table{
				"x-delivery-count": int64(5), "x-acquired-count": int64(5),
			}}
			copied := header.RetryState{Failures: 1, Error: "no stock", Class: header.ClassRetryable}
			for key, value := range copied.Headers("orders") {
				raw.Headers[key] = value
			}
			d, end := s.newDelivery(Arrival{Raw: raw, At: time.Now(), On: on, Step: asArrived{}})
			defer end()
			require.Equal(t, c.failures, d.State.Failures)
			require.Equal(t, c.failures == 1, d.State.Error != "" && d.State.Class != "")
			require.Equal(t, c.verdict, s.judge(on, &raw))
		})
	}
}

// Whether the routing key of a delivery was changed while its message waited. Which exchanges
// of a plan keep the key is tested in topology.
func TestChangedKey(t *testing.T) {
	t.Parallel()
	death := func(keys ...any) amqp.Table { return amqp.Table{"queue": "w", "routing-keys": keys} }
	shared, via := []string{"millpond.return"}, []string{"millpond.via"}
	levels := []string{"millpond.level.return", "millpond.level.3"}
	const back, key = "millpond.return", "orders"
	for name, c := range map[string]struct {
		kept          []string
		exchange, key string
		deaths        any
		before        string
		changed       bool
	}{
		"the key of another queue": {shared, back, key, []any{death("mail")}, "mail", true},
		"its own":                  {shared, back, key, []any{death(key)}, key, false},
		"another exchange":         {shared, "events", key, []any{death("mail")}, "", false},
		"the default exchange":     {nil, "", key, []any{death("orders.wait.5s")}, "", false},
		"levels, by the exchange of one": {
			levels, levels[1], "0.orders", []any{death("1.mail")}, "1.mail", true,
		},
		"levels, the first of three hops": {
			levels, levels[0], key, []any{death(key), death(key), death("1.1.1.mail")}, "1.1.1.mail", true,
		},
		"with Via": {[]string{"v"}, "v", "a", []any{death("b")}, "b", true},
		"an older level with Via": {
			via, "millpond.level.0.via", "a", []any{death("b")}, "b", true,
		},
		"a wait queue that sets the key": {nil, "back", "fixed", []any{death("w")}, "", false},
		"no x-death":                     {shared, back, key, nil, "", false},
		"an x-death that is no list":     {shared, back, key, "mail", "", false},
		"an empty list":                  {shared, back, key, []any{}, "", false},
		"a list of something else":       {shared, back, key, []any{"mail"}, "", false},
		"no routing keys":                {shared, back, key, []any{amqp.Table{}}, "", false},
		"a key that is not a string":     {shared, back, key, []any{death(int32(1))}, "", false},
	} {
		raw := amqp.Delivery{
			Exchange: c.exchange, RoutingKey: c.key, Headers: amqp.Table{"x-death": c.deaths},
		}
		s := &Subscription{cfg: Config{Waits: Waits{KeyKept: c.kept, Via: Via{Through: c.kept}}}}
		before, changed := s.changedKey(&raw)
		require.Equal(t, c.before, before, name)
		require.Equal(t, c.changed, changed, name)
	}
}

// Which exchange of the user brought a delivery. A header counts only on a delivery of a wait
// queue, and only where it names an exchange of the plan.
func TestTheExchangeThatBroughtAMessage(t *testing.T) {
	t.Parallel()
	via := Via{
		Exchanges: []string{"events", "a b", "50%"}, Through: []string{"millpond.via", "level.0"},
		Older: map[string]string{"millpond.return.events": "events"},
	}
	for name, c := range map[string]struct {
		exchange   string
		header     any
		by, before string
	}{
		"at first":                {"events", nil, "events", ""},
		"at first, forged":        {"events", "through a%20b orders", "events", ""},
		"another exchange":        {"logs", "through events orders", "", ""},
		"the default exchange":    {"", "through events orders", "", ""},
		"back":                    {"millpond.via", ViaHeader("orders", "events"), "events", "through"},
		"back by a level":         {"level.0", "kept events", "events", "kept"},
		"names with spaces":       {"millpond.via", ViaHeader("my orders", "a b"), "a b", "through"},
		"a percent sign":          {"millpond.via", ViaHeader("orders", "50%"), "50%", "through"},
		"an exchange of no plan":  {"millpond.via", "through logs orders", "", ""},
		"a bad escape":            {"millpond.via", "through %zz orders", "", ""},
		"an older header":         {"millpond.via", "through orders", "", ""},
		"older":                   {"millpond.return.events", "through orders", "events", "through"},
		"an older level":          {"millpond.level.2.50ms.via", "owed events", "events", "owed"},
		"a level without Via":     {"millpond.level.2", "owed events", "", ""},
		"an older level's prefix": {"shop.level.2.via", "owed events", "", ""},
		"older, owed":             {"millpond.return.events", "owed", "events", "owed"},
		"no header":               {"millpond.via", nil, "", ""},
		"no text":                 {"millpond.via", int32(1), "", ""},
	} {
		by, before := via.brought(c.exchange, amqp.Table{"millpond-return": c.header})
		require.Equal(t, c.by+", "+c.before, by+", "+before, name)
	}
	require.NotEqual(t, ViaHeader("a b", "c"), ViaHeader("b", "c a"))
	require.NotEqual(t, ViaHeader("b c", "a"), ViaHeader("c", "a b"))
}

// A message that its queue keeps may still be copied, and then its delivery is acked. Once that is
// settled a Republish of its handler comes too late. Of the marshaler and the end of the process
// one ends the phase.
func TestTheLifeOfADelivery(t *testing.T) {
	t.Parallel()
	for last, end := range map[copied]phase{none: acked, stored: acked, open: acked, kept: rejected} {
		var l life
		l.enter(decoding)
		require.True(t, l.endDecoding(handling))
		require.False(t, l.endDecoding(left))
		require.True(t, l.know(kept))
		l.enter(deciding)
		require.Equal(t, kept, l.copy())
		require.True(t, l.know(last))
		require.Equal(t, end, l.settle())
		require.False(t, l.know(kept))
		require.Equal(t, end, l.phase())
		require.Equal(t, last, l.copy())
	}
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Given a message of watermill-amqp without the property message_id, which the guard judges before
// its marshaler sees it, then its lines have the UUID.
func TestALineNamesAMessageThatIsNotDecoded(t *testing.T) {
	t.Parallel()
	raw := amqp.Delivery{Headers: amqp.Table{wire.UUIDHeader: "u-7"}}
	d := fuzzedDelivery(t, testWaits(Via{}), raw)
	require.Equal(t, "u-7", d.logFields()["message_id"])
}
