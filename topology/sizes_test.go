package topology_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

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
			var calls timeline
			r := newRig(t, rigConfig{
				policy:   backoff.Constant{Interval: 10 * time.Millisecond, Retries: 5},
				strategy: topology.PerQueue{Type: c.kind},
				handler: func(msg *message.Message) ([]*message.Message, error) {
					calls.add()
					return nil, errFailed
				},
			})
			sent := amqp.Publishing{DeliveryMode: amqp.Persistent, Headers: amqp.Table{"big": strings.Repeat("x", c.size)}, Body: []byte("wide")}
			r.publish(sent)
			dead := take(t, r.url, r.queue+".dlq")
			require.Len(t, dead.Headers["big"], c.size)
			require.Equal(t, "wide", string(dead.Body))
			require.Equal(t, c.reason, dead.Headers[header.DeadReason])
			if c.notes {
				require.Equal(t, r.queue, dead.Headers[header.DeadQueue])
				require.Equal(t, fmt.Sprint(c.calls), dead.Headers[header.DeadFailures])
			}
			require.Equal(t, c.calls, calls.count())
			require.NotContains(t, r.logs.text(), "lost, reconnecting")
			require.NotContains(t, r.logs.text(), "holding it")

			r.publish(amqp.Publishing{Body: []byte("next")})
			take(t, r.url, r.queue+".dlq")
			require.Equal(t, 1, strings.Count(r.logs.text(), "Consuming"))
		})
	}
}

// A thousand attempts: the history keeps the latest within its bound, the counts
// are true, and the dead letter can be read.
func TestHistoryOfAThousandAttempts(t *testing.T) {
	t.Parallel()
	const attempts = 1000
	var calls timeline
	r := newRig(t, rigConfig{
		policy: backoff.Constant{Interval: time.Millisecond, Retries: attempts - 1},
		handler: func(msg *message.Message) ([]*message.Message, error) {
			return nil, fmt.Errorf("failure %d: %s", calls.add(), strings.Repeat("é", 300))
		},
	})
	r.publish(amqp.Publishing{Body: []byte("patient")})
	dead := take(t, r.url, r.queue+".dlq")
	require.Equal(t, attempts, calls.count())
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
	require.NotContains(t, r.logs.text(), "lost, reconnecting")
}
