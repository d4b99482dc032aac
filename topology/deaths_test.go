package topology_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
)

const (
	// waitingBehind is how many deliveries are prefetched beyond the concurrency.
	waitingBehind = 10
	// helpless is how long a process may take to put a message out of danger. Then it dies all the
	// same.
	helpless = 10 * time.Second
)

// deathLimits are the delivery limits of the main queue, by what is declared.
var deathLimits = []string{"3", "8", "default", "none"}

// deathLimit returns the arguments of a quorum queue, and how often the broker gives a message back
// before it drops it (F2).
func deathLimit(t *testing.T, declared, version string) (amqp.Table, int64) {
	t.Helper()
	args := amqp.Table{"x-queue-type": "quorum"}
	old := strings.HasPrefix(version, "3.")
	switch {
	case declared == "default" && old:
		return args, math.MaxInt64
	case declared == "default":
		return args, 20
	case declared == "none" && old:
		args["x-delivery-limit"] = int64(1 << 30) // -1 means 0 there (F2)
		return args, math.MaxInt64
	case declared == "none":
		args["x-delivery-limit"] = int64(-1)
		return args, math.MaxInt64
	}
	var n int64
	_, err := fmt.Sscan(declared, &n)
	require.NoError(t, err)
	args["x-delivery-limit"] = n
	return args, n
}

// cells are those of the tables that run at once: each has up to a hundred handlers.
var cells = make(chan struct{}, 4)

// cell waits for a place, and returns what gives it back.
func cell() (leave func()) {
	cells <- struct{}{}
	return func() { <-cells }
}

// mourned is a queue whose consumers die one after the other.
type mourned struct {
	t           *testing.T
	url, queue  string
	args        amqp.Table
	limit       int64
	concurrency int
	moments     *rand.Rand
	handle      func(m *mortal, body string) error

	mu        sync.Mutex
	look      *amqp.Channel // of the test itself
	published map[string]bool
	handled   map[string]int
	reasons   map[string]string // of dead letters
	nearEnd   []string          // will be dropped if one more consumer dies with them
	patience  time.Duration     // for a process that has messages near their end
	late      int               // deaths that came to messages near their end
}

func newMourned(
	t *testing.T, conn *amqp.Connection, url string, concurrency int, declared string,
) *mourned {
	t.Helper()
	version, _ := conn.Properties["version"].(string)
	args, limit := deathLimit(t, declared, version)
	look, err := conn.Channel()
	require.NoError(t, err)
	require.NoError(t, look.Confirm(false))
	m := &mourned{
		t: t, url: url, queue: testbroker.Queue(t), args: args, limit: limit, look: look,
		concurrency: concurrency, patience: helpless,
		moments:   rand.New(rand.NewPCG(uint64(concurrency), uint64(limit))),
		published: map[string]bool{}, handled: map[string]int{}, reasons: map[string]string{},
	}
	removePlan(t, url, topology.PerQueue{}, m.queue, []time.Duration{time.Second})
	_, err = look.QueueDeclare(m.queue, true, false, false, false, args)
	require.NoError(t, err)
	return m
}

// fill publishes until n messages are neither handled nor dead.
func (q *mourned) fill(n int) {
	q.t.Helper()
	n -= len(q.open())
	q.mu.Lock()
	defer q.mu.Unlock()
	var last *amqp.DeferredConfirmation
	for range n {
		body := fmt.Sprintf("message %d", len(q.published))
		confirm, err := q.look.PublishWithDeferredConfirm("", q.queue, true, false,
			amqp.Publishing{Body: []byte(body), DeliveryMode: amqp.Persistent})
		require.NoError(q.t, err)
		q.published[body] = true
		last = confirm
	}
	if last != nil {
		require.True(q.t, last.Wait())
	}
}

// open returns the messages that are neither handled nor dead.
func (q *mourned) open() []string {
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

// depth returns how many messages are ready, 0 if there is no such queue yet. q.mu is held.
func (q *mourned) depth(name string) int {
	if len(q.published) == 0 { // nothing was declared yet
		return 0
	}
	return readyIn(q.t, q.look, name)
}

// readyIn returns how many messages of a queue are ready, for those who look often: testbroker.Depth
// makes a connection each time.
func readyIn(t *testing.T, ch *amqp.Channel, queue string) int {
	t.Helper()
	found, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
	require.NoError(t, err)
	return found.Messages
}

// begin starts a process on the queue.
func (q *mourned) begin() *mortal {
	q.t.Helper()
	cfg := queueConfig(q.url)
	cfg.Queue.Arguments = q.args
	cfg.Consume.Qos.PrefetchCount = q.concurrency + waitingBehind
	return start(q.t, cfg, q.queue, q.concurrency, func(m *mortal, msg *message.Message) error {
		return q.handle(m, string(msg.Payload))
	})
}

// done notes that a message was handled, unless the process is dead.
func (q *mourned) done(m *mortal, body string) error {
	if !m.alive(func() { q.mu.Lock(); defer q.mu.Unlock(); q.handled[body]++ }) {
		return errDead
	}
	return nil
}

// atRisk reports whether a death now may have the broker drop a message: one was delivered that has
// come as often as the limit allows, or may be on its way. Nothing is on its way when as many are
// unacked as may be, or when the queue is empty and all that are near their end have arrived.
func (q *mourned) atRisk(m *mortal) bool {
	unacked, nearEnd := m.deliveries.inHand(q.limit)
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
	_, nearEnd = m.deliveries.inHand(q.limit)
	return ready > 0 || !m.deliveries.haveSeen(expected) || len(nearEnd) > 0
}

// kill ends a process as soon as it has had the chance to put the messages out of danger that one
// more death would drop. No implementation can help a process that dies before. The first time the
// process has as long as helpless says; afterwards it has proved that it does not use the chance.
func (q *mourned) kill(m *mortal) {
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
		case <-m.dead:
			return
		case <-ended.C:
		}
		q.mu.Lock()
		q.patience, q.late = 0, q.late+1
		q.mu.Unlock()
		break
	}
	m.die()
	_, next := m.deliveries.inHand(q.limit - 1)
	q.mu.Lock()
	q.nearEnd = next
	q.mu.Unlock()
}

