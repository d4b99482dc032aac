package topology_test

import (
	"sync"
	"testing"
	"time"

	"github.com/millpond-go/millpond/internal/testing/rig"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
)

// stamped is a message with a timestamp and an expiration.
type stamped struct {
	timestamp  time.Time
	expiration string
	from       string // what the expiration is counted from
}

// handleStamped fails every message twice and returns the dead letters by message id,
// all of which are given up because the next retry would come after the deadline.
func handleStamped(t *testing.T, messages map[string]stamped, options ...topology.SubscriberOption) map[string]amqp.Delivery {
	t.Helper()
	url := testbroker.URL(t)
	var mu sync.Mutex
	attempts := map[string]int{}
	r := rig.Start(t, rig.Config{
		URL: url, Policy: backoff.List{100 * time.Millisecond, 240 * time.Hour}, SubscriberOptions: options,
		Handler: func(msg *message.Message) ([]*message.Message, error) {
			raw, _ := topology.Received(msg.Context())
			mu.Lock()
			defer mu.Unlock()
			attempts[raw.MessageId]++
			return nil, rig.ErrFailed
		},
	})
	for id, m := range messages {
		r.Publish(amqp.Publishing{MessageId: id, Timestamp: m.timestamp, Expiration: m.expiration})
	}
	dead := map[string]amqp.Delivery{}
	for range messages {
		d := rig.Take(t, url, r.Queue+".dlq")
		dead[d.MessageId] = d
	}
	mu.Lock()
	defer mu.Unlock()
	for id := range messages {
		require.Equal(t, 2, attempts[id], "attempts of %q: it was given up for %v", id, dead[id].Headers[header.DeadReason])
		require.Equal(t, "deadline", dead[id].Headers[header.DeadReason], id)
	}
	return dead
}

// requireCounted asserts what the dead letters say of their deadlines. Those that are
// counted from their arrival came after began.
func requireCounted(t *testing.T, messages map[string]stamped, dead map[string]amqp.Delivery, began time.Time) {
	t.Helper()
	for id, m := range messages {
		require.Equal(t, m.from, dead[id].Headers["millpond-dead-deadline-from"], id)
		text, _ := dead[id].Headers["millpond-dead-deadline"].(string)
		end, err := time.Parse(time.RFC3339Nano, text)
		require.NoError(t, err, id)
		valid, err := time.ParseDuration(m.expiration + "ms")
		require.NoError(t, err)
		if m.from == "timestamp" {
			require.True(t, m.timestamp.Add(valid).Equal(end), "%s: %v", id, end)
			continue
		}
		require.False(t, end.Before(began.Add(valid)), "%s: %v", id, end)
		require.WithinDuration(t, began.Add(valid), end, rig.Ceiling, id)
	}
}

// A timestamp that is not the time of publishing neither ends a message at its first
// failure nor keeps it alive beyond its expiration.
func TestATimestampThatIsNotThatOfPublishingDecidesNothing(t *testing.T) {
	t.Parallel()
	began := time.Now()
	now := began.Truncate(time.Second)
	messages := map[string]stamped{
		"no timestamp":                    {time.Time{}, "600000", "arrival"},
		"just now":                        {now, "600000", "timestamp"},
		"an hour old, valid for 10 min":   {now.Add(-time.Hour), "600000", "arrival"},
		"an hour old, valid for two":      {now.Add(-time.Hour), "7200000", "timestamp"},
		"a day and an hour, valid for 3":  {now.Add(-25 * time.Hour), "259200000", "arrival"},
		"zero":                            {time.Unix(0, 0), "600000", "arrival"},
		"30 s ahead, a clock that is off": {now.Add(30 * time.Second), "600000", "timestamp"},
		"an hour ahead":                   {now.Add(time.Hour), "600000", "arrival"},
		"milliseconds for seconds":        {time.Unix(now.UnixMilli(), 0), "600000", "arrival"},
		"before all time":                 {time.Unix(-1<<62, 0), "600000", "arrival"},
		"after all time":                  {time.Unix(1<<62, 0), "600000", "arrival"},
	}
	requireCounted(t, messages, handleStamped(t, messages), began)
}

