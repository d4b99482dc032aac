package operate_test

import (
	"cmp"
	"fmt"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/operate"
)

// types are the kinds of queue that every command is run with.
var types = []topology.QueueType{topology.Quorum, topology.Classic}

// forTypes runs a parallel test with each of them.
func forTypes(t *testing.T, test func(t *testing.T, b *box)) {
	t.Helper()
	t.Parallel()
	eachType(t, test)
}

func eachType(t *testing.T, test func(t *testing.T, b *box)) {
	t.Helper()
	for _, kind := range types {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			test(t, newBox(t, kind))
		})
	}
}

// box is a queue with its dead-letter queue, and an operator.
type box struct {
	*operate.Operator
	t           testing.TB
	url         string
	queue, dead string
	strategy    topology.PerQueue
	plan        topology.Plan
}

func newBox(t testing.TB, kind topology.QueueType, options ...operate.Option) *box {
	t.Helper()
	strategy := topology.PerQueue{Type: kind}
	return newBoxAt(t, testbroker.URL(t), testbroker.Queue(t), strategy, options...)
}

func newBoxAt(
	t testing.TB, url, queue string, strategy topology.PerQueue, options ...operate.Option,
) *box {
	t.Helper()
	b := &box{t: t, url: url, queue: queue, strategy: strategy}
	// Most nodes have no management API.
	b.Operator = rig.OpenOperator(t, url, append(options, operate.WithoutPolicyCheck())...)
	kind := cmp.Or(string(strategy.Type), "quorum")
	rig.DeclareQueue(t, b.url, queue, amqp.Table{"x-queue-type": kind})
	b.delayBy(time.Second, time.Hour)
	b.dead = b.plan.Dead.RoutingKey
	testbroker.Delete(t, b.dead+".originals")
	return b
}

// delayBy gives the queue a plan with these delays.
func (b *box) delayBy(delays ...time.Duration) {
	b.t.Helper()
	b.plan = rig.PlanFor(b.t, b.queue, b.strategy, backoff.List(delays))
	testbroker.Delete(b.t, rig.QueueNames(b.plan)...)
	require.NoError(b.t, b.Declare(b.t.Context(), b.plan))
}

// opened is an operator and the plan of a queue.
func opened(
	t testing.TB, url, queue string, strategy topology.Strategy, policy backoff.Policy,
	options ...operate.Option,
) (*operate.Operator, topology.Plan) {
	t.Helper()
	return rig.OpenOperator(t, url, options...), rig.PlanFor(t, queue, strategy, policy)
}

// publish publishes confirmed to a queue.
func (b *box) publish(queue string, messages ...amqp.Publishing) {
	b.t.Helper()
	rig.Post(b.t, b.url, queue, messages...)
}

// died is when message i of box.die became a dead letter.
func died(i int) time.Time { return time.Date(2026, 3, 1, 12, 0, i, 0, time.UTC) }

// change makes message i another one.
type change = func(i int, notes *header.RetryState, m *amqp.Publishing)

// failed publishes n messages that failed, with the bodies of numbered, and with their notes as
// headers. Headers that a change sets stay.
func (b *box) failed(
	queue string, n int, headers func(header.RetryState, string) map[string]string,
	changes ...change,
) {
	b.t.Helper()
	messages := make([]amqp.Publishing, 0, n)
	for i, body := range numbered(0, n) {
		notes := header.RetryState{}
		m := amqp.Publishing{
			MessageId: fmt.Sprint("order-", i), CorrelationId: "c", ContentType: "application/json",
			Timestamp: died(0), Headers: amqp.Table{"tenant": int32(i % 3)}, Body: []byte(body),
		}
		for _, change := range changes {
			change(i, &notes, &m)
		}
		for key, value := range headers(notes, b.queue) {
			if _, changed := m.Headers[key]; !changed {
				m.Headers[key] = value
			}
		}
		messages = append(messages, m)
	}
	b.publish(queue, messages...)
}

// die publishes n dead letters, as they come from a handler.
func (b *box) die(n int, changes ...change) {
	b.t.Helper()
	dead := func(i int, notes *header.RetryState, _ *amqp.Publishing) {
		*notes = header.RetryState{
			Failures: 3, Reason: header.ReasonExhausted, Error: "connection refused",
			Class: header.ClassRetryable, Handler: "ship", DeadAt: died(i),
			OriginExchange: "shop", OriginRoutingKey: "order.placed",
			History: []header.AttemptError{{
				Attempt: 3, At: died(i), Handler: "ship", Error: "connection refused",
				Class: header.ClassRetryable, Reason: header.ReasonExhausted,
			}},
		}
	}
	b.failed(b.dead, n, header.RetryState.DeadHeaders, append([]change{dead}, changes...)...)
}

// other declares a queue that the plan does not know.
func (b *box) other(args amqp.Table) string {
	b.t.Helper()
	name := testbroker.Queue(b.t)
	rig.DeclareQueue(b.t, b.url, name, args)
	return name
}

// bodies takes all messages out of a queue; n is how many must be there at least.
func (b *box) bodies(queue string, n int) []string {
	b.t.Helper()
	return rig.Bodies(b.drain(queue, n))
}

func (b *box) drain(queue string, n int) []amqp.Delivery {
	b.t.Helper()
	return rig.Drain(b.t, b.url, queue, n)
}

// holds takes all messages out of a queue and requires that they are these, by the numbers of their
// IDs, in this order.
func (b *box) holds(queue, numbers string) {
	b.t.Helper()
	var got []string
	for _, d := range b.drain(queue, len(strings.Fields(numbers))) {
		got = append(got, d.MessageId[strings.LastIndex(d.MessageId, "-")+1:])
	}
	require.Equal(b.t, numbers, strings.Join(got, " "), queue)
}

// depth waits until a queue holds n messages.
func (b *box) depth(queue string, n int) {
	b.t.Helper()
	rig.AwaitDepth(b.t, b.url, queue, n)
}

// listError lists all dead letters and returns the last error.
func (b *box) listError() (err error) {
	for _, err = range b.Dead(b.t.Context(), b.plan, operate.Filter{}, 0) {
	}
	return err
}

// ok is the outcome of a call that ends without an error.
func (b *box) ok(p operate.Progress, err error) operate.Progress {
	b.t.Helper()
	require.NoError(b.t, err)
	return p
}

// replay moves letters and requires that there is no error.
func (b *box) replay(options operate.MoveOptions) operate.Progress {
	b.t.Helper()
	return b.ok(b.Replay(b.t.Context(), b.plan, options))
}

// letters lists what filter chooses.
func (b *box) letters(filter operate.Filter) []operate.Letter {
	b.t.Helper()
	var found []operate.Letter
	for l, err := range b.Dead(b.t.Context(), b.plan, filter, 0) {
		require.NoError(b.t, err)
		found = append(found, l)
	}
	return found
}
