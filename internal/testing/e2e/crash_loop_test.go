package e2e_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
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

const (
	// suspects is the number of messages that the crash guard tries one at a time.
	suspects = 10
	// waitingBehind is the number of prefetched deliveries beyond the concurrency.
	waitingBehind = 10
	// helpless is the time that a process may take to put a message out of danger. Then it dies all
	// the same.
	helpless = 10 * time.Second
)

// crashQueue is a queue. Its consumers die one after the other.
type crashQueue struct {
	t           *testing.T
	url, queue  string
	args        amqp.Table
	limit       int64
	concurrency int
	moments     *rand.Rand
	handle      func(m *rig.Mortal, body string) error

	mu        sync.Mutex
	look      *amqp.Channel // of the test itself
	published map[string]bool
	handled   map[string]int
	reasons   map[string]string // of dead letters
	nearEnd   []string          // will be dropped if one more consumer dies with them
	patience  time.Duration     // for a process that has messages near their end
	late      int               // deaths that came to messages near their end
}

func newCrashQueue(
	t *testing.T, conn *amqp.Connection, url string, concurrency int, declared string,
) *crashQueue {
	t.Helper()
	version, _ := conn.Properties["version"].(string)
	args, limit := rig.DeliveryLimit(t, declared, version)
	look, err := conn.Channel()
	require.NoError(t, err)
	require.NoError(t, look.Confirm(false))
	m := &crashQueue{
		t: t, url: url, queue: testbroker.Queue(t), args: args, limit: limit, look: look,
		concurrency: concurrency, patience: helpless,
		moments:   rand.New(rand.NewPCG(uint64(concurrency), uint64(limit))),
		published: map[string]bool{}, handled: map[string]int{}, reasons: map[string]string{},
	}
	rig.RemovePlan(t, url, topology.PerQueue{}, m.queue, []time.Duration{time.Second})
	_, err = look.QueueDeclare(m.queue, true, false, false, false, args)
	require.NoError(t, err)
	return m
}

// fill publishes until n messages are neither handled nor dead.
func (q *crashQueue) fill(n int) {
	q.t.Helper()
	n -= len(q.open())
	q.mu.Lock()
	defer q.mu.Unlock()
	var last *amqp.DeferredConfirmation
	for range n {
		body := fmt.Sprintf("message %d", len(q.published))
		confirm, err := q.look.PublishWithDeferredConfirm("", q.queue, true, false, rig.Message(body))
		require.NoError(q.t, err)
		q.published[body] = true
		last = confirm
	}
	if last != nil {
		require.True(q.t, last.Wait())
	}
}

// open returns the messages that are neither handled nor dead.
func (q *crashQueue) open() []string {
	q.t.Helper()
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.depth(q.queue+".dlq") > 0 {
		dead, ok, err := q.look.Get(q.queue+".dlq", true)
		require.NoError(q.t, err)
		if ok {
			q.reasons[string(dead.Body)], _ = dead.Headers[header.DeadReason].(string)
		}
	}
	var found []string
	for body := range q.published {
		if _, dead := q.reasons[body]; !dead && q.handled[body] == 0 {
			found = append(found, body)
		}
	}
	return found
}

// depth returns the number of ready messages, 0 if there is no such queue yet. q.mu is held.
func (q *crashQueue) depth(name string) int {
	if len(q.published) == 0 { // nothing was declared yet
		return 0
	}
	return rig.Ready(q.t, q.look, name)
}

// begin starts a process on the queue.
func (q *crashQueue) begin() *rig.Mortal {
	q.t.Helper()
	c := rig.Config{URL: q.url, Queue: q.queue, Configure: func(cfg *wamqp.Config) {
		cfg.Queue.Arguments = q.args
		cfg.Consume.Qos.PrefetchCount = q.concurrency + waitingBehind
	}}
	handle := func(m *rig.Mortal, msg *message.Message) error {
		if attempt := middleware.Attempt(msg.Context()); attempt != 1 {
			q.t.Errorf("a death has cost an attempt: this is number %d", attempt)
		}
		return q.handle(m, string(msg.Payload))
	}
	return rig.StartMortal(q.t, c, q.concurrency, handle)
}

// work handles a message for a while, unless the process dies meanwhile.
func (q *crashQueue) work(m *rig.Mortal, body string, length time.Duration) error {
	select {
	case <-time.After(length):
	case <-m.Dead:
		return rig.ErrDead
	}
	if !m.Alive(func() { q.mu.Lock(); defer q.mu.Unlock(); q.handled[body]++ }) {
		return rig.ErrDead
	}
	return nil
}

