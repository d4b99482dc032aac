package e2e_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

// A line is a quorum queue with a single active consumer, and its consumers in their order.
type line struct {
	t          *testing.T
	url, queue string
}

// member is a consumer of a line on its own connection.
type member struct {
	t    *testing.T
	ch   *amqp.Channel
	in   <-chan amqp.Delivery
	held []amqp.Delivery
	acks bool // as they come
}

// newLine declares a line and fills it with messages 1 to n.
func newLine(t *testing.T, url string, n int) *line {
	t.Helper()
	l := &line{t: t, url: url, queue: testbroker.Queue(t)}
	args := amqp.Table{
		"x-queue-type": "quorum", "x-single-active-consumer": true,
		"x-delivery-limit": int64(1000000), // F34: else a nack puts the message at the tail
	}
	rig.DeclareQueue(t, url, l.queue, args)
	messages := make([]amqp.Publishing, n)
	for i := range messages {
		messages[i] = rig.Message(strconv.Itoa(i + 1))
	}
	rig.Post(t, url, l.queue, messages...)
	return l
}

func (l *line) join(url string, prefetch int) *member {
	l.t.Helper()
	m := &member{t: l.t, ch: testbroker.Channel(l.t, url)}
	require.NoError(l.t, m.ch.Qos(prefetch, 0, false))
	var err error
	m.in, err = m.ch.Consume(l.queue, "", false, false, false, false, nil)
	require.NoError(l.t, err)
	return m
}

// take holds the next deliveries and requires their numbers, as in 1-3 5.
func (m *member) take(runs string) {
	m.t.Helper()
	var want, got []string
	for _, run := range strings.Fields(runs) {
		var first, last int
		if n, _ := fmt.Sscanf(run, "%d-%d", &first, &last); n == 1 {
			last = first
		}
		for i := first; i <= last; i++ {
			want = append(want, strconv.Itoa(i))
		}
	}
	for range want {
		d := rig.Await(m.t, m.in)
		m.held = append(m.held, d)
		got = append(got, string(d.Body))
		if m.acks {
			require.NoError(m.t, d.Ack(false))
		}
	}
	require.Equal(m.t, want, got)
}

// Given a consumer that holds messages, when its channel is closed, then the next consumer gets
// them first and in their order. When the next consumer took fewer, a third consumer gets the rest
// before them: messages that come back join the end of the messages that came back before (F50).
func TestOrderAfterTakeovers(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		second int // its prefetch
		holds  string
		third  string
	}{
		"as many":   {50, "1-50", "1-50 51-200"},
		"fewer":     {10, "1-10", "11-50 1-10 51-200"},
		"many more": {150, "1-150", "1-150 151-200"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLine(t, testbroker.URL(t), 200)
			first := l.join(l.url, 50)
			first.take("1-50")
			second := l.join(l.url, c.second)
			require.NoError(t, first.ch.Close())
			second.take(c.holds)
			third := l.join(l.url, 50)
			third.acks = true
			require.NoError(t, second.ch.Close())
			third.take(c.third)
		})
	}
}

// Given a consumer that holds messages, when it gives one back and gets it again, then the next
// consumer gets that message after the others: the order of deliveries counts (F50).
func TestAMessageGivenBackLosesItsPlace(t *testing.T) {
	t.Parallel()
	l := newLine(t, testbroker.URL(t), 60)
	first := l.join(l.url, 50)
	first.take("1-50")
	second := l.join(l.url, 50)
	require.NoError(t, first.held[24].Nack(false, true))
	first.take("25") // again, before 51
	require.NoError(t, first.ch.Close())
	second.take("1-24 26-50 25")
}

// Given a consumer that holds messages, when it cancels, then the next consumer gets the messages
// behind them at once (F50).
func TestACancelLetsTheNextConsumerOvertake(t *testing.T) {
	t.Parallel()
	l := newLine(t, testbroker.URL(t), 60)
	first := l.join(l.url, 50)
	first.take("1-50")
	second := l.join(l.url, 50)
	require.NoError(t, first.ch.Cancel(first.held[0].ConsumerTag, false))
	second.take("51-60")
	require.NoError(t, first.ch.Close())
	second.take("1-40")
}

// Given a cluster and a consumer that holds messages, when its node loses the links to the other
// nodes for a moment, then the next consumer gets the messages. The first is not told, its acks
// remove nothing, and it gets them again, when the next consumer ends. From 4.3 on the first one
// stays active, because the broker waits for its node (F53).
func aConsumerIsNotToldThatItLostItsQueue(t *testing.T, c *testbroker.Cluster) {
	l := newLine(t, c.Node(2).URL(), 60)
	first := l.join(c.Node(1).URL(), 50)
	first.take("1-50")
	next := l.join(c.Node(0).URL(), 50)
	c.Node(1).Ctl(t, "eval", "[erlang:disconnect_node(N) || N <- nodes()].")
	if strings.HasPrefix(c.Node(0).Version(), "4.3") {
		require.NoError(t, first.held[0].Ack(false))
		first.take("51")
		require.Empty(t, next.in)
		return
	}
	next.take("1-50")
	for _, d := range first.held {
		require.NoError(t, d.Ack(false))
	}
	require.NoError(t, next.ch.Close())
	first.take("1-50")
	require.False(t, first.ch.IsClosed())
}
