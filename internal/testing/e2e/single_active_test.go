package e2e_test

import (
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
}

// newLine declares a line and fills it with messages 1 to n.
func newLine(t *testing.T, url string, n int) *line {
	t.Helper()
	l := &line{t: t, url: url, queue: testbroker.Queue(t)}
	args := amqp.Table{
		"x-queue-type": "quorum", "x-single-active-consumer": true,
		"x-delivery-limit": int64(1000000), // F34: else a nack puts the message at the tail
	}
	_, err := testbroker.Channel(t, url).QueueDeclare(l.queue, true, false, false, false, args)
	require.NoError(t, err)
	l.publish(1, n)
	return l
}

func (l *line) publish(from, to int) {
	l.t.Helper()
	ch := testbroker.Channel(l.t, l.url)
	require.NoError(l.t, ch.Confirm(false))
	var last *amqp.DeferredConfirmation
	for i := from; i <= to; i++ {
		var err error
		last, err = ch.PublishWithDeferredConfirm("", l.queue, true, false,
			rig.Message(strconv.Itoa(i)))
		require.NoError(l.t, err)
	}
	require.True(l.t, last.Wait())
}

func (l *line) join(prefetch int) *member { return l.joinAt(l.url, prefetch) }

func (l *line) joinAt(url string, prefetch int) *member {
	l.t.Helper()
	m := &member{t: l.t, ch: testbroker.Channel(l.t, url)}
	require.NoError(l.t, m.ch.Qos(prefetch, 0, false))
	var err error
	m.in, err = m.ch.Consume(l.queue, "", false, false, false, false, nil)
	require.NoError(l.t, err)
	return m
}

// take holds the next n deliveries and returns their numbers, as in 1-3 5.
func (m *member) take(n int) string {
	m.t.Helper()
	var runs []string
	first, last := 0, 0
	end := func() {
		switch {
		case first == 0:
		case first == last:
			runs = append(runs, strconv.Itoa(first))
		default:
			runs = append(runs, strconv.Itoa(first)+"-"+strconv.Itoa(last))
		}
	}
	for range n {
		d := rig.Await(m.t, m.in)
		m.held = append(m.held, d)
		number, err := strconv.Atoi(string(d.Body))
		require.NoError(m.t, err)
		if number != last+1 || first == 0 {
			end()
			first = number
		}
		last = number
	}
	end()
	return strings.Join(runs, " ")
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
			first := l.join(50)
			require.Equal(t, "1-50", first.take(50))
			second := l.join(c.second)
			require.NoError(t, first.ch.Close())
			require.Equal(t, c.holds, second.take(c.second))
			third := l.join(50)
			require.NoError(t, second.ch.Close())
			var got string
			for range 200 { // a prefetch of 50, so ack one by one
				got += third.take(1) + " "
				require.NoError(t, third.held[len(third.held)-1].Ack(false))
			}
			require.Equal(t, numbers(t, c.third), strings.TrimSpace(got))
		})
	}
}

// numbers writes runs in full: 1-3 5 becomes 1 2 3 5.
func numbers(t *testing.T, runs string) string {
	t.Helper()
	var all []string
	for _, run := range strings.Fields(runs) {
		first, last, ok := strings.Cut(run, "-")
		if !ok {
			last = first
		}
		from, err := strconv.Atoi(first)
		require.NoError(t, err)
		to, err := strconv.Atoi(last)
		require.NoError(t, err)
		for i := from; i <= to; i++ {
			all = append(all, strconv.Itoa(i))
		}
	}
	return strings.Join(all, " ")
}

// Given a consumer that holds messages, when it gives one back and gets it again, then the next
// consumer gets that message after the others: the order of deliveries counts (F50).
func TestAMessageGivenBackLosesItsPlace(t *testing.T) {
	t.Parallel()
	l := newLine(t, testbroker.URL(t), 60)
	first := l.join(50)
	require.Equal(t, "1-50", first.take(50))
	second := l.join(50)
	require.NoError(t, first.held[24].Nack(false, true))
	require.Equal(t, "25", first.take(1), "it comes again before 51")
	require.NoError(t, first.ch.Close())
	require.Equal(t, "1-24 26-50 25", second.take(50))
}

// Given a consumer that holds messages, when it cancels, then the next consumer gets the messages
// behind them at once (F50).
func TestACancelLetsTheNextConsumerOvertake(t *testing.T) {
	t.Parallel()
	l := newLine(t, testbroker.URL(t), 60)
	first := l.join(50)
	require.Equal(t, "1-50", first.take(50))
	second := l.join(50)
	require.NoError(t, first.ch.Cancel(first.held[0].ConsumerTag, false))
	require.Equal(t, "51-60", second.take(10))
	require.NoError(t, first.ch.Close())
	require.Equal(t, "1-40", second.take(40))
}

// Given a cluster and a consumer that holds messages, when its node loses the links to the other
// nodes for a moment, then the next consumer gets the messages. The first is not told, its acks
// remove nothing, and it gets them again, when the next consumer ends. From 4.3 on the first one
// stays active, because the broker waits for its node (F53).
func TestAConsumerIsNotToldThatItLostItsQueue(t *testing.T) {
	t.Parallel()
	c := testbroker.PrivateCluster(t, 3)
	l := newLine(t, c.Node(2).URL(), 60)
	first := l.joinAt(c.Node(1).URL(), 50)
	require.Equal(t, "1-50", first.take(50))
	next := l.joinAt(c.Node(0).URL(), 50)
	c.Node(1).Ctl(t, "eval", "[erlang:disconnect_node(N) || N <- nodes()].")
	if strings.HasPrefix(c.Node(0).Version(), "4.3") {
		require.NoError(t, first.held[0].Ack(false))
		require.Equal(t, "51", first.take(1))
		require.Empty(t, next.in)
		return
	}
	require.Equal(t, "1-50", next.take(50))
	for _, d := range first.held {
		require.NoError(t, d.Ack(false))
	}
	require.NoError(t, next.ch.Close())
	require.Equal(t, "1-50", first.take(50))
	require.False(t, first.ch.IsClosed())
}
