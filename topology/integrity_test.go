package topology_test

import (
	"sync"
	"testing"
	"time"

	"github.com/millpond-go/millpond/internal/testing/rig"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
)

// foreign is a message of a producer that is not Watermill.
func foreign() amqp.Publishing {
	at := time.Date(2026, 3, 1, 12, 30, 45, 0, time.UTC)
	return amqp.Publishing{
		Headers: amqp.Table{
			"text": "plain", "bool": true, "int64": int64(1) << 40, "float64": 0.25, "bytes": []byte{0, 1, 0xff},
			"time": at, "nil": nil, "table": amqp.Table{"deep": amqp.Table{"n": int64(7)}, "b": false},
			"array": []any{int64(1), "two", []any{true}}, "int16": int16(-3), "decimal": amqp.Decimal{Scale: 2, Value: 1234},
		},
		ContentType: "application/json", ContentEncoding: "utf-8", CorrelationId: "corr-1", MessageId: "id-1",
		Priority: 3, Type: "order.created", AppId: "shop", ReplyTo: "answers", Timestamp: at,
		DeliveryMode: amqp.Transient, Body: []byte(`{"order":1}`),
	}
}

// metadata is what the handler must see of it.
var foreignMetadata = map[string]string{
	"text": "plain", "bool": "true", "int64": "1099511627776", "float64": "0.25", "bytes": "AAH/",
	"time": "2026-03-01T12:30:45Z", "nil": "null", "table": `{"b":false,"deep":{"n":7}}`,
	"array": `[1,"two",[true]]`, "int16": "-3", "decimal": "12.34",
}

// requireSame asserts that got carries all that want does, type for type.
func requireSame(t testing.TB, want amqp.Publishing, got amqp.Delivery) {
	t.Helper()
	require.Equal(t, want.Body, got.Body)
	for key, value := range want.Headers {
		require.Contains(t, got.Headers, key)
		if at, isTime := value.(time.Time); isTime { // decoded in local time
			require.IsType(t, at, got.Headers[key])
			require.True(t, at.Equal(got.Headers[key].(time.Time)), "header %s", key)
			continue
		}
		require.Equal(t, value, got.Headers[key], "header %s", key)
	}
	require.Equal(t,
		[]any{want.ContentType, want.ContentEncoding, want.CorrelationId, want.MessageId, want.Priority, want.Type, want.AppId, want.ReplyTo, want.Timestamp.UTC()},
		[]any{got.ContentType, got.ContentEncoding, got.CorrelationId, got.MessageId, got.Priority, got.Type, got.AppId, got.ReplyTo, got.Timestamp.UTC()})
}

func TestForeignMessageSurvivesUnchanged(t *testing.T) {
	t.Parallel()
	cases := map[string]func() rig.Config{
		"classic main queue": func() rig.Config { return rig.Config{} },
		"quorum main queue":  func() rig.Config { return rig.Config{Configure: rig.QuorumQueue} },
		"classic waiting":    func() rig.Config { return rig.Config{Strategy: topology.PerQueue{Type: topology.Classic}} },
		"shared":             func() rig.Config { return rig.Config{Strategy: rig.Shared(t, topology.Quorum)} },
		"levels":             func() rig.Config { return rig.Config{Strategy: rig.Levels(t, topology.Quorum)} },
		"levels classic":     func() rig.Config { return rig.Config{Strategy: rig.Levels(t, topology.Classic)} },
	}
	for name, make := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			type seen struct {
				metadata message.Metadata
				payload  string
				raw      amqp.Delivery
				attempt  int
				key      string
			}
			var mu sync.Mutex
			var attempts []seen
			rc := make()
			rc.Policy = backoff.Constant{Interval: 50 * time.Millisecond, Retries: 2}
			rc.Handler = func(msg *message.Message) ([]*message.Message, error) {
				raw, ok := topology.Received(msg.Context())
				if !ok {
					t.Error("no delivery behind the message")
				}
				_, key, _ := middleware.Origin(msg.Context())
				mu.Lock()
				defer mu.Unlock()
				s := seen{message.Metadata{}, string(msg.Payload), raw, middleware.Attempt(msg.Context()), key}
				for k, v := range msg.Metadata {
					s.metadata[k] = v
				}
				attempts = append(attempts, s)
				// What a handler does to its message does not travel.
				msg.Payload[0] = 'X'
				msg.Payload = []byte("overwritten")
				for k := range msg.Metadata {
					msg.Metadata[k] = "overwritten"
				}
				msg.Metadata["new"] = "one"
				raw.Headers["bytes"].([]byte)[0] = 9
				return nil, rig.ErrFailed
			}
			r := rig.Start(t, rc)
			sent := foreign()
			r.Publish(sent)
			dead := r.DeadLetter()
			requireSame(t, sent, dead)
			require.Equal(t, amqp.Persistent, dead.DeliveryMode)
			require.NotContains(t, dead.Headers, "new")
			for _, key := range []string{"x-death", "x-acquired-count", header.Failures, header.Queue} {
				require.NotContains(t, dead.Headers, key)
			}
			require.Equal(t, "3", dead.Headers[header.DeadFailures])
			require.Equal(t, "handler", dead.Headers[header.DeadHandler])
			require.Equal(t, rig.ErrFailed.Error(), dead.Headers["reason_poisoned"])
			require.Equal(t, r.Queue, dead.Headers["topic_poisoned"])
			require.Equal(t, "handler", dead.Headers["handler_poisoned"])
			require.Equal(t, "topology.Subscriber", dead.Headers["subscriber_poisoned"])

			mu.Lock()
			defer mu.Unlock()
			require.Len(t, attempts, 3)
			for i, s := range attempts {
				require.Equal(t, i+1, s.attempt)
				require.Equal(t, r.Queue, s.key)
				require.Equal(t, string(sent.Body), s.payload)
				for key, text := range foreignMetadata {
					require.Equal(t, text, s.metadata[key], "attempt %d, metadata %s", i+1, key)
				}
				s.raw.Headers["bytes"] = sent.Headers["bytes"] // changed by the handler, in its own copy
				requireSame(t, sent, s.raw)
			}
		})
	}
}

