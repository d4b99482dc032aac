package topology

import (
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/middleware/header"
)

// The note of a priority counts where the other notes do, and for the siblings of a
// queue that retries through an exchange. One that is forged is bounded.
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
		"of a sibling, returned":    {"mail", "millpond.return.events", "9", 9},
		"of a sibling, not by us":   {"mail", "events", "9", property},
		"of no queue, but returned": {"", "millpond.return.events", "9", property},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			headers := amqp.Table{header.Priority: c.note}
			if c.queue != "" {
				headers[header.Queue] = c.queue
			}
			d := fuzzedDelivery(t, PerQueue{Via: "events"}, amqp.Delivery{Headers: headers, Exchange: c.exchange, Priority: property})
			require.Equal(t, c.want, d.raw.Priority)
			if c.queue != "orders" {
				require.NotContains(t, d.raw.Headers, header.Priority)
			}
		})
	}
}

// Only quorum queues sort what waits, and only above priority 4.
func TestWhereAPriorityIsLowered(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		strategy Strategy
		lowered  bool
	}{
		"per queue":           {PerQueue{}, true},
		"per queue, classic":  {PerQueue{Type: Classic}, false},
		"per attempt":         {PerAttempt{}, true},
		"shared":              {Shared{}, true},
		"shared, classic":     {Shared{Type: Classic}, false},
		"levels":              {Levels{}, true},
		"levels, classic":     {Levels{Type: Classic}, false},
		"through an exchange": {PerQueue{Via: "events"}, true},
	} {
		plan, err := c.strategy.Plan("orders", nil)
		require.NoError(t, err, name)
		for priority, above := range map[uint8]bool{0: false, 1: false, 4: false, 5: true, 9: true, 255: true} {
			require.Equal(t, c.lowered && above, plan.lowersPriority(priority), "%s, priority %d", name, priority)
		}
	}
}
