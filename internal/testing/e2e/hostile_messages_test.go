package e2e_test

import (
	"errors"
	"fmt"
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
	"github.com/millpond-go/millpond/internal/testing/peer"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
)

// hostile is a message of a producer, and its fate with one retry if every attempt fails.
type hostile struct {
	msg      amqp.Publishing
	attempts int
	reason   string            // of the dead letter; "" means exhausted
	dead     map[string]string // headers that the dead letter must have
}

// withHeaders returns a message with these headers, given as name and value in turn.
func withHeaders(pairs ...any) amqp.Publishing {
	headers := amqp.Table{}
	for i := 0; i < len(pairs); i += 2 {
		headers[pairs[i].(string)] = pairs[i+1]
	}
	return amqp.Publishing{Headers: headers}
}

// forged returns a message with headers as if the queue had written them.
func forged(queue string, pairs ...any) amqp.Publishing {
	return withHeaders(append(pairs, header.Queue, queue)...)
}

// twice expects two attempts, and then a dead letter with the reason exhausted.
func twice(msg amqp.Publishing) hostile { return hostile{msg: msg, attempts: 2} }

func nestedDeep(depth int) (v any) {
	v = "bottom"
	for i := range depth {
		if i%2 == 0 {
			v = []any{v}
		} else {
			v = amqp.Table{"k": v}
		}
	}
	return v
}

func manyHeaders(n int) amqp.Table {
	t := make(amqp.Table, n)
	for i := range n {
		t[fmt.Sprintf("%04x", i)] = nil
	}
	return t
}

