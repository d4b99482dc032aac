package topology_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/millpond-go/millpond/internal/testing/rig"

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

func newMourned(
	t *testing.T, conn *amqp.Connection, url string, concurrency int, declared string,
) *mourned {
	t.Helper()
	version, _ := conn.Properties["version"].(string)
	args, limit := rig.DeliveryLimit(t, declared, version)
	look, err := conn.Channel()
	require.NoError(t, err)
	require.NoError(t, look.Confirm(false))
	m := &mourned{
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
func (q *mourned) fill(n int) {
	q.t.Helper()
	n -= len(q.open())
	q.mu.Lock()
	defer q.mu.Unlock()
	var last *amqp.DeferredConfirmation
	for range n {
		body := fmt.Sprintf("message %d", len(q.published))
		confirm, err := q.look.PublishWithDeferredConfirm("", q.queue, true, false,
			rig.Message(body))
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
	return rig.Ready(q.t, q.look, name)
}

// begin starts a process on the queue.
func (q *mourned) begin() *rig.Mortal {
	q.t.Helper()
	cfg := rig.QueueConfig(q.url)
	cfg.Queue.Arguments = q.args
	cfg.Consume.Qos.PrefetchCount = q.concurrency + waitingBehind
	return rig.StartMortal(q.t, cfg, q.queue, q.concurrency, func(m *rig.Mortal, msg *message.Message) error {
		return q.handle(m, string(msg.Payload))
	})
}

// done notes that a message was handled, unless the process is dead.
func (q *mourned) done(m *rig.Mortal, body string) error {
	if !m.Alive(func() { q.mu.Lock(); defer q.mu.Unlock(); q.handled[body]++ }) {
		return rig.ErrDead
	}
	return nil
}

// atRisk reports whether a death now may have the broker drop a message: one was delivered that has
// come as often as the limit allows, or may be on its way. Nothing is on its way when as many are
// unacked as may be, or when the queue is empty and all that are near their end have arrived.
func (q *mourned) atRisk(m *rig.Mortal) bool {
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

// kill ends a process as soon as it has had the chance to put the messages out of danger that one
// more death would drop. No implementation can help a process that dies before. The first time the
// process has as long as helpless says; afterwards it has proved that it does not use the chance.
func (q *mourned) kill(m *rig.Mortal) {
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

// outlives reports whether the process lives until nothing is open, or until no message is anywhere
// because the open ones are lost.
func (q *mourned) outlives(m *rig.Mortal) bool {
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

// left is how many messages are ready, unacked or waiting.
func (q *mourned) left(m *rig.Mortal) int {
	unacked, _ := m.Deliveries.InHand(0)
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
		for _, declared := range rig.DeliveryLimits {
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
	q.handle = func(m *rig.Mortal, body string) error {
		if !longer && !last.Load() {
			<-m.Dead
			return rig.ErrDead
		}
		select {
		case <-time.After(5 * time.Millisecond):
			return q.done(m, body)
		case <-m.Dead:
			return rig.ErrDead
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
func (q *mourned) delivered(m *rig.Mortal) bool {
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

// One message kills the process whenever it is handled, faster than any of those beside it is
// handled. It alone is dead-lettered, the others are handled, whatever the delivery limit.
func TestOnlyThePoisonOfManyDeathsIsDeadLettered(t *testing.T) {
	t.Parallel()
	const maxDeaths = 60
	url := testbroker.URL(t)
	conn := testbroker.Dial(t, url)
	var all sync.WaitGroup
	for _, concurrency := range []int{1, 10, 40, 100} {
		for _, declared := range rig.DeliveryLimits {
			all.Go(func() {
				defer cell()()
				t.Run(fmt.Sprintf("concurrency %d, limit %s", concurrency, declared), func(t *testing.T) {
					q := newMourned(t, conn, url, concurrency, declared)
					messages := concurrency + 2*waitingBehind
					poison := fmt.Sprintf("message %d", q.moments.IntN(messages))
					q.handle = func(m *rig.Mortal, body string) error {
						if body == poison {
							q.kill(m)
						}
						select {
						case <-time.After(20 * time.Millisecond):
							return q.done(m, body)
						case <-m.Dead:
							return rig.ErrDead
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
