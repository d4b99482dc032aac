package topology_test

import (
	"strings"
	"testing"
	"time"

	"github.com/millpond-go/millpond/internal/testing/rig"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/peer"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
	"github.com/millpond-go/millpond/topology"
)

// ending is what became of a trial's one message.
type ending struct {
	report
	copies int // handled, dead, or still in a queue
}

func (e ending) lost() int       { return max(1-e.copies, 0) }
func (e ending) duplicates() int { return max(e.copies-1, 0) }

// alsoUnknown is how many publishes, beside one that the fault may have hit,
// were given up because the machine was busy.
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
	target string // where the failed message goes
	look   *amqp.Channel
}

// run sends one message on its way, with a fault or without.
func (tr *trials) run(t *testing.T, queue string, l leg, point *faultPoint) ending {
	t.Helper()
	c, r := tr.begin(t, queue, l, point, tr.url)
	want := 1
	if point != nil {
		want += point.atLeast
		rig.WaitFor(t, "the fault", func() bool { return c.report().fired })
		if point.kind == testbroker.Frozen {
			c.thaw(r.Logs)
		}
	}
	return c.settle(r, want)
}

// runOdd sends one message on its way whose hand-overs are answered by a peer,
// as odd does it, until one has failed; then the broker is there.
func (tr *trials) runOdd(t *testing.T, queue string, l leg, odd func(*peer.Publish)) ending {
	t.Helper()
	c, r := tr.begin(t, queue, l, nil, peer.Start(t, odd).URL())
	rig.WaitFor(t, "the failure of the hand-over", func() bool {
		return c.report().acks > 0 || strings.Contains(r.Logs.Text(), "holding it")
	})
	require.Zero(t, c.report().acks, "acked though nothing was stored")
	c.proxies[publishing].Retarget(t, tr.url)
	c.proxies[publishing].Cut()
	c.forget()
	return c.settle(r, 1)
}

// begin starts the service and publishes its message.
func (tr *trials) begin(t *testing.T, queue string, l leg, point *faultPoint, publisher string) (*trial, *rig.Service) {
	t.Helper()
	c := &trial{t, &journal{leg: l, point: point}, t.Name(), queue, queue + ".wait.200ms", testbroker.Channel(t, tr.url)}
	var strategy topology.PerQueue
	switch {
	case l.dead:
		c.target = queue + ".dlq"
	case l.classic:
		strategy.Type = topology.Classic
		c.target += ".classic"
	}
	confirmTimeout := 20 * time.Second // no busy machine takes that long
	if publisher != tr.url || l.side == publishing && point != nil && point.kind == testbroker.Frozen {
		confirmTimeout = 2 * time.Second
	}
	pub, sub := testbroker.NewProxy(t, publisher), testbroker.NewProxy(t, tr.url)
	c.watch(publishing, pub)
	c.watch(consuming, sub)
	r := rig.Start(t, rig.Config{
		URL: sub.URL(), PublisherURL: pub.URL(), Queue: queue, Keep: true, Strategy: strategy, Policy: backoff.List{200 * time.Millisecond},
		Configure:     func(cfg *wamqp.Config) { rig.QuorumQueue(cfg); rig.QuickReconnect(cfg) },
		ClientOptions: []topology.Option{topology.WithConfirmTimeout(confirmTimeout)},
		Handler:       func(msg *message.Message) ([]*message.Message, error) { return nil, c.handle(msg) },
	})
	if l.side == consuming {
		c.arm()
	}
	rig.Publish(t, tr.url, "", queue, rig.Message(c.body))
	return c, r
}

// settle waits until all copies have come to their end, stops the service and
// counts them.
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
	rig.WaitFor(c, "the end of all connections", func() bool { return c.proxies[publishing].Live()+c.proxies[consuming].Live() == 0 })
	return c.end(way)
}

// handle fails at the first attempt.
func (c *trial) handle(msg *message.Message) error {
	if string(msg.Payload) != c.body {
		c.excuse() // a late copy of the trial before
		return nil
	}
	attempt := middleware.Attempt(msg.Context())
	assert.LessOrEqual(c, attempt, 2, "attempts are burned")
	if attempt > 1 {
		c.success()
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
		<-time.After(200 * time.Millisecond) // nothing but heartbeats would tell
	} else {
		rig.WaitFor(c, "the freeze to be noticed", func() bool {
			return c.report().acks > 0 || strings.Contains(logs.Text(), "holding it")
		})
	}
	c.heal()
}

// arrived is how many copies have come to the end of their way.
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

// end counts what is where, and leaves the queues empty.
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
				assert.Equal(c, c.leg.dead, queue == c.queue+".dlq", "a copy in %s", queue)
				assert.Contains(c, []any{"1", nil}, msg.Headers[header.DeadFailures], "attempts are burned")
			}
		}
	}
	require.Empty(c, done.early, "acked before the confirm")
	require.Positive(c, done.confirms)
	return done
}