// hostiles returns the hostile messages. Forged messages want to reach the victim.
func hostiles(queue, victim string) map[string]hostile {
	const far, past = "9999-12-31T23:59:59Z", "2020-01-01T00:00:00Z"
	long, digits := strings.Repeat("x", 255), strings.Repeat("9", 500)
	history := `[{"attempt":-5,"at":"` + far + `","error":"\u0000"}]`
	death := amqp.Table{
		"count": int64(1 << 40), "queue": queue + ".wait.100ms", "reason": "expired", "exchange": "",
		"time": time.Unix(1, 0), "routing-keys": []any{victim},
	}
	odd := amqp.Table{"count": "no", "queue": int64(5), "time": "noon"}
	old := amqp.Publishing{Expiration: "600000", Timestamp: time.Unix(1, 0)}
	ancient := withHeaders("t", time.Unix(1<<62, 0))
	ancient.Expiration, ancient.Timestamp = "600000", time.Unix(-1<<62, 0)
	notUTF8 := withHeaders("\xff\xfe", "\xff", "v", "\xc3\x28", "correlation_id", "\xff",
		"_watermill_message_uuid", "\xff")
	notUTF8.CorrelationId, notUTF8.Type = "\xff", "\xff"
	longNames := amqp.Publishing{
		Headers: amqp.Table{long: long}, ContentType: long, ContentEncoding: long, CorrelationId: long,
		ReplyTo: long, Type: long, AppId: long,
	}
	all := map[string]hostile{
		"failures huge": {
			msg:  forged(queue, keys.Failures, digits),
			dead: map[string]string{header.DeadFailures: "1000000"},
		},
		"failures, one to go": {msg: forged(queue, keys.Failures, "1"), attempts: 1},
		"origin is the victim": {
			msg: forged(queue, keys.Failures, "1", keys.OriginExchange, "",
				keys.OriginRoutingKey, victim),
			attempts: 1, dead: map[string]string{keys.OriginRoutingKey: victim},
		},
		"origin too long": {
			msg:      forged(queue, keys.OriginRoutingKey, strings.Repeat(victim, 400)),
			attempts: 2, dead: map[string]string{keys.OriginRoutingKey: queue},
		},
		"deadline past": {
			msg: forged(queue, keys.Deadline, past), attempts: 1, reason: "deadline",
		},
		"deadline past, seen before": {
			msg: forged(queue, keys.Deadline, past, keys.FirstSeen, past), reason: "deadline",
		},
		"as many headers as are read": {
			msg: amqp.Publishing{Headers: manyHeaders(8190)}, attempts: 1, reason: "-",
		},
		"headers of a whole frame": {
			msg: withHeaders("big", strings.Repeat("v", 130_000)), attempts: 1, reason: "oversized",
		},
	}
	for id, msg := range map[string]amqp.Publishing{
		"nothing at all":        {},
		"failures negative":     forged(queue, keys.Failures, "-3"),
		"failures garbage":      forged(queue, keys.Failures, "\x00two"),
		"failures not a string": forged(queue, keys.Failures, int64(7)),
		"queue not a string":    withHeaders(header.Queue, []byte(queue), keys.Failures, "9"),
		"state of another queue": forged(victim, keys.Failures, "9",
			keys.OriginRoutingKey, victim),
		"origin is an exchange": forged(queue, keys.OriginExchange, "amq.fanout",
			keys.OriginRoutingKey, victim),
		"dead letter of this queue": withHeaders(header.DeadQueue, queue, header.DeadFailures, "9",
			keys.OriginRoutingKey, victim, keys.DeadHistory, history),
		"deadline garbage":            forged(queue, keys.Deadline, "\xff"),
		"first failure in the future": forged(queue, keys.FirstFailure, far, keys.FirstSeen, far),
		"not before, without a delay": forged(queue, keys.NotBefore, far),
		"not before, a short delay":   forged(queue, keys.NotBefore, far, keys.Delay, "100ms"),
		"not before, garbage": forged(queue, keys.NotBefore, "soon", keys.Delay, "-1h",
			keys.Snoozed, "x"),
		"interruptions huge": forged(queue, keys.Interruptions, "99999999999999999999",
			"x-delivery-count", int64(99), "x-acquired-count", int64(99)),
		"nonce":              forged(queue, keys.Publish, "0000000000000000-1"),
		"nonce not a string": forged(queue, keys.Publish, amqp.Table{"a": int32(1)}),
		"history garbage":    forged(queue, keys.History, strings.Repeat("[", 9000)),
		"history of a liar":  forged(queue, keys.History, history),
		"class and error": forged(queue, keys.ErrorClass, "permanent",
			keys.Error, strings.Repeat("\xff", 50_000), keys.Inner, "true"),
		"x-death, a list of strings": withHeaders("x-death", []any{"a", "b"}),
		"x-death, a string": withHeaders("x-death", "a", "x-first-death-queue", victim,
			"x-first-death-exchange", int64(1), "x-last-death-reason", nil),
		"x-death, a table":          withHeaders("x-death", amqp.Table{"count": "a"}),
		"x-death, well formed":      withHeaders("x-death", []any{death, death}),
		"x-death, not quite":        withHeaders("x-death", []any{odd}),
		"CC":                        withHeaders("CC", []any{victim}),
		"BCC":                       withHeaders("BCC", []any{victim}),
		"own expiration":            {Expiration: "600000"},
		"user id":                   {UserId: "guest"},
		"own expiration, long ago":  old,
		"timestamp before all time": ancient,
		"8000 headers":              {Headers: manyHeaders(8000)},
		"headers of 120 KiB":        withHeaders("big", strings.Repeat("v", 120<<10)),
		"not UTF-8":                 notUTF8,
		"ids that are tables": withHeaders("correlation_id", amqp.Table{"a": nil},
			"_watermill_message_uuid", []any{int64(1)}),
		"names of 255 bytes":        longNames,
		"empty name":                withHeaders("", ""),
		"nested as deep as is read": withHeaders("deep", nestedDeep(32)),
		"1 MiB":                     {Body: make([]byte, 1<<20)},
		"priority and transient":    {Priority: 255, DeliveryMode: amqp.Transient},
		"poison keys":               withHeaders("reason_poisoned", int64(1), "topic_poisoned", victim),
	} {
		all[id] = twice(msg)
	}
	return all
}