// atRisk reports whether a death now may make the broker drop a message: a message that has come
// as often as the limit allows is here, or may be on its way. Nothing is on its way when the
// number of unacked messages is the largest possible. Nothing is on its way either when the queue
// is empty and all messages near their end have arrived.
func (q *crashQueue) atRisk(m *rig.Mortal) bool {
	unacked, nearEnd := m.Deliveries.InHand(q.limit)
	if len(nearEnd) > 0 {
		return true
	}
	if unacked >= q.concurrency+waitingBehind {
		return false
	}
	q.mu.Lock()
	ready := q.depth(q.queue)
	expected := q.nearEnd
	q.mu.Unlock()
	_, nearEnd = m.Deliveries.InHand(q.limit)
	return ready > 0 || !m.Deliveries.HaveSeen(expected) || len(nearEnd) > 0
}

// kill ends a process as soon as it has had the chance to put out of danger the messages that one
// more death would drop. No implementation can help a process that dies earlier. The first time
// the process has the time of helpless. Afterwards it has proved that it does not use the chance.
func (q *crashQueue) kill(m *rig.Mortal) {
	q.mu.Lock()
	limit := q.patience
	q.mu.Unlock()
	ended := time.NewTimer(limit)
	defer ended.Stop()
	ticker := time.NewTicker(2 * time.Millisecond)
	defer ticker.Stop()
	for q.atRisk(m) {
		select {
		case <-ticker.C:
			continue
		case <-m.Dead:
			return
		case <-ended.C:
		}
		q.mu.Lock()
		q.patience, q.late = 0, q.late+1
		q.mu.Unlock()
		break
	}
	m.Die()
	_, next := m.Deliveries.InHand(q.limit - 1)
	q.mu.Lock()
	q.nearEnd = next
	q.mu.Unlock()
}

// outlives reports whether the process lives until no message is open, or until no message is
// anywhere because the open ones are lost.
func (q *crashQueue) outlives(m *rig.Mortal) bool {
	q.t.Helper()
	var still rig.Stillness
	over := false
	rig.WaitFor(q.t, "the process to die, or to handle everything", func() bool {
		select {
		case <-m.Dead:
			return true
		default:
		}
		over = len(q.open()) == 0 || still.Look(q.left(m) > 0)
		return over
	})
	return over
}

// left counts the messages that are ready, unacked or waiting.
func (q *crashQueue) left(m *rig.Mortal) int {
	unacked, _ := m.Deliveries.InHand(0)
	q.mu.Lock()
	defer q.mu.Unlock()
	return unacked + q.depth(q.queue) + q.depth(q.queue+".wait.1s")
}

// requireNothingLost fails the test for messages that are neither handled nor dead.
func (q *crashQueue) requireNothingLost() {
	q.t.Helper()
	lost := q.open()
	q.mu.Lock()
	defer q.mu.Unlock()
	q.t.Logf("lost %d of %d, %d handled, %d dead letters %v, %d deaths with messages at their limit",
		len(lost), len(q.published), len(q.handled), len(q.reasons), counted(q.reasons), q.late)
	require.Zero(q.t, len(lost), "lost")
}

func counted(reasons map[string]string) map[string]int {
	n := map[string]int{}
	for _, reason := range reasons {
		n[reason]++
	}
	return n
}

// eachLimit runs a subtest for each concurrency under a small delivery limit, and for others, and
// numbers them. A limit of 8 is in TestManyDeathsLoseNothingUnderAnUnseenLimit.
func eachLimit(t *testing.T, run func(t *testing.T, q *crashQueue, i int)) {
	t.Helper()
	url := testbroker.URL(t)
	conn := testbroker.Dial(t, url)
	var all sync.WaitGroup
	for i, c := range []struct {
		concurrency int
		declared    string
	}{{100, "3"}, {10, "3"}, {1, "3"}, {100, "none"}, {10, "default"}} {
		all.Go(func() {
			defer rig.Place()()
			t.Run(fmt.Sprintf("concurrency %d, limit %s", c.concurrency, c.declared), func(t *testing.T) {
				run(t, newCrashQueue(t, conn, url, c.concurrency, c.declared), i)
			})
		})
	}
	all.Wait()
}

