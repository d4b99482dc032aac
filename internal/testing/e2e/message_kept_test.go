package e2e_test

import (
	"encoding/binary"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/internal/testing/frame"
	"github.com/millpond-go/millpond/internal/testing/peer"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
)

// foreign returns a message of a producer other than Watermill, with headers of many types.
func foreign() amqp.Publishing {
	at := time.Date(2026, 3, 1, 12, 30, 45, 0, time.UTC)
	return amqp.Publishing{
		Headers: amqp.Table{
			"text": "plain", "bool": true, "int64": int64(1) << 40, "float64": 0.25,
			"bytes": []byte{0, 1, 0xff}, "time": at, "nil": nil,
			"table": amqp.Table{"deep": amqp.Table{"n": int64(7)}, "b": false},
			"array": []any{int64(1), "two", []any{true}}, "int16": int16(-3),
			"decimal": amqp.Decimal{Scale: 2, Value: 1234},
		},
		ContentType: "application/json", ContentEncoding: "utf-8", CorrelationId: "corr-1",
		MessageId: "id-1", Priority: 3, Type: "order.created", AppId: "shop", ReplyTo: "answers",
		Timestamp: at, DeliveryMode: amqp.Transient, Body: []byte(`{"order":1}`),
	}
}

// foreignMetadata is the metadata that a handler sees of a foreign message.
var foreignMetadata = map[string]string{
	"text": "plain", "bool": "true", "int64": "1099511627776", "float64": "0.25", "bytes": "AAH/",
	"time": "2026-03-01T12:30:45Z", "nil": "null", "table": `{"b":false,"deep":{"n":7}}`,
	"array": `[1,"two",[true]]`, "int16": "-3", "decimal": "12.34",
}

// requireSame asserts that a delivery has the body, headers and properties of a message, type
// for type. It may have more headers.
func requireSame(t testing.TB, want amqp.Publishing, got amqp.Delivery) {
	t.Helper()
	require.Equal(t, want.Body, got.Body)
	for key, value := range want.Headers {
		require.Contains(t, got.Headers, key)
		if at, isTime := value.(time.Time); isTime { // It is decoded in local time.
			require.IsType(t, at, got.Headers[key])
			require.True(t, at.Equal(got.Headers[key].(time.Time)), "header %s", key)
			continue
		}
		require.Equal(t, value, got.Headers[key], "header %s", key)
	}
	require.Equal(t, amqp.Publishing{
		ContentType: want.ContentType, ContentEncoding: want.ContentEncoding,
		CorrelationId: want.CorrelationId, MessageId: want.MessageId, Priority: want.Priority,
		Type: want.Type, AppId: want.AppId, ReplyTo: want.ReplyTo, Timestamp: want.Timestamp.UTC(),
	}, amqp.Publishing{
		ContentType: got.ContentType, ContentEncoding: got.ContentEncoding,
		CorrelationId: got.CorrelationId, MessageId: got.MessageId, Priority: got.Priority,
		Type: got.Type, AppId: got.AppId, ReplyTo: got.ReplyTo, Timestamp: got.Timestamp.UTC(),
	})
}