// stillness says when no message is anywhere any more, so that the missing ones are taken for lost.
type stillness struct {
	since time.Time
	looks int
}

// look reports whether there was nothing for five seconds and at fifty looks, because a busy
// machine may take seconds for one.
func (s *stillness) look(something bool) bool {
	if something || s.looks == 0 {
		*s = stillness{since: time.Now()}
	}
	s.looks++
	return s.looks > 50 && time.Since(s.since) > 5*time.Second
}

// outlives reports whether the process lives until nothing is open, or until no message is anywhere
// because the open ones are lost.
func (q *mourned) outlives(m *mortal) bool {
	q.t.Helper()
	var still stillness
	over := false
	testbroker.WaitFor(q.t, "the process to die, or to handle everything", patience, func() bool {
		select {
		case <-m.dead:
			return true
		default:
		}
		over = len(q.open()) == 0 || still.look(q.left(m) > 0)
		return over
	})
	return over
}

// left is how many messages are ready, unacked or waiting.
func (q *mourned) left(m *mortal) int {
	unacked, _ := m.deliveries.inHand(0)
	q.mu.Lock()
	defer q.mu.Unlock()
	return unacked + q.depth(q.queue) + q.depth(q.queue+".wait.1s")
}

// requireNothingLost fails the test for messages that are neither handled nor dead.
func (q *mourned) requireNothingLost() {
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

// A process dies again and again with all that it has in hand, at random moments and at once; the next
// one lives on. Every message is handled or dead-lettered in the end, whatever the delivery limit.
//
// A death waits for the process to put the messages out of danger that the broker would drop with
// it, because a process that has no time for that cannot be helped; see mourned.kill.
func TestManyDeathsLoseNothing(t *testing.T) {
	t.Parallel()
	deaths := 24 // more than the default limit
	if os.Getenv("MILLPOND_LONG") != "" {
		deaths = 40
	}
	url := testbroker.URL(t)
	conn := testbroker.Dial(t, url)
	var all sync.WaitGroup
	for _, concurrency := range []int{1, 10, 40, 100} {
		for _, declared := range deathLimits {
			for _, life := range []string{"longer", "shorter"} {
				name := fmt.Sprintf("concurrency %d, limit %s, %s than a handler", concurrency, declared, life)
				all.Go(func() {
					defer cell()()
					t.Run(name, func(t *testing.T) {
						dieOften(t, newMourned(t, conn, url, concurrency, declared), life == "longer", deaths)
					})
				})
			}
		}
	}
	all.Wait()
}

func dieOften(t *testing.T, q *mourned, longer bool, deaths int) {
	var last atomic.Bool
	q.handle = func(m *mortal, body string) error {
		if !longer && !last.Load() {
			<-m.dead
			return errDead
		}
		select {
		case <-time.After(5 * time.Millisecond):
			return q.done(m, body)
		case <-m.dead:
			return errDead
		}
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
	require.True(t, q.outlives(q.begin()))
	q.requireNothingLost()
}

// delivered waits for the first delivery. It reports false where all messages are lost.
func (q *mourned) delivered(m *mortal) bool {
	q.t.Helper()
	var still stillness
	found := false
	testbroker.WaitFor(q.t, "a delivery", patience, func() bool {
		select {
		case <-m.deliveries.first:
			found = true
			return true
		default:
			return still.look(q.left(m) > 0)
		}
	})
	return found
}

// One message kills the process whenever it is handled, faster than any of those beside it is
// handled. It alone is dead-lettered, the others are handled, whatever the delivery limit.
func TestOnlyThePoisonOfManyDeathsIsDeadLettered(t *testing.T) {
	t.Parallel()
	const maxDeaths = 60
	url := testbroker.URL(t)
	conn := testbroker.Dial(t, url)
	var all sync.WaitGroup
	for _, concurrency := range []int{1, 10, 40, 100} {
		for _, declared := range deathLimits {
			all.Go(func() {
				defer cell()()
				t.Run(fmt.Sprintf("concurrency %d, limit %s", concurrency, declared), func(t *testing.T) {
					q := newMourned(t, conn, url, concurrency, declared)
					messages := concurrency + 2*waitingBehind
					poison := fmt.Sprintf("message %d", q.moments.IntN(messages))
					q.handle = func(m *mortal, body string) error {
						if body == poison {
							q.kill(m)
						}
						select {
						case <-time.After(20 * time.Millisecond):
							return q.done(m, body)
						case <-m.dead:
							return errDead
						}
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
