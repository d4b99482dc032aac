package e2e_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/keys"
	"github.com/millpond-go/millpond/internal/testing/memnet"
	"github.com/millpond-go/millpond/internal/testing/peer"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
)

const (
	// crashQueueVar tells this test binary to be the service of TestCrashLoopEnds on a queue.
	crashQueueVar = "MILLPOND_TEST_CRASH_QUEUE"
	// crashInFlightVar tells the service its concurrency.
	crashInFlightVar = "MILLPOND_TEST_CRASH_IN_FLIGHT"
)

// Given a quorum queue with its default limit and 49 innocent messages, when one message kills
// each process (-9) that handles it, then it is alone in the DLQ within 15 restarts. The others
// are handled, and none has lost an attempt (C10). With all 50 in progress at once, the poison is
// faster than each of the others.
func TestCrashLoopEnds(t *testing.T) {
	if queue := os.Getenv(crashQueueVar); queue != "" {
		crash(t, os.Getenv("AMQP_URL"), queue)
		return
	}
	t.Parallel()
	for _, c := range []struct{ position, inFlight int }{{0, 1}, {25, 1}, {25, 50}} {
		t.Run(fmt.Sprintf("poison at %d, %d in flight", c.position, c.inFlight), func(t *testing.T) {
			t.Parallel()
			const messages, maxRestarts = 50, 15
			url, queue := testbroker.URL(t), testbroker.Queue(t)
			rig.RemovePlan(t, url, topology.PerQueue{}, queue, []time.Duration{time.Second})
			rig.DeclareQueue(t, url, queue, amqp.Table{"x-queue-type": "quorum"})
			for i := range messages {
				body := fmt.Sprint("innocent ", i)
				if i == c.position {
					body = "poison"
				}
				rig.Publish(t, url, "", queue, rig.Message(body))
			}

			handled := map[string]int{}
			deadline := time.Now().Add(2 * rig.Patience)
			restarts := 0
			for ; testbroker.Depth(t, url, queue+".dlq") != 1; restarts++ {
				require.LessOrEqual(t, restarts, maxRestarts, "restarts")
				require.True(t, time.Now().Before(deadline), "in time")
				runUntilItDies(t, url, queue, c.inFlight, handled)
			}
			t.Logf("%d restarts", restarts)
			for i := range messages {
				if i != c.position {
					body := fmt.Sprint("innocent ", i, " attempt 1")
					require.Positive(t, handled[body], "%s: %v", body, handled)
				}
			}
			dead := rig.Take(t, url, queue+".dlq")
			require.Equal(t, "poison", string(dead.Body))
			rig.RequireDead(t, dead, "crash_loop", "0")
			require.Zero(t, testbroker.Depth(t, url, queue))
			require.Zero(t, testbroker.Depth(t, url, queue+".wait.1s"))
		})
	}
}

// runUntilItDies runs the service until the poison kills it, or until the poison is a dead letter
// and nothing is left. It counts the handled messages.
func runUntilItDies(t *testing.T, url, queue string, inFlight int, handled map[string]int) {
	t.Helper()
	child := exec.Command(os.Args[0], "-test.run=^TestCrashLoopEnds$")
	child.Env = append(os.Environ(), "AMQP_URL="+url,
		crashQueueVar+"="+queue, crashInFlightVar+"="+strconv.Itoa(inFlight))
	out, err := child.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, child.Start())
	died := make(chan struct{})
	go func() {
		defer close(died)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if body, ok := strings.CutPrefix(lines.Text(), "handled "); ok {
				handled[body]++
			}
		}
		_ = child.Wait() // killed
	}()
	rig.WaitFor(t, "the service to die or the poison to be a dead letter", func() bool {
		select {
		case <-died:
			return true
		default:
			return testbroker.Depth(t, url, queue+".dlq") == 1 &&
				testbroker.Depth(t, url, queue) == 0 && testbroker.Depth(t, url, queue+".wait.1s") == 0
		}
	})
	_ = child.Process.Signal(syscall.SIGTERM) // a kill could come between the confirm and the ack
	<-died
}

