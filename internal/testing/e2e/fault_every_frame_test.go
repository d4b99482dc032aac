package e2e_test

import (
	"strings"
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
)

// Given a failed message on its way, when its connection is closed, reset or frozen at any place
// between two frames and heals, then nothing is acked before its copy is confirmed. Nothing is
// lost, and no attempt is burned. There is a second copy only if the outcome of the first copy was
// unknown. Every fault runs in virtual time, against a peer. The lab does the same to real brokers.
func TestFaultsAtEveryFrame(t *testing.T) {
	t.Parallel()
	for _, l := range legs {
		t.Run(l.name, func(t *testing.T) {
			t.Parallel()
			var frames []testbroker.Seen
			require.True(t, t.Run("no fault", func(t *testing.T) {
				done := l.run(t, nil)
				require.Equal(t, 1, done.copies)
				frames = done.frames
			}), "nothing to inject faults into")
			points := l.points(frames)
			require.Greater(t, len(points), 15)
			for _, p := range points {
				t.Run(p.String(), func(t *testing.T) {
					t.Parallel()
					done := l.run(t, &p)
					require.GreaterOrEqual(t, done.copies, 1+p.atLeast, "lost, or a duplicate less")
					require.LessOrEqual(t, done.copies, 1+p.atMost, "duplicates")
				})
			}
		})
	}
}

// ending is the fate of a trial's one message.
type ending struct {
	report
	copies int // handled, dead, or still in a queue
}

// trial is one service with one message, which fails once.
type trial struct {
	*testing.T
	*journal
	target string // the queue to which the failed message goes
	look   *amqp.Channel
}

// run sends one message on its way, with or without a fault.
func (l leg) run(t *testing.T, point *faultPoint) (done ending) {
	t.Helper()
	rig.Virtually(t, func(t *testing.T, broker *peer.Server) {
		c, r := begin(t, l, point, broker.URL())
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
func begin(t *testing.T, l leg, point *faultPoint, url string) (*trial, *rig.Service) {
	t.Helper()
	c := &trial{
		t, &journal{leg: l, point: point}, "orders.wait.200ms", testbroker.Channel(t, url),
	}
	policy := backoff.List{200 * time.Millisecond}
	switch {
	case l.atOnce:
		policy, c.target = backoff.List{0}, "orders.wait.1s"
	case l.dead:
		c.target = "orders.dlq"
	}
	pub, sub := testbroker.NewProxy(t, url), testbroker.NewProxy(t, url)
	c.watch(publishing, pub)
	c.watch(consuming, sub)
	r := rig.Start(t, rig.Config{
		URL: sub.URL(), PublisherURL: pub.URL(), Queue: "orders", Keep: true, Policy: policy,
		Configure: func(cfg *wamqp.Config) { rig.QuorumQueue(cfg); rig.QuickReconnect(cfg) },
		Handle:    c.handle,
	})
	if l.side == consuming {
		c.arm()
	}
	rig.Publish(t, url, "", "orders", rig.Message("order"))
	return c, r
}

// settle waits until all copies have come to their end, stops the service, and counts them.
func (c *trial) settle(r *rig.Service, want int) ending {
	c.Helper()
	rig.WaitFor(c, "the message at its end", func() bool { return c.arrived() >= want })
	rig.WaitFor(c, "everything to be settled", func() bool {
		if c.leg.dead {
			return c.report().acks >= 1 && c.depth("orders") == 0
		}
		return c.report().acks >= 2 && c.depth("orders")+c.depth(c.target) == 0
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
	attempt := middleware.Attempt(msg.Context())
	assert.LessOrEqual(c, attempt, 2, "attempts are burned")
	if attempt > 1 {
		c.handled()
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
	return rig.Ready(c, c.look, queue)
}

// end counts the copies in the queues.
func (c *trial) end(way []testbroker.Seen) ending {
	c.Helper()
	done := ending{report: c.report()}
	done.frames = way
	done.copies = done.handled
	for _, queue := range []string{"orders", c.target, "orders.dlq"} {
		for {
			msg, ok, err := c.look.Get(queue, true)
			require.NoError(c, err)
			if !ok {
				break
			}
			done.copies++
			// A connection that is reset behind an ack may take the ack with it, which gives the
			// delivery back once the service has ended.
			assert.True(c, c.leg.dead == (queue == "orders.dlq") ||
				queue == "orders" && c.leg.side == consuming, "a copy in %s", queue)
			assert.Contains(c, []any{"1", nil}, msg.Headers[header.DeadFailures], "attempts are burned")
		}
	}
	require.Empty(c, done.early, "acked before the confirm")
	require.Positive(c, done.confirms)
	return done
}