func TestTimestampWindowIsWhatTheOptionSays(t *testing.T) {
	t.Parallel()
	t.Run("none counts", func(t *testing.T) {
		t.Parallel()
		began := time.Now()
		messages := map[string]stamped{
			"just now":      {began.Truncate(time.Second), "600000", "arrival"},
			"a minute old":  {began.Add(-time.Minute).Truncate(time.Second), "600000", "arrival"},
			"a minute late": {began.Add(time.Minute).Truncate(time.Second), "600000", "arrival"},
		}
		requireCounted(t, messages, handleStamped(t, messages, topology.WithTimestampWindow(0, 0)), began)
	})
	t.Run("wide", func(t *testing.T) {
		t.Parallel()
		began := time.Now()
		messages := map[string]stamped{
			"a day and an hour, valid for 3": {began.Add(-25 * time.Hour).Truncate(time.Second), "259200000", "timestamp"},
			"an hour old, valid for 10 min":  {began.Add(-time.Hour).Truncate(time.Second), "600000", "arrival"},
			"an hour ahead":                  {began.Add(time.Hour).Truncate(time.Second), "600000", "timestamp"},
			"zero":                           {time.Unix(0, 0), "600000", "arrival"},
		}
		requireCounted(t, messages, handleStamped(t, messages, topology.WithTimestampWindow(72*time.Hour, 2*time.Hour)), began)
	})
	t.Run("negative", func(t *testing.T) {
		t.Parallel()
		url := testbroker.URL(t)
		client, err := topology.Open(t.Context(), rig.ConnectionConfig(url), topology.PerQueue{})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, client.Close()) })
		_, err = client.NewSubscriber(rig.QueueConfig(url), topology.WithTimestampWindow(-1, 0))
		require.ErrorContains(t, err, "WithTimestampWindow: -1ns and 0s must not be negative")
	})
}

// A note of a version that did not say what the deadline is counted from is read as
// before, and nothing is invented about it.
func TestDeadlineOfAnOlderVersionIsRead(t *testing.T) {
	t.Parallel()
	r := rig.Start(t, rig.Config{Policy: backoff.List{100 * time.Millisecond, time.Hour}, Handler: func(*message.Message) ([]*message.Message, error) {
		return nil, rig.ErrFailed
	}})
	end := time.Now().Add(10 * time.Minute).UTC().Format(time.RFC3339Nano)
	r.Publish(notes(r.Queue, "millpond-failures", "1", "millpond-deadline", end))
	dead := r.DeadLetter()
	require.Equal(t, "deadline", dead.Headers[header.DeadReason])
	require.Equal(t, end, dead.Headers["millpond-dead-deadline"])
	require.NotContains(t, dead.Headers, "millpond-dead-deadline-from")
}

// The Publisher knows when it publishes a delayed message, so its timestamp says nothing.
func TestExpirationOfADelayedMessageCountsFromItsPublish(t *testing.T) {
	t.Parallel()
	url := testbroker.URL(t)
	arrivals := make(chan rig.Arrival, 1)
	r := rig.Start(t, rig.Config{URL: url, Policy: backoff.List{time.Second}, Handler: rig.Collect(arrivals)})
	cfg := rig.QueueConfig(url)
	cfg.Marshaler = wamqp.DefaultMarshaler{PostprocessPublishing: func(p amqp.Publishing) amqp.Publishing {
		p.Expiration, p.Timestamp = "600000", time.Now().Add(-time.Hour)
		return p
	}}
	pub, err := r.Client.NewPublisher(cfg)
	require.NoError(t, err)
	began := time.Now()
	require.NoError(t, pub.Publish(r.Queue, rig.DelayedBy(time.Second)))
	raw, _ := topology.Received(rig.Await(t, arrivals).Msg.Context())
	require.Equal(t, "publish", raw.Headers["millpond-deadline-from"])
	end, err := time.Parse(time.RFC3339Nano, raw.Headers["millpond-deadline"].(string))
	require.NoError(t, err)
	require.WithinDuration(t, began.Add(10*time.Minute), end, rig.Ceiling)
}