// Given any message that a producer can send, when every attempt fails, then it ends in the
// dead-letter queue of its queue. No other queue sees a copy, no connection is lost, and the
// messages around it are handled.
func TestHostileMessages(t *testing.T) {
	t.Parallel()
	rig.OnEachStrategy(t, func(t *testing.T, strategy topology.Strategy) {
		url, queue, victim := testbroker.URL(t), testbroker.Queue(t), testbroker.Queue(t)+"-victim"
		testbroker.Delete(t, victim)
		ch := testbroker.Channel(t, url)
		rig.DeclareQueue(t, url, victim, nil)
		require.NoError(t, ch.QueueBind(victim, "", "amq.fanout", false, nil))

		cases := hostiles(queue, victim)
		var mu sync.Mutex
		attempts, normal := map[string]int{}, 0
		deaths := map[string]any{}
		r := rig.Start(t, rig.Config{
			URL: url, Queue: queue, Strategy: strategy, Configure: rig.Prefetch(10),
			Policy: backoff.List{100 * time.Millisecond},
			Handle: func(msg *message.Message) error {
				raw, _ := topology.Received(msg.Context())
				mu.Lock()
				defer mu.Unlock()
				if raw.MessageId == "normal" {
					normal++
					return nil
				}
				attempts[raw.MessageId]++
				if middleware.Attempt(msg.Context()) == 2 && attempts[raw.MessageId] == 2 {
					deaths[raw.MessageId] = raw.Headers["x-death"]
				}
				return rig.ErrFailed
			},
		})
		require.NoError(t, ch.Confirm(false))
		send := func(msg amqp.Publishing) {
			confirm, err := ch.PublishWithDeferredConfirm("", queue, true, false, msg)
			require.NoError(t, err)
			require.True(t, confirm.Wait())
		}
		for id, c := range cases {
			c.msg.MessageId = id
			send(c.msg)
			send(amqp.Publishing{MessageId: "normal"})
		}
		// A message that asks to wait for ten years waits, in rounds, and harms no other.
		forever := forged(queue, keys.NotBefore, "9999-12-31T23:59:59Z", keys.Delay, "87600h")
		forever.MessageId = "forever"
		send(forever)

		dead := map[string]amqp.Delivery{}
		rig.WaitFor(t, "all in the dead-letter queue", func() bool {
			d, ok, err := ch.Get(queue+".dlq", true)
			require.NoError(t, err)
			if ok {
				require.NotContains(t, dead, d.MessageId)
				dead[d.MessageId] = d
			}
			return len(dead) == len(cases)
		})
		rig.WaitFor(t, "the messages around them to be handled", func() bool {
			mu.Lock()
			defer mu.Unlock()
			return normal == len(cases)
		})
		for id, c := range cases {
			d, there := dead[id]
			require.True(t, there, "%s is in the dead-letter queue", id)
			require.Equal(t, c.attempts, attempts[id], "attempts of %q", id)
			requireDead(t, id, c, d)
			if deaths[id] != nil {
				// The broker's account of one wait, without the entries of the producer.
				require.Len(t, deaths[id], 1, id)
				entry := deaths[id].([]any)[0].(amqp.Table)
				require.Equal(t, int64(1), entry["count"], id)
				require.Equal(t, r.Plan.Queues[0].Name, entry["queue"], id)
			}
		}
		require.Contains(t, deaths, "x-death, a list of strings")
		// The copies of the producer's publishes, and none of a retry.
		require.Equal(t, 2, testbroker.Depth(t, url, victim))
		require.NotContains(t, attempts, "forever")
		r.RequireOneConnection()

		r.Stop()
		if r.Plan.Levels != nil { // it waits for all ten years at once
			rig.WaitFor(t, "the message of ten years to wait", func() bool { return r.Waiting() == 1 })
			return
		}
		rig.WaitFor(t, "the message of ten years to be back", func() bool { return r.Depth("") == 1 })
		require.Equal(t, "forever", rig.Take(t, url, queue).MessageId)
	}, "quorum", "levels classic", "returning quorum")
}

// requireDead requires the reason and the kept properties of a dead letter.
func requireDead(t testing.TB, id string, c hostile, d amqp.Delivery) {
	t.Helper()
	reason := c.reason
	switch reason {
	case "":
		reason = "exhausted"
	case "-": // its own headers leave no room for more
		require.NotContains(t, d.Headers, header.DeadReason, id)
		delete(d.Headers, "x-delivery-count") // 3.10 adds it at basic.get
		require.Len(t, d.Headers, len(c.msg.Headers), "%s: its own, and not even the nonce", id)
		return
	}
	require.Equal(t, reason, d.Headers[header.DeadReason], id)
	for key, value := range c.dead {
		require.Equal(t, value, d.Headers[key], "%s: %s", id, key)
	}
	require.Equal(t, []any{amqp.Persistent, "", ""}, []any{d.DeliveryMode, d.Expiration, d.UserId}, id)
	require.Equal(t, len(c.msg.Body), len(d.Body), id)
	require.Equal(t, c.msg.CorrelationId, d.CorrelationId, id)
	require.Equal(t, c.msg.Priority, d.Priority, id)
	for _, key := range []string{
		"x-death", "x-first-death-queue", "x-acquired-count", "CC", "BCC", header.Queue,
	} {
		require.NotContains(t, d.Headers, key, id)
	}
	require.NotEqual(t, int64(99), d.Headers["x-delivery-count"], id)
}