// Given any delivery limit, when process after process dies with its messages in hand, at random
// moments and at once, and then one lives on, then every message is handled or a dead letter.
//
// A death waits until the process has put out of danger the messages that the broker would drop
// with it; see crashQueue.kill.
func TestManyDeathsLoseNothing(t *testing.T) {
	t.Parallel()
	eachLimit(t, func(t *testing.T, q *crashQueue, i int) { q.dieOften(i%2 == 0) })
}

// Given a small delivery limit that only a policy sets, and a Client that cannot see policies, when
// process after process dies with its messages in hand, then every message is handled or a dead
// letter.
func TestManyDeathsLoseNothingUnderAnUnseenLimit(t *testing.T) {
	t.Parallel()
	url := ruledBy(t, "limited")
	conn := testbroker.Dial(t, url)
	for _, concurrency := range []int{1, 10, 40} {
		t.Run(fmt.Sprintf("concurrency %d", concurrency), func(t *testing.T) {
			t.Parallel()
			q := newCrashQueue(t, conn, url, concurrency, "default")
			q.limit = 8
			q.dieOften(false)
		})
	}
}

// dieOften lets more processes die than the delivery limit has deliveries, and one live on. They
// live longer or shorter than a handler runs.
func (q *crashQueue) dieOften(longer bool) {
	q.t.Helper()
	var last atomic.Bool
	q.handle = func(m *rig.Mortal, body string) error {
		if !longer && !last.Load() {
			<-m.Dead
			return rig.ErrDead
		}
		return q.work(m, body, 5*time.Millisecond)
	}
	deaths := int64(12)
	if q.limit < 1<<30 {
		deaths = q.limit + 4
	}
	for range deaths {
		m := q.begin()
		q.fill(q.concurrency + 2*waitingBehind)
		if !q.delivered(m) {
			break
		}
		if q.moments.IntN(5) > 0 { // else it dies at once
			<-time.After(time.Duration(q.moments.IntN(60)) * time.Millisecond)
		}
		q.kill(m)
	}
	last.Store(true)
	require.True(q.t, q.outlives(q.begin()))
	q.requireNothingLost()
}

// delivered waits for the first delivery. It reports false if all messages are lost.
func (q *crashQueue) delivered(m *rig.Mortal) bool {
	q.t.Helper()
	var still rig.Stillness
	found := false
	rig.WaitFor(q.t, "a delivery", func() bool {
		select {
		case <-m.Deliveries.First:
			found = true
			return true
		default:
			return still.Look(q.left(m) > 0)
		}
	})
	return found
}

// Given any delivery limit, when one message kills each process faster than the messages beside it
// are handled, then it alone is a dead letter, and the others are handled.
func TestOnlyThePoisonOfManyDeathsIsDeadLettered(t *testing.T) {
	t.Parallel()
	const maxDeaths = 60
	eachLimit(t, func(t *testing.T, q *crashQueue, _ int) {
		messages := q.concurrency + 2*waitingBehind
		poison := fmt.Sprintf("message %d", q.moments.IntN(messages))
		q.handle = func(m *rig.Mortal, body string) error {
			if body == poison {
				q.kill(m)
			}
			return q.work(m, body, 20*time.Millisecond)
		}
		deaths := -1
		for over := false; !over; {
			deaths++
			require.LessOrEqual(t, deaths, maxDeaths, "deaths")
			m := q.begin()
			if deaths == 0 {
				q.fill(messages)
			}
			over = q.outlives(m)
		}
		t.Logf("%d deaths", deaths)
		q.requireNothingLost()
		want := map[string]string{poison: string(header.ReasonCrashLoop)}
		require.Equal(t, want, q.reasons, "dead letters")
	})
}

