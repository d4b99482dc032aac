package topology

import (
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
)

func TestDeadlineOfATimestampWindow(t *testing.T) {
	t.Parallel()
	arrived := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	hour, none := timestampWindow{time.Hour, time.Minute}, timestampWindow{}
	for name, c := range map[string]struct {
		window     timestampWindow
		expiration string
		timestamp  time.Time
		end        time.Time
		from       string
	}{
		"no expiration":              {hour, "", arrived, time.Time{}, ""},
		"no number":                  {hour, "soon", arrived, time.Time{}, ""},
		"negative":                   {hour, "-1", arrived, time.Time{}, ""},
		"zero expiration":            {hour, "0", arrived, arrived, "arrival"},
		"ten years at most":          {hour, "9223372036854775807", time.Time{}, arrived.Add(87600 * time.Hour), "arrival"},
		"at the arrival":             {hour, "1000", arrived, arrived.Add(time.Second), "timestamp"},
		"nothing counts":             {none, "1000", arrived, arrived.Add(time.Second), "arrival"},
		"at the edge of the past":    {hour, "7200000", arrived.Add(-time.Hour), arrived.Add(2 * time.Hour), "arrival"},
		"inside the edge":            {hour, "7200000", arrived.Add(-time.Hour + 1), arrived.Add(time.Hour + 1), "timestamp"},
		"at the edge of the future":  {hour, "1000", arrived.Add(time.Minute), arrived.Add(time.Second), "arrival"},
		"inside that edge":           {hour, "1000", arrived.Add(time.Minute - 1), arrived.Add(time.Minute + time.Second - 1), "timestamp"},
		"over at the arrival":        {hour, "1000", arrived.Add(-time.Second), arrived.Add(time.Second), "arrival"},
		"nearly over at the arrival": {hour, "1000", arrived.Add(-time.Second + 1), arrived.Add(1), "timestamp"},
		"the widest window there is": {timestampWindow{1<<63 - 1, 1<<63 - 1}, "1000", time.Unix(0, 0), arrived.Add(time.Second), "arrival"},
		"ahead in the widest one":    {timestampWindow{1<<63 - 1, 1<<63 - 1}, "1000", arrived.Add(time.Hour), arrived.Add(time.Hour + time.Second), "timestamp"},
		"no timestamp in the widest": {timestampWindow{1<<63 - 1, 1<<63 - 1}, "1000", time.Time{}, arrived.Add(time.Second), "arrival"},
		"zero, valid for ten years":  {timestampWindow{1<<63 - 1, 0}, "315360000000", time.Unix(0, 0), arrived.Add(87600 * time.Hour), "arrival"},
	} {
		end, from := c.window.deadline(&amqp.Delivery{Expiration: c.expiration, Timestamp: c.timestamp}, arrived)
		require.Equal(t, c.from, from, name)
		require.True(t, c.end.Equal(end), "%s: %v", name, end)
	}
}