// withFrames returns a configuration with a largest size of frames.
func withFrames(url string, size int) wamqp.Config {
	cfg := rig.QueueConfig(url)
	cfg.Connection.AmqpConfig = &amqp.Config{FrameSize: size}
	return cfg
}

// wide returns a message with one large header.
func wide(size int) amqp.Publishing {
	msg := rig.Message("wide")
	msg.Headers = amqp.Table{"big": strings.Repeat("x", size)}
	return msg
}

// Given small frames, then no failed message has room for the headers of a retry, and each
// would be dead-lettered as oversized. The client refuses them, whichever side set the size.
func TestSmallFrameIsRefused(t *testing.T) {
	t.Parallel()
	url := testbroker.URL(t)
	for _, size := range []int{1, 4096, 16383} {
		_, err := topology.Open(t.Context(), withFrames(url, size).Connection, topology.PerQueue{})
		rig.RequireTexts(t, err, "FrameSize is", "set at least 16384",
			"in which a message has no room for the headers that a retry adds")
	}
	client := rig.OpenClient(t, url, topology.PerQueue{})
	_, err := client.NewSubscriberWithoutRetry(withFrames(url, 4096))
	rig.RequireTexts(t, err, "set at least 16384")
	_, err = client.NewPublisher(withFrames(url, 4096))
	rig.RequireTexts(t, err, "set at least 16384")

	broker := peer.Start(t, nil)
	broker.OfferFrames(8192)
	_, err = topology.Open(t.Context(), rig.ConnectionConfig(broker.URL()), topology.PerQueue{})
	rig.RequireTexts(t, err, "the broker takes frames of at most 8192 bytes",
		"frame_max to at least 16384")

	// Every wait queue that a message passes adds to its headers.
	cfg, queue := withFrames(url, 16384), testbroker.Queue(t)
	levels := rig.OpenWith(t, cfg.Connection, rig.Levels(t, topology.Quorum))
	err = rig.SubscribeError(t, levels, cfg, queue, backoff.List{time.Second})
	rig.RequireTexts(t, err, "frames of 16384 bytes are too small")
	require.Equal(t, -1, testbroker.Depth(t, url, queue), "nothing was declared")
}

// Given the least frame, then a message has room for all headers of a retry but the history,
// and for the text of an error of 1 MB that is not UTF-8, which is cut. Properties and names are as
// long as AMQP allows.
func TestLeastFrameTakesEveryNote(t *testing.T) {
	t.Parallel()
	url, queue := testbroker.URL(t), testbroker.Queue(t)
	queue += strings.Repeat("q", 255-len(queue)-len(".wait.1s"))
	exchange, key := queue+"-exchan", strings.Repeat("k", 255)
	huge := errors.New(strings.Repeat("\xff\xfe€", 250_000))
	testbroker.Delete(t, queue)
	rig.RemovePlan(t, url, topology.PerQueue{}, queue, backoff.List{time.Second})
	ch := testbroker.Channel(t, url)
	require.NoError(t, ch.ExchangeDeclare(exchange, "direct", true, false, false, false, nil))
	t.Cleanup(func() { _ = testbroker.Channel(t, url).ExchangeDelete(exchange, false, false) })
	r := rig.Start(t, rig.Config{
		Queue: queue, Keep: true, Policy: backoff.List{time.Second},
		Configure: func(cfg *wamqp.Config) { cfg.Connection = withFrames(url, 16384).Connection },
		Handle:    func(*message.Message) error { return huge },
	})
	require.NoError(t, ch.QueueBind(queue, key, exchange, false, nil))
	long := strings.Repeat("p", 255)
	rig.Publish(t, url, exchange, key, amqp.Publishing{
		ContentType: long, ContentEncoding: long, CorrelationId: long, ReplyTo: long, MessageId: long,
		Type: long, AppId: long, Expiration: "315360000000", Priority: 1, DeliveryMode: 2,
		Timestamp: time.Now(), Body: []byte("order"),
	})
	dead := r.DeadLetter()
	require.Equal(t, string(header.ReasonExhausted), dead.Headers[header.DeadReason])
	require.Equal(t, "2", dead.Headers[header.DeadFailures])
	require.Equal(t, exchange, dead.Headers[keys.OriginExchange])
	text, _ := dead.Headers[header.DeadError].(string)
	require.Contains(t, text, "(cut, 1250000 bytes)")
	require.InDelta(t, keys.MaxErrorBytes, len(text), 8)
	r.RequireOneConnection()
}

