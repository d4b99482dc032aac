package consumer

import (
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology/wait"
)

func TestDeadlineOfATimestampWindow(t *testing.T) {
	t.Parallel()
	arrived := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	hour, none := TimestampWindow{time.Hour, time.Minute}, TimestampWindow{}
	for name, c := range map[string]struct {
		window     TimestampWindow
		expiration string
		timestamp  time.Time
		end        time.Time
		from       string
	}{
		"no expiration":   {hour, "", arrived, time.Time{}, ""},
		"no number":       {hour, "soon", arrived, time.Time{}, ""},
		"negative":        {hour, "-1", arrived, time.Time{}, ""},
		"zero expiration": {hour, "0", arrived, arrived, "arrival"},
		"ten years at most": {
			hour, "9223372036854775807",
			time.Time{},
			arrived.Add(87600 * time.Hour), "arrival",
		},
		"at the arrival": {hour, "1000", arrived, arrived.Add(time.Second), "timestamp"},
		"nothing counts": {none, "1000", arrived, arrived.Add(time.Second), "arrival"},
		"at the edge of the past": {
			hour, "7200000", arrived.Add(-time.Hour),
			arrived.Add(2 * time.Hour), "arrival",
		},
		"inside the edge": {
			hour, "7200000", arrived.Add(-time.Hour + 1),
			arrived.Add(time.Hour + 1), "timestamp",
		},
		"at the edge of the future": {
			hour, "1000", arrived.Add(time.Minute), arrived.Add(time.Second),
			"arrival",
		},
		"inside that edge": {
			hour, "1000", arrived.Add(time.Minute - 1),
			arrived.Add(time.Minute + time.Second - 1), "timestamp",
		},
		"over at the arrival": {
			hour, "1000", arrived.Add(-time.Second), arrived.Add(time.Second),
			"arrival",
		},
		"nearly over at the arrival": {
			hour, "1000", arrived.Add(-time.Second + 1), arrived.Add(1),
			"timestamp",
		},
		"the widest window there is": {
			TimestampWindow{1<<63 - 1, 1<<63 - 1},
			"1000", time.Unix(0, 0),
			arrived.Add(time.Second), "arrival",
		},
		"ahead in the widest one": {
			TimestampWindow{1<<63 - 1, 1<<63 - 1},
			"1000",
			arrived.Add(time.Hour), arrived.Add(time.Hour + time.Second), "timestamp",
		},
		"no timestamp in the widest": {
			TimestampWindow{1<<63 - 1, 1<<63 - 1},
			"1000",
			time.Time{},
			arrived.Add(time.Second), "arrival",
		},
		"zero, valid for ten years": {
			TimestampWindow{1<<63 - 1, 0},
			"315360000000", time.Unix(0, 0),
			arrived.Add(87600 * time.Hour), "arrival",
		},
	} {
		end, from := c.window.deadline(&amqp.Delivery{Expiration: c.expiration, Timestamp: c.timestamp},
			arrived)
		require.Equal(t, c.from, from, name)
		require.True(t, c.end.Equal(end), "%s: %v", name, end)
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