// Given a foreign message and a handler that overwrites everything of it, then each attempt and
// the dead letter have the message as it was published. The first delivery is a redelivery: on a
// quorum queue it has number headers, which the marshaler of watermill-amqp cannot decode (F1).
func TestForeignMessageSurvivesUnchanged(t *testing.T) {
	t.Parallel()
	rig.Each(t, map[string]func(*wamqp.Config){
		"classic": func(*wamqp.Config) {}, "quorum": rig.QuorumQueue,
	}, func(t *testing.T, configure func(*wamqp.Config)) {
		type seen struct {
			metadata message.Metadata
			payload  string
			raw      amqp.Delivery
			attempt  int
			key      string
		}
		var mu sync.Mutex
		var attempts []seen
		url, queue, sent := testbroker.URL(t), testbroker.Queue(t), foreign()
		cfg := rig.QueueConfig(url)
		configure(&cfg)
		rig.DeclareQueue(t, url, queue, cfg.Queue.Arguments)
		rig.Publish(t, url, "", queue, sent)
		d, ok, err := testbroker.Channel(t, url).Get(queue, false)
		require.NoError(t, err)
		require.True(t, ok)
		require.NoError(t, d.Reject(true))
		r := rig.Start(t, rig.Config{
			URL: url, Queue: queue, Configure: configure,
			Policy: backoff.Constant{Interval: 50 * time.Millisecond, Retries: 2},
			Handle: func(msg *message.Message) error {
				raw, ok := topology.Received(msg.Context())
				if !ok {
					t.Error("no delivery behind the message")
				}
				key := middleware.StateOf(msg.Context()).OriginRoutingKey
				mu.Lock()
				defer mu.Unlock()
				attempts = append(attempts, seen{
					maps.Clone(msg.Metadata), string(msg.Payload), raw, middleware.Attempt(msg.Context()), key,
				})
				msg.Payload[0] = 'X'
				msg.Payload = []byte("overwritten")
				for k := range msg.Metadata {
					msg.Metadata[k] = "overwritten"
				}
				msg.Metadata["new"] = "one"
				raw.Headers["bytes"].([]byte)[0] = 9
				return rig.ErrFailed
			},
		})
		dead := r.DeadLetter()
		requireSame(t, sent, dead)
		require.Equal(t, amqp.Persistent, dead.DeliveryMode)
		for _, key := range []string{
			"new", "x-death", "x-acquired-count", keys.Failures, header.Queue,
		} {
			require.NotContains(t, dead.Headers, key)
		}
		for key, want := range map[string]any{
			header.DeadFailures: "3", header.DeadHandler: "handler",
			"reason_poisoned": rig.ErrFailed.Error(), "topic_poisoned": r.Queue,
			"handler_poisoned": "handler", "subscriber_poisoned": "topology.Subscriber",
		} {
			require.Equal(t, want, dead.Headers[key], key)
		}

		mu.Lock()
		defer mu.Unlock()
		require.Len(t, attempts, 3)
		if cfg.Queue.Arguments != nil {
			require.Equal(t, "1", attempts[0].metadata["x-delivery-count"])
		}
		for i, s := range attempts {
			require.Equal(t, i+1, s.attempt)
			require.Equal(t, r.Queue, s.key)
			require.Equal(t, string(sent.Body), s.payload)
			for key, text := range foreignMetadata {
				require.Equal(t, text, s.metadata[key], "attempt %d, metadata %s", i+1, key)
			}
			s.raw.Headers["bytes"] = sent.Headers["bytes"] // The handler changed its own copy.
			requireSame(t, sent, s.raw)
		}
	})
}

// Given a message that the marshaler refuses, then the message is dead-lettered unchanged, and
// the next one is handled (C7).
func TestUndecodableIsDeadLettered(t *testing.T) {
	t.Parallel()
	rig.Virtually(t, func(t *testing.T, broker *peer.Server) {
		handled := make(chan string, 10)
		r := rig.Start(t, rig.Config{
			URL: broker.URL(), Queue: "orders", Keep: true, Policy: backoff.List{time.Second},
			Configure: rig.Picky,
			Handle:    func(msg *message.Message) error { handled <- string(msg.Payload); return nil },
		})
		refused := []string{"refuse", "loud", "panic", "nothing"}
		of := func(body string) amqp.Publishing {
			msg := foreign()
			msg.Body = []byte(body)
			return msg
		}
		for _, body := range append(refused, "fine") {
			r.Publish(of(body))
		}
		require.Equal(t, "fine", <-handled)
		for _, body := range refused {
			dead := r.DeadLetter()
			requireSame(t, of(body), dead)
			rig.RequireDead(t, dead, "undecodable", "0")
		}
		require.Equal(t, 1, r.Logs.Said("marshaler panicked"))
		require.Less(t, len(r.Logs.Text()), 10_000, "errors are cut")
	})
}