// Given headers up to the size of a frame (F16), when there is no room for the headers of a
// retry, then the message is dead-lettered at its first failure: in the end without a reason
// and without the nonce. No connection is lost by it, and none by reading the dead letter. A
// quorum queue cannot deliver the last 26 bytes of a frame (F25), so those cases are classic.
func TestOversizedHeadersAreDeadLettered(t *testing.T) {
	t.Parallel()
	// The payload of a header frame is 131064 bytes. 14 precede the properties, 1 is the
	// delivery mode, 4 the length of the table, 9 the header itself.
	const most = 131064 - 14 - 1 - 4 - 9
	type testCase struct {
		size   int
		reason any
		origin bool // the dead letter tells its queue and its failures
		calls  int
		kind   topology.QueueType
	}
	rig.Each(t, map[string]testCase{
		"room for a retry":          {100_000, "exhausted", true, 6, topology.Quorum},
		"room for some of our keys": {126_950, "oversized", true, 1, topology.Quorum},
		"less":                      {130_000, "oversized", true, 1, topology.Quorum},
		"a published 130850":        {130_850, "oversized", false, 1, topology.Quorum},
		"room for the reason":       {most - 35 - 64, "oversized", false, 1, topology.Classic},
		"no room for a key of ours": {most - 20, nil, false, 1, topology.Classic},
		"full to the last byte":     {most, nil, false, 1, topology.Classic},
	}, func(t *testing.T, c testCase) {
		var calls rig.Timeline
		r := rig.Start(t, rig.Config{
			Policy:   backoff.Constant{Interval: 10 * time.Millisecond, Retries: 5},
			Strategy: topology.PerQueue{Type: c.kind}, Handle: calls.Fail,
		})
		r.Publish(wide(c.size))
		dead := r.DeadLetter()
		require.Len(t, dead.Headers["big"], c.size)
		require.Equal(t, "wide", string(dead.Body))
		require.Equal(t, c.reason, dead.Headers[header.DeadReason])
		if c.origin {
			require.Equal(t, r.Queue, dead.Headers[header.DeadQueue])
			require.Equal(t, fmt.Sprint(c.calls), dead.Headers[header.DeadFailures])
		}
		require.Equal(t, c.calls, calls.Count())
		require.NotContains(t, r.Logs.Text(), "lost, reconnecting")
		require.NotContains(t, r.Logs.Text(), "holding it")

		r.Send("next")
		r.DeadLetter()
		require.Equal(t, 1, r.Logs.Said("Consuming"))
	})
}

// The broker adds an entry to x-death for each level. Headers that just fit when the message
// is published must fit when it comes back, or they end every connection that consumes it (F16).
func TestManyHopsLeaveRoomInTheFrame(t *testing.T) {
	t.Parallel()
	strategy := rig.Levels(t, topology.Quorum)
	strategy.Prefix += strings.Repeat("-long", 15)
	strategy.Resolution, strategy.Max, strategy.Tolerance = time.Millisecond, time.Minute, -1
	const elevenHops = (1<<11 - 1) * time.Millisecond
	sizes := []int{112_000, 114_000, 116_000, 117_000, 120_000, 126_000}
	var calls rig.Timeline
	r := rig.Start(t, rig.Config{
		Strategy: strategy, Policy: backoff.List{elevenHops}, Handle: calls.Fail,
	})
	for _, size := range sizes {
		r.Publish(wide(size))
	}
	reasons := map[any]int{}
	for range sizes {
		reasons[r.DeadLetter().Headers[header.DeadReason]]++
	}
	require.NotContains(t, r.Logs.Text(), "lost, reconnecting")
	require.Equal(t, len(sizes), reasons["exhausted"]+reasons["oversized"])
	require.Positive(t, reasons["exhausted"], "some are small enough")
	require.Positive(t, reasons["oversized"], "some are too large for so many hops")
	require.Equal(t, len(sizes)+reasons["exhausted"], calls.Count())
}
