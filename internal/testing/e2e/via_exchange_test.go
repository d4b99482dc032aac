package e2e_test

import (
	"maps"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
)

// viaEvents returns a configuration of a service whose queue gets order.# of a topic exchange,
// and whose retries come back through this exchange.
func viaEvents(url, events string, strategy topology.Strategy, delays ...time.Duration) rig.Config {
	return rig.Config{
		URL: url, Strategy: strategy, Policy: backoff.List(delays),
		Configure: rig.OnTopic(events, "order.#"),
	}
}

// Given a producer that forges another exchange, key and queue in the headers, then the retry
// goes back to the queue, and to no queue that did not get the message.
func TestForgedNotesSteerNoRetryThroughTheExchange(t *testing.T) {
	t.Parallel()
	url, events, others := testbroker.URL(t), rig.TopicExchange(t), rig.TopicExchange(t)
	invoices := rig.BesideOn(t, url, events, "invoice.#")
	elsewhere := rig.BesideOn(t, url, others, "#")
	var calls rig.Timeline
	c := viaEvents(url, events, rig.SharedVia(t, events), 100*time.Millisecond)
	c.Handle = calls.Fail
	r := rig.Start(t, c)
	send := func(headers amqp.Table) {
		rig.Publish(t, url, events, "order.created", amqp.Publishing{Headers: headers})
	}
	send(amqp.Table{header.Queue: invoices})
	for _, owner := range []string{r.Queue, invoices} {
		forged := amqp.Table{
			header.Queue: owner, keys.OriginExchange: others, keys.OriginRoutingKey: "invoice.paid",
		}
		r.Publish(amqp.Publishing{Headers: forged})
		send(forged)
	}
	for range 5 {
		r.DeadLetter()
	}
	require.Equal(t, 10, calls.Count())
	require.Equal(t, 0, testbroker.Depth(t, url, invoices))
	require.Equal(t, 0, testbroker.Depth(t, url, elsewhere))
}

// Given an exchange to return through that does not exist, then Verify says so, and the queue
// gets its retries all the same.
func TestReturnThroughAMissingExchange(t *testing.T) {
	t.Parallel()
	missing := testbroker.Queue(t)
	var calls rig.Timeline
	r := rig.Start(t, rig.Config{
		Strategy: rig.SharedVia(t, missing), Policy: rig.Quickly(1), Handle: calls.Fail,
	})
	require.Equal(t, []string{"warning missing exchange " + missing},
		rig.BlindFindings(t, rig.OpenOperator(t, r.URL), r.Plan))
	r.Publish(amqp.Publishing{})
	r.DeadLetter()
	calls.RequireGaps(t, r.Plan, 100*time.Millisecond)
}

// A sibling gets a copy for each failure, and none for a message that is snoozed or goes on
// waiting.
func TestNothingButRetriesPassesTheExchange(t *testing.T) {
	t.Parallel()
	url, events := testbroker.URL(t), rig.TopicExchange(t)
	sibling := rig.BesideOn(t, url, events, "order.#")
	var calls rig.Timeline
	c := viaEvents(url, events, rig.SharedVia(t, events), 3*time.Second, 3*time.Second)
	c.Handle = func(*message.Message) error {
		switch calls.Add() {
		case 1, 4:
			return middleware.Snooze(rig.ErrFailed, 100*time.Millisecond)
		case 2:
			// Two rounds, unless the first takes so long that no time is left. Then the retry
			// does not pass the exchange. On a busy machine it was 0.9 s late.
			return middleware.RetryAfter(rig.ErrFailed, 5900*time.Millisecond)
		case 3:
			return rig.ErrFailed
		}
		return nil
	}
	r := rig.Start(t, c)
	rig.Publish(t, url, events, "order.created.eu", amqp.Publishing{})
	rig.WaitFor(t, "the fifth call", func() bool { return calls.Count() == 5 })
	r.Stop()
	require.Equal(t, 3, testbroker.Depth(t, url, sibling), "the message and its two retries")
	require.Equal(t, 0, r.Depth(".dlq"))
}

// viaBroker is a broker with the exchanges of a return, made by hand.
type viaBroker struct {
	t   *testing.T
	url string
	ch  *amqp.Channel
}

func (b *viaBroker) exchange(name, kind string, autoDelete bool, alternate string) {
	b.t.Helper()
	args := amqp.Table{}
	if alternate != "" {
		args["alternate-exchange"] = alternate
	}
	require.NoError(b.t, b.ch.ExchangeDeclare(name, kind, true, autoDelete, false, false, args))
}