// unreadable returns header tables that a broker takes and that end the connection of
// amqp091-go 1.16 (F26). They are bytes because a client would write only some of them.
func unreadable() map[string][]byte {
	deep := func(depth int) []byte {
		b := []byte{'V'}
		for range depth {
			b = append(binary.BigEndian.AppendUint32([]byte{'A'}, uint32(len(b))), b...)
		}
		return append([]byte{1, 'k'}, b...)
	}
	var many []byte
	for i := range 10_000 {
		many = append(many, []byte(fmt.Sprintf("\x04%04xV", i))...)
	}
	list := binary.BigEndian.AppendUint32([]byte("\x04listA"), 8193)
	large := binary.BigEndian.AppendUint32(append(deep(40), "\x03bigS"...), 130_000)
	return map[string][]byte{
		"nested 33 deep":       deep(33),
		"nested 1000 deep":     deep(1000),
		"10000 headers":        many,
		"a list of 8193":       append(list, strings.Repeat("V", 8193)...),
		"an unsigned long":     {1, 'k', 'L', 0xff, 0, 0, 0, 0, 0, 0, 1},
		"headers of 130 KiB":   append(large, make([]byte, 130_000)...),
		"forged by a producer": append([]byte("\x13"+keys.Unreadable+"x"), 0, 0, 0, 1, 'a'),
	}
}

// forge publishes a message whose header table has these bytes, which no client would write.
func forge(t testing.TB, url, queue string, table []byte) {
	t.Helper()
	uri, err := amqp.ParseURI(url)
	require.NoError(t, err)
	conn, err := net.Dial("tcp4", fmt.Sprint("127.0.0.1:", uri.Port))
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	require.NoError(t, conn.SetDeadline(time.Now().Add(rig.Patience)))
	send := func(frames ...[]byte) {
		_, err := conn.Write(slices.Concat(frames...))
		require.NoError(t, err)
	}
	await := func(want frame.Method) []byte {
		f, err := frame.Read(conn)
		require.NoError(t, err)
		require.Equal(t, want, f.Method(), "%x", []byte(f))
		return f.Args()
	}
	send([]byte("AMQP\x00\x00\x09\x01"))
	await(frame.ConnectionStart)
	send(frame.NewMethod(0, frame.ConnectionStartOk, []byte{0, 0, 0, 0}, frame.Short("PLAIN"),
		frame.LongString("\x00guest\x00guest"), frame.Short("en_US")))
	tune := await(frame.ConnectionTune)
	send(frame.NewMethod(0, frame.ConnectionTuneOk, tune[:6], []byte{0, 0}), // no heartbeats
		frame.NewMethod(0, frame.ConnectionOpen, frame.Short("/"), frame.Short(""), []byte{0}),
		frame.NewMethod(1, frame.ChannelOpen, frame.Short("")),
		frame.NewMethod(1, frame.ConfirmSelect, []byte{0}))
	await(frame.ConnectionOpenOk)
	await(frame.ChannelOpenOk)
	await(frame.ConfirmSelectOk)
	const class, flags, body = "\x00\x3c\x00\x00", "\x20\x00", "forged" // no weight; headers alone
	send(frame.NewMethod(1, frame.BasicPublish, []byte{0, 0}, frame.Short(""), frame.Short(queue),
		[]byte{0}),
		frame.New(frame.KindHeader, 1, slices.Concat([]byte(class), frame.Long(uint64(len(body))),
			[]byte(flags), frame.LongString(string(table)))),
		frame.New(frame.KindBody, 1, []byte(body)))
	await(frame.BasicAck)
}

// Such a message would end the connection of every consumer, again and again, and the messages
// behind it would never be handled. It is dead-lettered with its headers as bytes, so that any
// client can read the dead letter.
func TestHeadersThatTheClientLibraryCannotRead(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"classic", "quorum"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			var normal, readable rig.Timeline
			r := rig.Start(t, rig.Config{
				Policy: backoff.List{100 * time.Millisecond},
				Configure: func(cfg *wamqp.Config) {
					rig.Prefetch(10)(cfg)
					cfg.Queue.Arguments = amqp.Table{"x-queue-type": kind}
				},
				Handle: func(msg *message.Message) error {
					if string(msg.Payload) == "normal" {
						normal.Add()
					} else {
						readable.Add()
					}
					return nil
				},
			})
			cases := unreadable()
			for _, table := range cases {
				forge(t, r.URL, r.Queue, table)
				r.Publish(amqp.Publishing{Body: []byte("normal")})
			}
			ch := testbroker.Channel(t, r.URL)
			dead := map[string]amqp.Delivery{}
			rig.WaitFor(t, "all to be handled or dead", func() bool {
				d, ok, err := ch.Get(r.Queue+".dlq", true)
				require.NoError(t, err)
				if raw, _ := d.Headers[keys.Unreadable].([]byte); ok {
					dead[string(raw)] = d
				}
				return normal.Count() == len(cases) && len(dead)+readable.Count() == len(cases)
			})
			require.LessOrEqual(t, readable.Count(), 1)
			for name, table := range cases {
				want := string(table[:min(len(table), 120<<10)])
				switch name {
				case "an unsigned long": // From 4.0 on the broker makes it a long.
					if readable.Count() == 1 {
						continue
					}
				case "forged by a producer":
					want = "a"
				case "headers of 130 KiB": // 4.0 sends them in another order.
					for raw := range dead {
						if len(raw) == 120<<10 {
							want = raw
						}
					}
				}
				d, there := dead[want]
				require.True(t, there, name)
				require.Equal(t, "forged", string(d.Body), name)
				require.Equal(t, string(header.ReasonUndecodable), d.Headers[header.DeadReason], name)
			}
			r.RequireOneConnection()
		})
	}
}

