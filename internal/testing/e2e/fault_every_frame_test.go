package e2e_test

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/peer"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
)

// Given a failed message on its way, when its connection is closed, reset or frozen at any place
// between two frames and heals, then nothing is acked before its copy is confirmed. Nothing is
// lost, and no attempt is burned. There is a second copy only if the outcome of the first copy was
// unknown.  Every fault runs in virtual time, against a peer.
func TestFaultsAtEveryFrame(t *testing.T) {
	t.Parallel()
	trials := newTrials("")
	faults := frameFaults(t, trials)
	require.Greater(t, len(faults), 200)
	trials.injectAll(t, faults)
}

// The same holds for every tenth fault on a real broker.
func TestFaultsAtFramesOfABroker(t *testing.T) {
	t.Parallel()
	// A broker of the test alone: a busy broker may hold messages for three minutes (F23).
	trials := newTrials(testbroker.Private(t, rig.QuickDeadLettering).URL())
	var tenth []fault
	for i, f := range frameFaults(t, trials) {
		if i%10 == 0 {
			tenth = append(tenth, f)
		}
	}
	trials.injectAll(t, tenth)
}

// injectAll runs a subtest for each fault.
func (tr *trials) injectAll(t *testing.T, faults []fault) {
	t.Helper()
	tr.all(len(faults), func(i int, queue string) {
		f := faults[i]
		t.Run(f.leg.name+" "+f.name, func(t *testing.T) {
			done := f.run(t, queue)
			require.Zero(t, done.lost(), "lost")
			require.GreaterOrEqual(t, done.duplicates(), f.atLeast, "duplicates")
			most := f.atMost + done.alsoUnknown(f.leg)
			require.LessOrEqual(t, done.duplicates(), most, "duplicates")
		})
	})
}

// fault is a fault on a leg, and the duplicates that it may cause.
type fault struct {
	leg  leg
	name string
	copies
	run func(t *testing.T, queue string) ending
}

// frameFaults returns the faults at all places between two frames. It first records the frames of
// messages without a fault.
func frameFaults(t *testing.T, trials *trials) []fault {
	t.Helper()
	recorded := make([][]testbroker.Seen, len(legs))
	trials.all(len(legs), func(i int, queue string) {
		t.Run(legs[i].name, func(t *testing.T) {
			done := trials.run(t, queue, legs[i], nil)
			require.LessOrEqual(t, done.duplicates(), done.unanswered, "duplicates without a fault")
			recorded[i] = done.frames
			t.Logf("%v", done.frames)
		})
	})
	require.False(t, t.Failed(), "nothing to inject faults into")
	var frozen, quick []fault
	for i, leg := range legs {
		for _, p := range leg.points(recorded[i]) {
			run := func(t *testing.T, queue string) ending { return trials.run(t, queue, leg, &p) }
			f := fault{leg, p.String(), p.copies, run}
			if p.kind == testbroker.Frozen {
				frozen = append(frozen, f)
			} else {
				quick = append(quick, f)
			}
		}
	}
	return append(frozen, quick...) // the slow ones begin first
}

// trials run one service after another on each of a few sets of queues, because a broker is slow
// to declare hundreds of quorum queues. Without the URL of a broker, each runs in virtual time and
// has its own peer.
type trials struct {
	url    string
	queues chan string
}

func newTrials(url string) *trials {
	atOnce := 24 // they wait for the broker more than for the processor
	if url == "" {
		atOnce = runtime.GOMAXPROCS(0)
	}
	tr := &trials{url: url, queues: make(chan string, atOnce)}
	for i := range cap(tr.queues) {
		tr.queues <- fmt.Sprintf("orders-%d", i)
	}
	return tr
}

// all calls f for each i with a queue that no other call uses meanwhile, and returns when all calls
// have returned. Subtests made in f run at once.
func (tr *trials) all(n int, f func(i int, queue string)) {
	var wg sync.WaitGroup
	for i := range n {
		queue := <-tr.queues
		wg.Go(func() {
			defer func() { tr.queues <- queue }()
			f(i, queue)
		})
	}
	wg.Wait()
}

// on calls run with the URL of a broker that has the queue and its wait queues.
func (tr *trials) on(t *testing.T, queue string, run func(t *testing.T, url string)) {
	t.Helper()
	if tr.url != "" {
		run(t, tr.url)
		return
	}
	rig.Virtually(t, func(t *testing.T, s *peer.Server) { run(t, s.URL()) })
}

// ending is the fate of a trial's one message.
type ending struct {
	report
	copies int // handled, dead, or still in a queue
}

func (e ending) lost() int       { return max(1-e.copies, 0) }
func (e ending) duplicates() int { return max(e.copies-1, 0) }

// alsoUnknown counts the publishes that were given up because the machine was busy, beside the
// publish that the fault may have hit.
func (e ending) alsoUnknown(l leg) int {
	if l.side == publishing {
		return max(e.unanswered-1, 0)
	}
	return e.unanswered
}

// trial is one service with one message, which fails once.
type trial struct {
	*testing.T
	*journal
	body   string
	queue  string
	target string // the queue to which the failed message goes
	look   *amqp.Channel
}