func (b *viaBroker) queue(name, kind string, more amqp.Table) {
	b.t.Helper()
	args := amqp.Table{"x-queue-type": kind}
	maps.Copy(args, more)
	rig.DeclareQueue(b.t, b.url, name, args)
}

func (b *viaBroker) bind(queue, key, exchange string, args amqp.Table) {
	b.t.Helper()
	require.NoError(b.t, b.ch.QueueBind(queue, key, exchange, false, args))
}

// requireReached publishes a message, takes what lands in the queues, and requires that it is
// one copy in each wanted queue and none elsewhere.
func (b *viaBroker) requireReached(
	story, exchange, key string, headers amqp.Table, queues []string, want ...string,
) {
	b.t.Helper()
	rig.Publish(b.t, b.url, exchange, key, amqp.Publishing{
		Headers: headers, DeliveryMode: amqp.Persistent,
	})
	ch := testbroker.Channel(b.t, b.url)
	var reached []string
	for _, name := range queues {
		for {
			_, ok, err := ch.Get(name, true)
			require.NoError(b.t, err)
			if !ok {
				break
			}
			reached = append(reached, name)
		}
	}
	require.Equal(b.t, want, reached, story)
}

// prepare declares a queue and a sibling, both bound to the exchange events, and what returns
// messages to the queue by the exchange events.
func (b *viaBroker) prepare(kind string) {
	b.t.Helper()
	anchor, own := kind+".anchor", amqp.Table{"x-match": "all", "millpond-queue": kind}
	b.queue(kind, kind, nil)
	b.queue(kind+"-sibling", kind, nil)
	b.exchange(anchor, "direct", true, "events")
	b.bind(kind, anchor, anchor, nil)
	b.bind(kind, "", "return", own)
	require.NoError(b.t, b.ch.ExchangeBind(anchor, "", "return", false, own))
	b.bind(kind, kind+".*", "events", nil)
	b.bind(kind+"-sibling", kind+".*", "events", nil)
}

// The return through a user's exchange needs these facts (F27). An alternate exchange looks at
// its own bindings only. A queue that is reached two ways gets one copy. An exchange that is
// deleted with its last binding goes with its queue, but not with a restart.
func TestReturnStandsOnTheseFacts(t *testing.T) {
	t.Parallel()
	node := testbroker.Private(t)
	b := &viaBroker{t: t, url: node.URL(), ch: testbroker.Channel(t, node.URL())}
	stranded := []string{"stranded"}
	b.exchange("stranded", "fanout", false, "")
	b.queue("stranded", "classic", nil)
	b.bind("stranded", "", "stranded", nil)
	b.exchange("events", "topic", false, "")
	b.exchange("plain", "topic", false, "stranded")
	b.requireReached("no binding", "plain", "a.b", nil, stranded, "stranded")
	require.NoError(t, b.ch.ExchangeBind("events", "#", "plain", false, nil))
	b.requireReached("a binding to an exchange without bindings", "plain", "a.b", nil, stranded)
	b.queue("held", "quorum", amqp.Table{
		"x-message-ttl": int64(100), "x-dead-letter-exchange": "plain",
		"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish",
	})
	b.requireReached("it waits", "", "held", nil, nil)
	rig.AwaitDepth(t, b.url, "held", 0)
	require.Zero(t, testbroker.Depth(t, b.url, "stranded"), "held in the wait queue")
	rig.DeleteQueue(t, b.url, "held")

	b.exchange("return", "headers", false, "stranded")
	requireBack := func(story, kind string, gone bool, want ...string) {
		t.Helper()
		queues := []string{kind, kind + "-sibling", "stranded"}
		if gone {
			queues = queues[1:]
		}
		b.requireReached(story, "return", kind+".b", amqp.Table{"millpond-queue": kind}, queues, want...)
	}
	for _, kind := range []string{"classic", "quorum"} {
		b.prepare(kind)
		requireBack("one copy each", kind, false, kind, kind+"-sibling")
		require.NoError(t, b.ch.QueueUnbind(kind, kind+".*", "events", nil))
		requireBack("without a binding of the queue", kind, false, kind, kind+"-sibling")
	}
	node.Stop(t)
	node.Start(t)
	b.ch = testbroker.Channel(t, b.url)
	for _, kind := range []string{"classic", "quorum"} {
		requireBack("after a restart", kind, false, kind, kind+"-sibling")
		rig.DeleteQueue(t, b.url, kind)
		requireBack("the queue is gone, and its sibling gets nothing", kind, true, "stranded")
		b.prepare(kind)
	}
	require.NoError(t, b.ch.ExchangeDelete("events", false, false))
	for _, kind := range []string{"classic", "quorum"} {
		requireBack("the exchange is gone", kind, false, kind)
	}
}