// Given a hundred waiting messages without a priority, when messages with priorities keep coming
// into the same wait queues, then the hundred are on time. RabbitMQ 4.0 let two of priority 9
// return for each of the others, and none while the first of them had time left (F32). Every
// attempt and the dead letter have the priority of the first delivery.
func TestHighPrioritiesHoldUpNoOthersThatWait(t *testing.T) {
	t.Parallel()
	const normal, delay = 100, 2 * time.Second
	const limit = delay + rig.Ceiling
	priorities := []uint8{9, 255, 5, 9, 4, 1}
	rig.Each(t, map[string]topology.Strategy{ // each type of wait queues, which alone treat priorities
		"quorum": topology.PerQueue{}, "classic": topology.PerQueue{Type: topology.Classic},
	}, func(t *testing.T, strategy topology.Strategy) {
		var mu sync.Mutex
		failed, back, late := map[string]time.Time{}, 0, []time.Duration{}
		r := rig.Start(t, rig.Config{
			Strategy: strategy, Policy: backoff.List{delay}, SubscriberOptions: rig.InFlight(16),
			Handle: func(msg *message.Message) error {
				raw, _ := topology.Received(msg.Context())
				mu.Lock()
				defer mu.Unlock()
				if got := fmt.Sprint(raw.Priority); got != msg.Metadata.Get("want") {
					t.Errorf("message %s has priority %s", raw.Body, got)
				}
				if middleware.Attempt(msg.Context()) == 1 {
					failed[string(raw.Body)] = time.Now()
					return rig.ErrFailed
				}
				if raw.Priority > 0 {
					return rig.ErrFailed // It becomes a dead letter.
				}
				back++
				if waited := time.Since(failed[string(raw.Body)]); waited > limit {
					late = append(late, waited)
				}
				return nil
			},
		})
		of := func(priority uint8, body string) amqp.Publishing {
			headers := amqp.Table{"want": fmt.Sprint(priority)}
			return amqp.Publishing{Priority: priority, Headers: headers, Body: []byte(body)}
		}
		var normals []amqp.Publishing
		for i := range normal {
			normals = append(normals, of(0, strconv.Itoa(i)))
		}
		rig.Post(t, r.URL, r.Queue, normals...)
		// More messages come until all are back, one of each priority at least, but not after it would
		// be too late: behind the last one, the others return in the end.
		began, high := time.Now(), 0
		rig.WaitFor(t, "all to return", func() bool {
			passed := time.Since(began)
			if due := int(passed / (100 * time.Millisecond)); high < due && passed < 2*limit {
				high++
				r.Publish(of(priorities[high%len(priorities)], fmt.Sprint("high ", high)))
			}
			mu.Lock()
			defer mu.Unlock()
			return back == normal && high >= len(priorities)
		})
		for range priorities {
			dead := r.DeadLetter()
			require.Equal(t, dead.Headers["want"], fmt.Sprint(dead.Priority))
			require.NotContains(t, dead.Headers, keys.Priority)
		}
		require.LessOrEqual(t, r.Logs.Said("A message of a priority above 4 waits with priority 4"), 1)
		mu.Lock()
		defer mu.Unlock()
		require.Empty(t, late, "%d of %d came back later than after %v, while %d with priorities came",
			len(late), normal, limit, high)
	})
}
