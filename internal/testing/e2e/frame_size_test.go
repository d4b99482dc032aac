package e2e_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
)

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
	_, err := client.NewSubscriber(withFrames(url, 4096))
	rig.RequireTexts(t, err, "set at least 16384")
	_, err = client.NewPublisher(withFrames(url, 4096))
	rig.RequireTexts(t, err, "set at least 16384")

	node := testbroker.Private(t, testbroker.WithConfig("frame_max = 8192"))
	_, err = topology.Open(t.Context(), rig.ConnectionConfig(node.URL()), topology.PerQueue{})
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
// and for the error's text, with properties and names as long as AMQP allows.
func TestLeastFrameTakesEveryNote(t *testing.T) {
	t.Parallel()
	url, queue := testbroker.URL(t), testbroker.Queue(t)
	queue += strings.Repeat("q", 255-len(queue)-len(".wait.1s"))
	exchange, key := queue+"-exchan", strings.Repeat("k", 255)
	testbroker.Delete(t, queue)
	rig.RemovePlan(t, url, topology.PerQueue{}, queue, backoff.List{time.Second})
	ch := testbroker.Channel(t, url)
	require.NoError(t, ch.ExchangeDeclare(exchange, "direct", true, false, false, false, nil))
	t.Cleanup(func() { _ = testbroker.Channel(t, url).ExchangeDelete(exchange, false, false) })
	r := rig.Start(t, rig.Config{
		Queue: queue, Keep: true, Policy: backoff.List{time.Second},
		Configure: func(cfg *wamqp.Config) { cfg.Connection = withFrames(url, 16384).Connection },
		Handle:    func(*message.Message) error { return errors.New(strings.Repeat("e", 5000)) },
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
	require.Equal(t, exchange, dead.Headers[header.OriginExchange])
	require.Len(t, dead.Headers[header.DeadError], 2048)
	r.Stop()
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

// After a thousand attempts the history keeps the latest ones within its bound, the counts are
// true, and the dead letter can be read.
func TestHistoryOfAThousandAttempts(t *testing.T) {
	t.Parallel()
	const attempts = 1000
	var calls rig.Timeline
	r := rig.Start(t, rig.Config{
		Policy: backoff.Constant{Interval: time.Millisecond, Retries: attempts - 1},
		Handle: func(*message.Message) error {
			return fmt.Errorf("failure %d: %s", calls.Add(), strings.Repeat("é", 300))
		},
	})
	r.Send("patient")
	dead := r.DeadLetter()
	require.Equal(t, attempts, calls.Count())
	require.Equal(t, "1000", dead.Headers[header.DeadFailures])
	require.Equal(t, "exhausted", dead.Headers[header.DeadReason])
	text, _ := dead.Headers[header.DeadHistory].(string)
	require.LessOrEqual(t, len(text), 16<<10)
	history := header.Parse("", func(key string) (string, bool) {
		value, ok := dead.Headers[key].(string)
		return value, ok
	}).History
	require.NotEmpty(t, history)
	for i, entry := range history {
		require.Equal(t, attempts-len(history)+i+1, entry.Attempt)
		require.Contains(t, entry.Error, fmt.Sprintf("failure %d:", entry.Attempt))
	}
	require.NotContains(t, r.Logs.Text(), "lost, reconnecting")
}

// Given an error text of 1 MB that is not UTF-8, then the message is dead-lettered with the
// text cut, can be read again and again, and harms no connection.
func TestHugeErrorTextHarmsNothing(t *testing.T) {
	t.Parallel()
	huge := errors.New(strings.Repeat("\xff\xfe€", 250_000))
	var calls rig.Timeline
	r := rig.Start(t, rig.Config{
		Policy: backoff.Constant{Interval: time.Millisecond, Retries: 100},
		Handle: func(*message.Message) error { calls.Add(); return huge },
	})
	r.Send("loud")
	for range 20 {
		ch := testbroker.Channel(t, r.URL)
		rig.WaitFor(t, "the dead letter", func() bool {
			d, ok, err := ch.Get(r.Queue+".dlq", false)
			require.NoError(t, err)
			if ok {
				require.NoError(t, d.Nack(false, true))
			}
			return ok
		})
	}
	dead := r.DeadLetter()
	text, _ := dead.Headers[header.DeadError].(string)
	require.Contains(t, text, "(cut, 1250000 bytes)")
	require.LessOrEqual(t, len(text), header.MaxErrorBytes)
	require.Equal(t, "101", dead.Headers[header.DeadFailures])
	require.NotContains(t, r.Logs.Text(), "lost, reconnecting")
	require.Equal(t, 101, calls.Count())
}