// crash is the service. Its handler kills the process over one message.
func crash(t *testing.T, url, queue string) {
	cfg := rig.QueueConfig(url)
	cfg.Consume.Qos.PrefetchCount = 50
	rig.QuorumQueue(&cfg)
	policy := backoff.List{time.Second}
	client, err := topology.Open(context.Background(), cfg.Connection, topology.PerQueue{})
	require.NoError(t, err)
	inFlight, err := strconv.Atoi(os.Getenv(crashInFlightVar))
	require.NoError(t, err)
	options := append(rig.InFlight(inFlight), topology.ForPolicy(policy))
	sub, err := client.NewSubscriber(cfg, options...)
	require.NoError(t, err)
	router := rig.Router(t, client, policy, message.RouterConfig{}, watermill.NopLogger{}, nil)
	router.AddConsumerHandler("handler", queue, sub, func(msg *message.Message) error {
		if string(msg.Payload) == "poison" {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
		if inFlight > 1 {
			<-time.After(100 * time.Millisecond)
		}
		fmt.Printf("handled %s attempt %d\n", msg.Payload, middleware.Attempt(msg.Context()))
		return nil
	})
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	require.NoError(t, router.Run(ctx))
	require.NoError(t, client.Close())
}

const (
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
	cfg := rig.QueueConfig(q.url)
	cfg.Queue.Arguments = q.args
	cfg.Consume.Qos.PrefetchCount = q.concurrency + waitingBehind
	handle := func(m *rig.Mortal, msg *message.Message) error {
		return q.handle(m, string(msg.Payload))
	}
	return rig.StartMortal(q.t, cfg, q.queue, q.concurrency, handle)
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

// Given any delivery limit, when process after process dies with its messages in hand, at random
// moments and at once, and then one lives on, then every message is handled or a dead letter.
//
// A death waits until the process has put out of danger the messages that the broker would drop
// with it; see crashQueue.kill. Every pair of a concurrency, a limit and a length of life is tried,
// and with MILLPOND_LONG every combination.
func TestManyDeathsLoseNothing(t *testing.T) {
	t.Parallel()
	deaths, all := 24, os.Getenv("MILLPOND_LONG") != "" // more deaths than the default limit
	if all {
		deaths = 40
	}
	url := testbroker.URL(t)
	conn := testbroker.Dial(t, url)
	var runs sync.WaitGroup
	for i, concurrency := range []int{1, 10, 40, 100} {
		for j, declared := range rig.DeliveryLimits {
			for k, life := range []string{"longer", "shorter"} {
				if (i+j+k)%2 == 1 && !all {
					continue
				}
				name := fmt.Sprintf("concurrency %d, limit %s, %s than a handler", concurrency, declared, life)
				runs.Go(func() {
					defer rig.Place()()
					t.Run(name, func(t *testing.T) {
						q := newCrashQueue(t, conn, url, concurrency, declared)
						q.dieOften(life == "longer", deaths)
					})
				})
			}
		}
	}
	runs.Wait()
}

// Given a small delivery limit that only a policy sets, and a Client that cannot see policies, when
// process after process dies with its messages in hand, then every message is handled or a dead
// letter.
func TestManyDeathsLoseNothingUnderAnUnseenLimit(t *testing.T) {
	t.Parallel()
	node := testbroker.Private(t)
	node.Ctl(t, "set_policy", "--apply-to", "queues", "small", ".*", `{"delivery-limit":8}`)
	conn := testbroker.Dial(t, node.URL())
	for _, concurrency := range []int{1, 10, 40} {
		t.Run(fmt.Sprintf("concurrency %d", concurrency), func(t *testing.T) {
			t.Parallel()
			q := newCrashQueue(t, conn, node.URL(), concurrency, "default")
			q.limit = 8
			q.dieOften(false, 24)
		})
	}
}

// dieOften lets processes die and one live on. They live longer or shorter than a handler runs.
func (q *crashQueue) dieOften(longer bool, deaths int) {
	q.t.Helper()
	var last atomic.Bool
	q.handle = func(m *rig.Mortal, body string) error {
		if !longer && !last.Load() {
			<-m.Dead
			return rig.ErrDead
		}
		return q.work(m, body, 5*time.Millisecond)
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
	url := testbroker.URL(t)
	conn := testbroker.Dial(t, url)
	var all sync.WaitGroup
	for _, concurrency := range []int{1, 10, 40, 100} {
		for _, declared := range rig.DeliveryLimits {
			all.Go(func() {
				defer rig.Place()()
				t.Run(fmt.Sprintf("concurrency %d, limit %s", concurrency, declared), func(t *testing.T) {
					q := newCrashQueue(t, conn, url, concurrency, declared)
					messages := concurrency + 2*waitingBehind
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
			})
		}
	}
	all.Wait()
}

// Given suspects of the crash guard in two queues of one Client, when the handlers of one queue are
// slow, then the messages of the other are all handled at once: its suspects have their own line.
func TestSuspectsOfOneQueueDoNotStopAnother(t *testing.T) {
	t.Parallel()
	rig.Virtually(t, func(t *testing.T, broker *peer.Server) {
		var quick atomic.Int64
		closeRouter := withSuspects(t, broker, map[string]message.NoPublishHandlerFunc{
			"slow": func(*message.Message) error {
				<-time.After(20 * time.Second)
				return nil
			},
			"quick": func(*message.Message) error {
				quick.Add(1)
				return nil
			},
		})
		for range 100 {
			rig.Publish(t, broker.URL(), "", "quick", amqp.Publishing{})
		}
		<-time.After(time.Second)
		require.EqualValues(t, 116, quick.Load())
		<-time.After(10 * time.Minute) // Watermill's Close holds a lock while a handler works
		closeRouter()
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
		handle := func(*message.Message) error {
			if tried.Add(1) == 1 {
				return middleware.Permanent(errors.New("refused"))
			}
			return nil
		}
		closeRouter := withSuspects(t, broker,
			map[string]message.NoPublishHandlerFunc{"orders": handle})
		defer closeRouter()
		<-time.After(2 * time.Minute) // the confirm timeout, twice, and the time of a new declaration
		require.EqualValues(t, 16, tried.Load())
	})
}

// Given messages with the mark of the crash guard, when they come from a producer, then they are
// handled beside each other as any other. Messages that are back from a wait queue are tried one at
// a time.
func TestOnlyAMarkFromAWaitQueueMakesASuspect(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		headers  func(queue string) amqp.Table
		together int
	}{
		"from a wait queue": {rig.Suspect, 1},
		"forged": {func(queue string) amqp.Table {
			return amqp.Table{header.Queue: queue, keys.Interruptions: "1"}
		}, 16},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rig.Virtually(t, func(t *testing.T, broker *peer.Server) {
				handlers := rig.NewBusy()
				r := rig.Start(t, rig.Config{
					URL: broker.URL(), Queue: testbroker.Queue(t), Policy: backoff.List{time.Second},
					Configure: rig.QuorumQueue, SubscriberOptions: rig.InFlight(16),
					Handle: func(msg *message.Message) error {
						defer handlers.Enter(string(msg.Payload))()
						<-time.After(100 * time.Millisecond)
						return nil
					},
				})
				for i := range 100 {
					msg := rig.Named(fmt.Sprint(i))
					msg.Headers = c.headers(r.Queue)
					r.Publish(msg)
				}
				<-time.After(11 * time.Second)
				require.Equal(t, []int{100, c.together}, []int{handlers.Total(), handlers.Peak()})
				r.RequireNothingLeft(0)
			})
		})
	}
}

// withSuspects runs handlers of queues, and sends 16 suspects to each queue.
func withSuspects(
	t *testing.T, broker *peer.Server, handlers map[string]message.NoPublishHandlerFunc,
) (closeRouter func()) {
	t.Helper()
	policy := backoff.List{time.Second}
	cfg := rig.QueueConfig(broker.URL())
	rig.QuorumQueue(&cfg)
	cfg.Connection.AmqpConfig = &amqp.Config{Dial: memnet.Dial}
	logs := &rig.Logs{}
	client, err := topology.Open(t.Context(), cfg.Connection, topology.PerQueue{},
		topology.WithLogger(logs))
	require.NoError(t, err)
	sub, err := client.NewSubscriber(cfg, topology.ForPolicy(policy), topology.WithConcurrency(4))
	require.NoError(t, err)
	router := rig.Router(t, client, policy, message.RouterConfig{}, logs, nil)
	for queue, handle := range handlers {
		require.NoError(t, sub.SubscribeInitialize(queue))
		router.AddConsumerHandler(queue, queue, sub, handle)
		for range 16 {
			rig.Publish(t, broker.URL(), "", queue, amqp.Publishing{
				Headers: rig.Suspect(queue),
			})
		}
	}
	rig.Run(t, router)
	return func() {
		require.NoError(t, router.Close())
		require.NoError(t, client.Close())
	}
}
