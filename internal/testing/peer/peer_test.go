package peer_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/peer"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

func TestMain(m *testing.M) { testbroker.Main(m) }

// play uses a queue as the library does, and notes the broker's answers.
type play struct {
	t     *testing.T
	url   string
	queue string
	args  amqp.Table
	notes []string
}

// The peer answers as a broker does. make test-matrix asks three versions.
func TestThePeerActsLikeTheBroker(t *testing.T) {
	t.Parallel()
	for kind, args := range map[string]amqp.Table{
		"classic": {"x-queue-type": "classic"},
		"quorum":  {"x-queue-type": "quorum", "x-delivery-limit": int64(100)},
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			on := func(url, queue string) []string {
				p := &play{t: t, url: url, queue: queue, args: args}
				p.refusals()
				p.deliveries()
				p.confirms()
				p.vanishing()
				return p.notes
			}
			queue := testbroker.Queue(t)
			played := on(peer.Start(t, nil).URL(), queue)
			assert.Equal(t, on(testbroker.URL(t), queue), played)
		})
	}
}

func (p *play) note(format string, values ...any) {
	p.notes = append(p.notes, fmt.Sprintf(format, values...))
}

func (p *play) channel() *amqp.Channel { return testbroker.Channel(p.t, p.url) }

func (p *play) declare(passive bool) (amqp.Queue, error) {
	if passive {
		return p.channel().QueueDeclarePassive(p.queue, true, false, false, false, nil)
	}
	return p.channel().QueueDeclare(p.queue, true, false, false, false, p.args)
}

// refused notes the error of a request and the end of its channel.
func (p *play) refused(ch *amqp.Channel, err error) {
	var refused *amqp.Error
	require.True(p.t, errors.As(err, &refused))
	p.note("%d %s, channel closed %v", refused.Code, refused.Reason, ch.IsClosed())
}

func (p *play) refusals() {
	ch := p.channel()
	_, err := ch.QueueDeclarePassive(p.queue, true, false, false, false, nil)
	p.refused(ch, err)
	_, err = p.declare(false)
	require.NoError(p.t, err)
	ch = p.channel()
	_, err = ch.Consume(p.queue, "", false, false, false, false,
		amqp.Table{"x-stream-offset": "next", "x-priority": int32(0)})
	p.refused(ch, err) // F31
}

func (p *play) publish(bodies ...string) {
	ch := p.channel()
	require.NoError(p.t, ch.Confirm(false))
	for _, body := range bodies {
		c, err := ch.PublishWithDeferredConfirm("", p.queue, true, false, amqp.Publishing{
			MessageId: "id of " + body, Headers: amqp.Table{"n": int64(1)}, Body: []byte(body),
		})
		require.NoError(p.t, err)
		require.True(p.t, c.Wait())
	}
}

func (p *play) consume(ch *amqp.Channel, tag string, prefetch int) <-chan amqp.Delivery {
	require.NoError(p.t, ch.Qos(prefetch, 0, false))
	deliveries, err := ch.Consume(p.queue, tag, false, false, false, false, nil)
	require.NoError(p.t, err)
	return deliveries
}

// take notes so many deliveries and returns the last.
func (p *play) take(deliveries <-chan amqp.Delivery, n int) (d amqp.Delivery) {
	for range n {
		select {
		case d = <-deliveries:
			p.note("%s to %s: tag %d, redelivered %v, by %q %v, %s %v", d.Body, d.ConsumerTag, d.DeliveryTag,
				d.Redelivered, d.Exchange, d.RoutingKey == p.queue, d.MessageId, d.Headers["n"])
		case <-time.After(time.Minute):
			p.t.Fatal("no delivery")
		}
	}
	return d
}

// depth waits for so many ready messages: a broker settles a while after the client has asked.
func (p *play) depth(n int) {
	testbroker.WaitFor(p.t, fmt.Sprint(n, " ready messages"), time.Minute, func() bool {
		q, err := p.declare(true)
		require.NoError(p.t, err)
		return q.Messages == n
	})
}

// deliveries keeps within the prefetch, and gives unsettled messages back in their order.
func (p *play) deliveries() {
	p.publish("a", "b", "c", "d")
	ch := p.channel()
	first := p.consume(ch, "first", 2)
	b := p.take(first, 2)
	p.depth(2)
	require.NoError(p.t, b.Nack(false, true))
	p.take(first, 1) // b again
	require.NoError(p.t, ch.Ack(1, false))
	p.take(first, 1) // c
	require.NoError(p.t, ch.Reject(4, true))
	p.take(first, 1) // c again
	require.NoError(p.t, ch.Cancel("first", false))
	require.NoError(p.t, ch.Ack(3, true)) // b
	p.depth(1)
	require.NoError(p.t, ch.Close())
	p.depth(2)

	other := p.channel()
	p.take(p.consume(other, "second", 10), 2) // c, d
	third := testbroker.Dial(p.t, p.url)
	ch, err := third.Channel()
	require.NoError(p.t, err)
	p.publish("e")
	require.NoError(p.t, other.Close())
	p.depth(3)
	p.take(p.consume(ch, "third", 1), 1)
	require.NoError(p.t, third.Close())
	p.depth(3)
	ch = p.channel()
	for range 4 {
		d, ok, err := ch.Get(p.queue, true)
		require.NoError(p.t, err)
		p.note("got %s %v, redelivered %v, %d left", d.Body, ok, d.Redelivered, d.MessageCount)
	}
}

// confirms notes the confirm of a message that no queue takes, and of another message.
func (p *play) confirms() {
	ch := p.channel()
	require.NoError(p.t, ch.Confirm(false))
	returns := ch.NotifyReturn(make(chan amqp.Return, 1))
	confirms := ch.NotifyPublish(make(chan amqp.Confirmation, 1))
	for _, key := range []string{p.queue + ".missing", p.queue} {
		msg := amqp.Publishing{Body: []byte("f")}
		require.NoError(p.t, ch.PublishWithContext(p.t.Context(), "", key, true, false, msg))
		c := <-confirms
		p.note("publish %d confirmed: %v", c.DeliveryTag, c.Ack)
		select {
		case r := <-returns:
			p.note("returned before: %d %s, %s", r.ReplyCode, r.ReplyText, r.Body)
		default:
		}
	}
}

// vanishing deletes the queue under its consumer.
func (p *play) vanishing() {
	ch := p.channel()
	ended := ch.NotifyCancel(make(chan string, 1))
	deliveries := p.consume(ch, "last", 1)
	d := p.take(deliveries, 1)
	n, err := p.channel().QueueDelete(p.queue, false, false, false)
	require.NoError(p.t, err)
	p.note("deleted with %d messages, ended %s", n, <-ended)
	_, open := <-deliveries
	require.False(p.t, open)
	require.NoError(p.t, d.Ack(false))
	_, err = p.declare(true)
	require.Error(p.t, err)
}
