package topology_test

import (
	"fmt"
	"strings"
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

// hostile is what a producer may send to a queue, and what becomes of it with one
// retry where every attempt fails.
type hostile struct {
	msg      amqp.Publishing
	attempts int
	reason   string            // of the dead letter; "" means exhausted
	dead     map[string]string // headers it must have
}

// notes are headers forged as if the queue had written them.
func notes(queue string, pairs ...any) amqp.Publishing {
	headers := amqp.Table{header.Queue: queue}
	for i := 0; i < len(pairs); i += 2 {
		headers[pairs[i].(string)] = pairs[i+1]
	}
	return amqp.Publishing{Headers: headers}
}

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

// hostiles are the messages; those in forge want to reach the victim.
func hostiles(queue, victim string) map[string]hostile {
	long, far, past := strings.Repeat("x", 255), "9999-12-31T23:59:59Z", "2020-01-01T00:00:00Z"
	death := amqp.Table{"count": int64(1 << 40), "queue": queue + ".wait.100ms", "reason": "expired", "exchange": "", "time": time.Unix(1, 0), "routing-keys": []any{victim}}
	history := `[{"attempt":-5,"at":"` + far + `","error":"\u0000"}]`
	return map[string]hostile{
		"nothing at all":              {msg: amqp.Publishing{}, attempts: 2},
		"failures negative":           {msg: notes(queue, header.Failures, "-3"), attempts: 2},
		"failures garbage":            {msg: notes(queue, header.Failures, "\x00two"), attempts: 2},
		"failures huge":               {msg: notes(queue, header.Failures, strings.Repeat("9", 500)), attempts: 0, dead: map[string]string{header.DeadFailures: "1000000"}},
		"failures not a string":       {msg: notes(queue, header.Failures, int64(7)), attempts: 2},
		"failures, one to go":         {msg: notes(queue, header.Failures, "1"), attempts: 1},
		"queue not a string":          {msg: amqp.Publishing{Headers: amqp.Table{header.Queue: []byte(queue), header.Failures: "9"}}, attempts: 2},
		"notes of another queue":      {msg: notes(victim, header.Failures, "9", header.OriginRoutingKey, victim), attempts: 2},
		"origin is the victim":        {msg: notes(queue, header.Failures, "1", header.OriginExchange, "", header.OriginRoutingKey, victim), attempts: 1, dead: map[string]string{header.OriginRoutingKey: victim}},
		"origin is an exchange":       {msg: notes(queue, header.OriginExchange, "amq.fanout", header.OriginRoutingKey, victim), attempts: 2},
		"origin too long":             {msg: notes(queue, header.OriginRoutingKey, strings.Repeat(victim, 400)), attempts: 2, dead: map[string]string{header.OriginRoutingKey: queue}},
		"dead letter of this queue":   {msg: amqp.Publishing{Headers: amqp.Table{header.DeadQueue: queue, header.DeadFailures: "9", header.OriginRoutingKey: victim, header.DeadHistory: history}}, attempts: 2},
		"deadline past":               {msg: notes(queue, header.Deadline, past), attempts: 1, reason: "deadline"},
		"deadline past, seen before":  {msg: notes(queue, header.Deadline, past, header.FirstSeen, past), attempts: 0, reason: "deadline"},
		"deadline garbage":            {msg: notes(queue, header.Deadline, "\xff"), attempts: 2},
		"first failure in the future": {msg: notes(queue, header.FirstFailure, far, header.FirstSeen, far), attempts: 2},
		"not before, without a delay": {msg: notes(queue, header.NotBefore, far), attempts: 2},
		"not before, a short delay":   {msg: notes(queue, header.NotBefore, far, header.Delay, "100ms"), attempts: 2},
		"not before, garbage":         {msg: notes(queue, header.NotBefore, "soon", header.Delay, "-1h", header.Snoozed, "x"), attempts: 2},
		"interruptions huge":          {msg: notes(queue, header.Interruptions, "99999999999999999999", "x-delivery-count", int64(99), "x-acquired-count", int64(99)), attempts: 2},
		"nonce":                       {msg: notes(queue, header.Publish, "0000000000000000-1"), attempts: 2},
		"nonce not a string":          {msg: notes(queue, header.Publish, amqp.Table{"a": int32(1)}), attempts: 2},
		"history garbage":             {msg: notes(queue, header.History, strings.Repeat("[", 9000)), attempts: 2},
		"history of a liar":           {msg: notes(queue, header.History, history), attempts: 2},
		"class and error":             {msg: notes(queue, header.ErrorClass, "permanent", header.Error, strings.Repeat("\xff", 50_000), header.Inner, "true"), attempts: 2},
		"x-death, a list of strings":  {msg: amqp.Publishing{Headers: amqp.Table{"x-death": []any{"a", "b"}}}, attempts: 2},
		"x-death, a string":           {msg: amqp.Publishing{Headers: amqp.Table{"x-death": "a", "x-first-death-queue": victim, "x-first-death-exchange": int64(1), "x-last-death-reason": nil}}, attempts: 2},
		"x-death, a table":            {msg: amqp.Publishing{Headers: amqp.Table{"x-death": amqp.Table{"count": "a"}}}, attempts: 2},
		"x-death, well formed":        {msg: amqp.Publishing{Headers: amqp.Table{"x-death": []any{death, death}}}, attempts: 2},
		"x-death, not quite":          {msg: amqp.Publishing{Headers: amqp.Table{"x-death": []any{amqp.Table{"count": "no", "queue": int64(5), "time": "noon"}}}}, attempts: 2},
		"CC":                          {msg: amqp.Publishing{Headers: amqp.Table{"CC": []any{victim}}}, attempts: 2},
		"BCC":                         {msg: amqp.Publishing{Headers: amqp.Table{"BCC": []any{victim}}}, attempts: 2},
		"own expiration":              {msg: amqp.Publishing{Expiration: "600000"}, attempts: 2},
		"own expiration, long ago":    {msg: amqp.Publishing{Expiration: "600000", Timestamp: time.Unix(1, 0)}, attempts: 2},
		"timestamp before all time":   {msg: amqp.Publishing{Expiration: "600000", Timestamp: time.Unix(-1<<62, 0), Headers: amqp.Table{"t": time.Unix(1<<62, 0)}}, attempts: 2},
		"8000 headers":                {msg: amqp.Publishing{Headers: manyHeaders(8000)}, attempts: 2},
		"as many headers as are read": {msg: amqp.Publishing{Headers: manyHeaders(8190)}, attempts: 1, reason: "-"},
		"headers of 120 KiB":          {msg: amqp.Publishing{Headers: amqp.Table{"big": strings.Repeat("v", 120<<10)}}, attempts: 2},
		"headers of a whole frame":    {msg: amqp.Publishing{Headers: amqp.Table{"big": strings.Repeat("v", 130_000)}}, attempts: 1, reason: "oversized"},
		"not UTF-8":                   {msg: amqp.Publishing{Headers: amqp.Table{"\xff\xfe": "\xff", "v": "\xc3\x28", "correlation_id": "\xff", "_watermill_message_uuid": "\xff"}, CorrelationId: "\xff", Type: "\xff"}, attempts: 2},
		"ids that are tables":         {msg: amqp.Publishing{Headers: amqp.Table{"correlation_id": amqp.Table{"a": nil}, "_watermill_message_uuid": []any{int64(1)}}}, attempts: 2},
		"names of 255 bytes":          {msg: amqp.Publishing{Headers: amqp.Table{long: long}, ContentType: long, ContentEncoding: long, CorrelationId: long, ReplyTo: long, Type: long, AppId: long}, attempts: 2},
		"empty name":                  {msg: amqp.Publishing{Headers: amqp.Table{"": ""}}, attempts: 2},
		"nested as deep as is read":   {msg: amqp.Publishing{Headers: amqp.Table{"deep": nestedDeep(32)}}, attempts: 2},
		"1 MiB":                       {msg: amqp.Publishing{Body: make([]byte, 1<<20)}, attempts: 2},
		"priority and transient":      {msg: amqp.Publishing{Priority: 255, DeliveryMode: amqp.Transient}, attempts: 2},
		"poison keys":                 {msg: amqp.Publishing{Headers: amqp.Table{"reason_poisoned": int64(1), "topic_poisoned": victim}}, attempts: 2},
	}
}

// A producer can do what it likes: its message is handled and ends in the
// dead-letter queue of its own queue, nobody else's queue sees anything of it,
// no connection is lost, and the messages around it are served.
func TestHostileMessages(t *testing.T) {
	t.Parallel()
	for name, strategy := range rig.Strategies {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, queue, victim := testbroker.URL(t), testbroker.Queue(t), testbroker.Queue(t)+"-victim"
			testbroker.Delete(t, victim)
			ch := testbroker.Channel(t, url)
			_, err := ch.QueueDeclare(victim, true, false, false, false, nil)
			require.NoError(t, err)
			require.NoError(t, ch.QueueBind(victim, "", "amq.fanout", false, nil))

			cases := hostiles(queue, victim)
			var mu sync.Mutex
			attempts, normal := map[string]int{}, 0
			deaths := map[string]any{}
			r := rig.Start(t, rig.Config{
				URL: url, Queue: queue, Strategy: strategy(t), Configure: rig.Prefetch(10),
				Policy: backoff.List{100 * time.Millisecond},
				Handler: func(msg *message.Message) ([]*message.Message, error) {
					raw, _ := topology.Received(msg.Context())
					mu.Lock()
					defer mu.Unlock()
					if raw.MessageId == "normal" {
						normal++
						return nil, nil
					}
					attempts[raw.MessageId]++
					if middleware.Attempt(msg.Context()) == 2 && attempts[raw.MessageId] == 2 {
						deaths[raw.MessageId] = raw.Headers["x-death"]
					}
					return nil, rig.ErrFailed
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
			// One that asks to wait for ten years waits, in rounds, and harms nobody.
			forever := notes(queue, header.NotBefore, "9999-12-31T23:59:59Z", header.Delay, "87600h")
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
			rig.WaitFor(t, "the messages around them are handled", func() bool {
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
					// The broker's own account of one wait, nothing of the producer's.
					require.Len(t, deaths[id], 1, id)
					entry := deaths[id].([]any)[0].(amqp.Table)
					require.Equal(t, int64(1), entry["count"], id)
					require.Equal(t, r.Plan.Queues[0].Name, entry["queue"], id)
				}
			}
			require.Contains(t, deaths, "x-death, a list of strings")
			// The copies that the producer's own publishes made, none of a retry's.
			require.Equal(t, 2, testbroker.Depth(t, url, victim))
			require.NotContains(t, attempts, "forever")
			r.RequireOneConnection()

			r.Stop()
			if r.Plan.Levels != nil { // waits for all of it at once
				rig.WaitFor(t, "the one that waits for ten years to be counted", func() bool {
					waiting := 0
					for _, q := range r.Plan.Queues {
						if q.Delay > 0 {
							waiting += testbroker.Depth(t, url, q.Name)
						}
					}
					return waiting == 1
				})
				return
			}
			rig.WaitFor(t, "the one that waits for ten years to be back", func() bool {
				return testbroker.Depth(t, url, queue) == 1
			})
			require.Equal(t, "forever", rig.Take(t, url, queue).MessageId)
		})
	}
}

// requireDead asserts what a dead letter says and keeps.
func requireDead(t testing.TB, id string, c hostile, d amqp.Delivery) {
	t.Helper()
	reason := c.reason
	switch reason {
	case "":
		reason = "exhausted"
	case "-": // its own headers leave no room for any of ours
		require.NotContains(t, d.Headers, header.DeadReason, id)
		delete(d.Headers, "x-delivery-count") // of 3.10, on what is got
		require.Len(t, d.Headers, len(c.msg.Headers), "%s: its own, and not even the nonce", id)
		return
	}
	require.Equal(t, reason, d.Headers[header.DeadReason], id)
	for key, value := range c.dead {
		require.Equal(t, value, d.Headers[key], "%s: %s", id, key)
	}
	require.Equal(t, amqp.Persistent, d.DeliveryMode, id)
	require.Equal(t, len(c.msg.Body), len(d.Body), id)
	require.Equal(t, c.msg.CorrelationId, d.CorrelationId, id)
	require.Equal(t, c.msg.Priority, d.Priority, id)
	for _, key := range []string{"x-death", "x-first-death-queue", "x-acquired-count", "CC", "BCC", header.Queue} {
		require.NotContains(t, d.Headers, key, id)
	}
	require.NotEqual(t, int64(99), d.Headers["x-delivery-count"], id)
}

// A user id is checked against who publishes (F15): that of the producer would
// have every retry refused.
func TestForeignUserIDIsRetried(t *testing.T) {
	t.Parallel()
	node := testbroker.Private(t)
	node.Grant(t, testbroker.Everything("/", "producer"))
	var attempts rig.Timeline
	r := rig.Start(t, rig.Config{
		URL: node.URL(), Policy: backoff.List{100 * time.Millisecond},
		Handler: func(msg *message.Message) ([]*message.Message, error) {
			if raw, _ := topology.Received(msg.Context()); attempts.Add() == 1 && raw.UserId != "producer" {
				t.Errorf("the first attempt has user id %q", raw.UserId)
			}
			return nil, rig.ErrFailed
		},
	})
	rig.Publish(t, node.URLOf("producer"), "", r.Queue, amqp.Publishing{UserId: "producer"})
	require.Empty(t, r.DeadLetter().UserId)
	require.Equal(t, 2, attempts.Count())
	r.RequireOneConnection()
}