// Given suspects of the crash guard in two queues of one Client, when the handlers of one queue are
// slow, then the messages of the other are all handled at once: its suspects have their own line.
func TestSuspectsOfOneQueueDoNotStopAnother(t *testing.T) {
	t.Parallel()
	rig.Virtually(t, func(t *testing.T, broker *peer.Server) {
		var quick atomic.Int64
		policy, logs := backoff.List{time.Second}, &rig.Logs{}
		cfg := rig.QueueConfig(broker.URL())
		rig.QuorumQueue(&cfg)
		client := rig.OpenWith(t, cfg.Connection, topology.PerQueue{}, topology.WithLogger(logs))
		sub, err := client.NewSubscriberWithoutRetry(cfg, topology.ForPolicy(policy),
			topology.WithConcurrency(4))
		require.NoError(t, err)
		router := rig.Router(t, message.RouterConfig{}, logs, rig.Retry(t, client, policy, logs))
		for queue, handle := range map[string]message.NoPublishHandlerFunc{
			"slow":  func(*message.Message) error { <-time.After(20 * time.Second); return nil },
			"quick": func(*message.Message) error { quick.Add(1); return nil },
		} {
			require.NoError(t, sub.SubscribeInitialize(queue))
			router.AddConsumerHandler(queue, queue, sub, handle)
			for range suspects {
				rig.Publish(t, broker.URL(), "", queue, amqp.Publishing{Headers: rig.Suspect(queue)})
			}
		}
		rig.Run(t, router)
		for range 100 {
			rig.Publish(t, broker.URL(), "", "quick", amqp.Publishing{})
		}
		<-time.After(time.Second)
		require.EqualValues(t, 100+suspects, quick.Load())
		<-time.After(10 * time.Minute) // Watermill's Close holds a lock while a handler works
		require.NoError(t, router.Close())
	})
}

// Given suspects of the crash guard, when the dead letter of the first one cannot be stored, then
// the others are tried: a turn that its owner cannot use passes on.
func TestASuspectThatIsHeldPassesItsTurnOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		broker := peer.Start(t, func(p *peer.Publish) {
			if p.RoutingKey != "orders.dlq" { // else it answers nothing
				rig.WaitQueues(p)
			}
		})
		var tried atomic.Int64
		r := rig.Start(t, rig.Config{
			URL: broker.URL(), Queue: "orders", Keep: true, Configure: rig.QuorumQueue,
			Policy: backoff.List{time.Second}, SubscriberOptions: rig.InFlight(4),
			Handle: func(*message.Message) error {
				if tried.Add(1) == 1 {
					return middleware.Permanent(rig.ErrFailed)
				}
				return nil
			},
		})
		for range suspects {
			r.Publish(amqp.Publishing{Headers: rig.Suspect(r.Queue)})
		}
		<-time.After(2 * time.Minute) // the confirm timeout, twice, and the time of a new declaration
		require.EqualValues(t, suspects, tried.Load())
	})
}

// Given messages with the mark of the crash guard, when they are back from a wait queue, then they
// are tried one at a time. Messages whose producer has forged the mark are handled beside them as
// any other. Close gives back messages whose turn has not come.
func TestOnlyAMarkFromAWaitQueueMakesASuspect(t *testing.T) {
	t.Parallel()
	const others = 30
	rig.Virtually(t, func(t *testing.T, broker *peer.Server) {
		tried, done := rig.NewCalls(), rig.NewCalls()
		next := make(chan struct{})
		run := func() *rig.Service {
			return rig.Start(t, rig.Config{
				URL: broker.URL(), Queue: "orders", Keep: true, Configure: rig.QuorumQueue,
				Policy: backoff.List{time.Second}, SubscriberOptions: rig.InFlight(64),
				Handle: func(msg *message.Message) error {
					body := string(msg.Payload)
					if strings.HasPrefix(body, "suspect") {
						defer tried.Enter(body)()
						select {
						case <-next:
						case <-msg.Context().Done():
							return msg.Context().Err()
						}
					}
					done.Handle(body)
					return nil
				},
			})
		}
		r := run()
		forged := amqp.Table{header.Queue: r.Queue, keys.Interruptions: "1"}
		for i := range suspects {
			r.Publish(amqp.Publishing{Headers: rig.Suspect(r.Queue), Body: fmt.Append(nil, "suspect ", i)})
		}
		for i := range others {
			r.Publish(amqp.Publishing{Headers: forged, Body: fmt.Append(nil, i)})
		}
		<-time.After(time.Second)
		require.Equal(t, others, done.Count())
		for i := range 3 {
			next <- struct{}{}
			<-time.After(time.Second)
			require.Equal(t, 2+i, tried.Count())
		}

		stopped := make(chan struct{})
		go func() { defer close(stopped); r.Stop() }()
		defer func() { <-stopped }()
		rig.WaitFor(t, "others to be given back", func() bool { return r.Depth("") > 0 })
		require.Equal(t, 1, tried.Now(), "the message in progress goes on")
		next <- struct{}{}
		<-stopped
		r = run()
		for range suspects - 4 {
			next <- struct{}{}
		}
		r.RequireNothingLeft(0)
		require.Equal(t, []int{suspects + others, 1}, []int{done.Count(), tried.Peak()})
	})
}