// A redelivery on a quorum queue adds number headers, which watermill-amqp's
// marshaler cannot decode even without any retry (F1).
func TestRequeuedQuorumDeliveryIsDecoded(t *testing.T) {
	t.Parallel()
	url, queue := testbroker.URL(t), testbroker.Queue(t)
	ch := testbroker.Channel(t, url)
	_, err := ch.QueueDeclare(queue, true, false, false, false, amqp.Table{"x-queue-type": "quorum"})
	require.NoError(t, err)
	sent := foreign()
	rig.Publish(t, url, "", queue, sent)
	d, ok, err := ch.Get(queue, false)
	require.NoError(t, err)
	require.True(t, ok)
	require.NoError(t, d.Reject(true))

	var calls rig.Timeline
	rig.Start(t, rig.Config{
		URL: url, Queue: queue, Configure: rig.QuorumQueue,
		Policy: backoff.Constant{Interval: 50 * time.Millisecond, Retries: 2},
		Handler: func(msg *message.Message) ([]*message.Message, error) {
			if n := calls.Add(); n == 1 && msg.Metadata["x-delivery-count"] != "1" {
				t.Errorf("x-delivery-count is %q", msg.Metadata["x-delivery-count"])
			}
			return nil, rig.ErrFailed
		},
	})
	dead := rig.Take(t, url, queue+".dlq")
	requireSame(t, sent, dead)
	require.Equal(t, 3, calls.Count())
}

// What would steer or harm a copy is not republished: CC and BCC, a user id, an
// expiration (which would shorten the wait), x-death of the producer.
func TestSteeringPropertiesAreNotRepublished(t *testing.T) {
	t.Parallel()
	url := testbroker.URL(t)
	side := testbroker.Queue(t)
	_, err := testbroker.Channel(t, url).QueueDeclare(side, true, false, false, false, nil)
	require.NoError(t, err)

	var calls rig.Timeline
	r := rig.Start(t, rig.Config{
		URL:    url,
		Policy: backoff.Constant{Interval: 300 * time.Millisecond, Retries: 2},
		Handler: func(msg *message.Message) ([]*message.Message, error) {
			calls.Add()
			return nil, rig.ErrFailed
		},
	})
	r.Publish(amqp.Publishing{
		Headers:    amqp.Table{"CC": []any{side}, "x-death": []any{"malformed"}},
		UserId:     "guest",
		Expiration: "60000",
		Body:       []byte("steering"),
	})
	dead := rig.Take(t, url, r.Queue+".dlq")
	calls.RequireGaps(t, 300*time.Millisecond, 300*time.Millisecond)
	require.Empty(t, dead.UserId)
	require.Empty(t, dead.Expiration)
	require.NotContains(t, dead.Headers, "CC")
	require.NotContains(t, dead.Headers, "x-death")
	require.Equal(t, 1, testbroker.Depth(t, url, side), "CC counted once, when the producer published")
}

// A message with its own expiration is not retried past its deadline.
func TestOwnExpirationIsADeadline(t *testing.T) {
	t.Parallel()
	var calls rig.Timeline
	r := rig.Start(t, rig.Config{
		Policy: backoff.List{100 * time.Millisecond, 20 * time.Second},
		Handler: func(msg *message.Message) ([]*message.Message, error) {
			calls.Add()
			return nil, rig.ErrFailed
		},
	})
	r.Publish(amqp.Publishing{Expiration: "10000", Body: []byte("soon stale")})
	dead := r.DeadLetter()
	require.Equal(t, "deadline", dead.Headers[header.DeadReason])
	require.Equal(t, 2, calls.Count())
}
