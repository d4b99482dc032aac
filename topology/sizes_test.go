package topology_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/millpond-go/millpond/internal/testing/rig"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
)

// Headers of the message's own beside ours, up to what a frame can carry (F16).
// What leaves no room for the notes of a retry is dead-lettered at its first
// failure, in the end without a note and without the nonce. No connection is lost
// by it, and whoever reads the dead letter loses none; but the last 26 bytes of a
// frame are out of reach in a quorum queue (F25), so those wait in a classic one.
func TestOversizedHeadersAreDeadLettered(t *testing.T) {
	t.Parallel()
	// The payload of a header frame is 131064 bytes; 14 go before the properties,
	// 1 is the delivery mode, 4 the table, 9 the header itself.
	const most = 131064 - 14 - 1 - 4 - 9
	cases := map[string]struct {
		size   int
		reason any
		notes  bool // all that is needed to know where it comes from
		calls  int
		kind   topology.QueueType
	}{
		"room for a retry":      {100_000, "exhausted", true, 6, topology.Quorum},
		"room for some notes":   {126_950, "oversized", true, 1, topology.Quorum},
		"less":                  {130_000, "oversized", true, 1, topology.Quorum},
		"a published 130850":    {130_850, "oversized", false, 1, topology.Quorum},
		"room for the reason":   {most - 35 - 64, "oversized", false, 1, topology.Classic},
		"no room for a note":    {most - 20, nil, false, 1, topology.Classic},
		"full to the last byte": {most, nil, false, 1, topology.Classic},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var calls rig.Timeline
			r := rig.Start(t, rig.Config{
				Policy:   backoff.Constant{Interval: 10 * time.Millisecond, Retries: 5},
				Strategy: topology.PerQueue{Type: c.kind},
				Handler: func(msg *message.Message) ([]*message.Message, error) {
					calls.Add()
					return nil, rig.ErrFailed
				},
			})
			sent := amqp.Publishing{DeliveryMode: amqp.Persistent, Headers: amqp.Table{"big": strings.Repeat("x", c.size)}, Body: []byte("wide")}
			r.Publish(sent)
			dead := r.DeadLetter()
			require.Len(t, dead.Headers["big"], c.size)
			require.Equal(t, "wide", string(dead.Body))
			require.Equal(t, c.reason, dead.Headers[header.DeadReason])
			if c.notes {
				require.Equal(t, r.Queue, dead.Headers[header.DeadQueue])
				require.Equal(t, fmt.Sprint(c.calls), dead.Headers[header.DeadFailures])
			}
			require.Equal(t, c.calls, calls.Count())
			require.NotContains(t, r.Logs.Text(), "lost, reconnecting")
			require.NotContains(t, r.Logs.Text(), "holding it")

			r.Publish(amqp.Publishing{Body: []byte("next")})
			r.DeadLetter()
			require.Equal(t, 1, strings.Count(r.Logs.Text(), "Consuming"))
		})
	}
}

// A thousand attempts: the history keeps the latest within its bound, the counts
// are true, and the dead letter can be read.
func TestHistoryOfAThousandAttempts(t *testing.T) {
	t.Parallel()
	const attempts = 1000
	var calls rig.Timeline
	r := rig.Start(t, rig.Config{
		Policy: backoff.Constant{Interval: time.Millisecond, Retries: attempts - 1},
		Handler: func(msg *message.Message) ([]*message.Message, error) {
			return nil, fmt.Errorf("failure %d: %s", calls.Add(), strings.Repeat("é", 300))
		},
	})
	r.Publish(amqp.Publishing{Body: []byte("patient")})
	dead := r.DeadLetter()
	require.Equal(t, attempts, calls.Count())
	require.Equal(t, "1000", dead.Headers[header.DeadFailures])
	require.Equal(t, "exhausted", dead.Headers[header.DeadReason])
	history, _ := dead.Headers[header.DeadHistory].(string)
	require.LessOrEqual(t, len(history), 16<<10)
	past := header.Parse("", func(key string) (string, bool) {
		text, ok := dead.Headers[key].(string)
		return text, ok
	}).History
	require.NotEmpty(t, past)
	for i, entry := range past {
		require.Equal(t, attempts-len(past)+i+1, entry.Attempt)
		require.Contains(t, entry.Error, fmt.Sprintf("failure %d:", entry.Attempt))
	}
	require.NotContains(t, r.Logs.Text(), "lost, reconnecting")
}