// run sends one message on its way, with or without a fault.
func (tr *trials) run(t *testing.T, queue string, l leg, point *faultPoint) (done ending) {
	t.Helper()
	tr.on(t, queue, func(t *testing.T, url string) {
		c, r := begin(t, queue, l, point, url)
		want := 1
		if point != nil {
			want += point.atLeast
			rig.WaitFor(t, "the fault", func() bool { return c.report().fired })
			if point.kind == testbroker.Frozen {
				c.thaw(r.Logs)
			}
		}
		done = c.settle(r, want)
	})
	return done
}

// begin starts the service and publishes its message.
func begin(
	t *testing.T, queue string, l leg, point *faultPoint, url string,
) (*trial, *rig.Service) {
	t.Helper()
	c := &trial{
		t, &journal{leg: l, point: point}, t.Name(), queue, queue + ".wait.200ms",
		testbroker.Channel(t, url),
	}
	var strategy topology.PerQueue
	policy := backoff.List{200 * time.Millisecond}
	switch {
	case l.atOnce:
		policy, c.target = backoff.List{0}, queue+".wait.1s"
	case l.dead:
		c.target = queue + ".dlq"
	case l.classic:
		strategy.Type = topology.Classic
		c.target += ".classic"
	}
	confirmTimeout := 20 * time.Second // no busy machine takes that long
	if l.side == publishing && point != nil && point.kind == testbroker.Frozen {
		confirmTimeout = 2 * time.Second
	}
	pub, sub := testbroker.NewProxy(t, url), testbroker.NewProxy(t, url)
	c.watch(publishing, pub)
	c.watch(consuming, sub)
	r := rig.Start(t, rig.Config{
		URL: sub.URL(), PublisherURL: pub.URL(), Queue: queue, Keep: true, Strategy: strategy,
		Policy:        policy,
		Configure:     func(cfg *wamqp.Config) { rig.QuorumQueue(cfg); rig.QuickReconnect(cfg) },
		ClientOptions: []topology.Option{topology.WithConfirmTimeout(confirmTimeout)},
		Handle:        c.handle,
	})
	if l.side == consuming {
		c.arm()
	}
	rig.Publish(t, url, "", queue, rig.Message(c.body))
	return c, r
}

// settle waits until all copies have come to their end, stops the service, and counts them.
func (c *trial) settle(r *rig.Service, want int) ending {
	c.Helper()
	rig.WaitFor(c, "the message at its end", func() bool { return c.arrived() >= want })
	rig.WaitFor(c, "everything to be settled", func() bool {
		if c.leg.dead {
			return c.report().acks >= 1 && c.depth(c.queue) == 0
		}
		return c.report().acks >= 2 && c.depth(c.queue) == 0 && c.depth(c.target) == 0
	})
	way := c.report().frames
	r.Stop()
	rig.WaitFor(c, "the end of all connections", func() bool {
		return c.proxies[publishing].Live()+c.proxies[consuming].Live() == 0
	})
	return c.end(way)
}

// handle fails at the first attempt.
func (c *trial) handle(msg *message.Message) error {
	if string(msg.Payload) != c.body {
		c.count(&c.seen.excused) // a late copy of the trial before
		return nil
	}
	attempt := middleware.Attempt(msg.Context())
	assert.LessOrEqual(c, attempt, 2, "attempts are burned")
	if attempt > 1 {
		c.count(&c.seen.handled)
		return nil
	}
	if c.leg.vanished && len(c.report().frames) == 0 {
		_, err := c.look.QueueDelete(c.target, false, false, false)
		assert.NoError(c, err)
	}
	c.arm()
	if c.leg.dead {
		return middleware.Permanent(rig.ErrFailed)
	}
	return rig.ErrFailed
}

// thaw ends a freeze when the service has noticed it, or has nothing to notice.
func (c *trial) thaw(logs *rig.Logs) {
	c.Helper()
	if c.leg.side == consuming {
		<-time.After(200 * time.Millisecond) // only heartbeats would tell
	} else {
		rig.WaitFor(c, "the freeze to be noticed", func() bool {
			return c.report().acks > 0 || strings.Contains(logs.Text(), "holding it")
		})
	}
	c.heal()
}

// arrived counts the copies that have come to the end of their way.
func (c *trial) arrived() int {
	switch now := c.report(); {
	case !c.leg.dead:
		return now.handled
	case now.confirms == 0: // before that there may be no queue
		return 0
	}
	return c.depth(c.target)
}

func (c *trial) depth(queue string) int {
	c.Helper()
	q, err := c.look.QueueDeclarePassive(queue, true, false, false, false, nil)
	require.NoError(c, err)
	return q.Messages
}

// end counts the copies in the queues and leaves the queues empty.
func (c *trial) end(way []testbroker.Seen) ending {
	c.Helper()
	done := ending{report: c.report()}
	done.frames = way
	done.copies = done.handled
	for _, queue := range []string{c.queue, c.target, c.queue + ".dlq"} {
		for {
			msg, ok, err := c.look.Get(queue, true)
			require.NoError(c, err)
			if !ok {
				break
			}
			if string(msg.Body) == c.body {
				done.copies++
				// A connection that is reset behind an ack may take the ack with it, which gives the
				// delivery back once the service has ended.
				assert.True(c, c.leg.dead == (queue == c.queue+".dlq") ||
					queue == c.queue && c.leg.side == consuming, "a copy in %s", queue)
				assert.Contains(c, []any{"1", nil}, msg.Headers[header.DeadFailures], "attempts are burned")
			}
		}
	}
	require.Empty(c, done.early, "acked before the confirm")
	require.Positive(c, done.confirms)
	return done
}
