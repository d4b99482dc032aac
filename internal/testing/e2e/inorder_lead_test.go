package e2e_test

import (
	"sync/atomic"
	"testing"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/inorder"
)

// Given a network that stands still, so that a process cannot know whether it still leads, then it
// begins nothing and gives the queue back, long before a heartbeat is missed. When the network is
// back, everything is handled in its order.
func TestALeaseThatIsNotRenewedEnds(t *testing.T) {
	t.Parallel()
	url := testbroker.URL(t)
	proxy := testbroker.NewProxy(t, url)
	var handled bodies
	c := orderedBy(inorder.Strategy{}, often(100*time.Millisecond), handled.handle)
	c.URL, c.AdminURL = proxy.URL(), url
	configure := c.Configure
	c.Configure = func(cfg *wamqp.Config) {
		configure(cfg)
		cfg.Connection.AmqpConfig = &amqp.Config{Heartbeat: 10 * time.Minute}
	}
	r := rig.Start(t, c)
	r.Send("a:0")
	rig.WaitFor(t, "the process leads", func() bool { return handled.len() == 1 })
	proxy.Freeze(true)
	for _, body := range ofKey("b", 3) {
		rig.Publish(t, url, "", r.Queue, rig.Message(body))
	}
	rig.WaitFor(t, "the queue is given back", func() bool {
		return r.Logs.Said("its lease could not be renewed") > 0
	})
	require.Equal(t, 1, handled.len(), "nothing begins without a lease")
	proxy.Freeze(false)
	rig.WaitFor(t, "the process leads again", func() bool { return len(handled.of("b")) == 3 })
	require.Equal(t, ofKey("b", 3), handled.of("b"))
	r.RequireNothingLeft(0)
}

// Given a line that stays full for longer than the broker's consumer timeout, then the messages
// ahead are given back before it, once, and the queue is not consumed until the line has room.
// From RabbitMQ 4.3 on the consumers have no timeout, so that nothing has to be given back.
func TestAFullLineOutlastsTheConsumerTimeout(t *testing.T) {
	t.Parallel()
	node := impatientNode(t)
	if timeless, _ := rig.HoldsRejected(t, node.URL()); timeless {
		t.Skip("needs RabbitMQ before 4.3: make test BROKER=4.0")
	}
	var handled bodies
	var open atomic.Bool
	c := orderedBy(inorder.Strategy{MaxWaiting: 3}, often(time.Second),
		func(msg *message.Message) error {
			if string(msg.Payload) == "a:0" && !open.Load() {
				return errNotYet
			}
			return handled.handle(msg)
		})
	c.URL = node.URL()
	c.ClientOptions = []topology.Option{topology.WithConfirmTimeout(time.Second)}
	c.SubscriberOptions = append(c.SubscriberOptions, topology.WithConsumerTimeout(shortTimeout))
	r := rig.Start(t, c)
	r.Send(ofKey("a", 40)...)
	rig.WaitFor(t, "the queue is not consumed", func() bool {
		return r.Logs.Said("The line is full") == 1
	})
	rig.WaitFor(t, "all messages are back in the queue", func() bool { return r.Depth("") >= 30 })
	passed := time.Now().Add(2 * shortTimeout) // nothing may happen meanwhile
	rig.WaitFor(t, "the timeout is over twice", func() bool { return time.Now().After(passed) })
	require.Zero(t, r.Logs.Said("PRECONDITION_FAILED"), "no consumer was ended by the broker")
	require.Equal(t, 1, r.Logs.Said("The line is full"))
	require.Zero(t, handled.len())
	open.Store(true)
	// A confirm that takes longer than the second leaves two copies of a:0, which are handled twice.
	rig.WaitFor(t, "all messages are handled", func() bool {
		return len(first(handled.of("a"))) == 40
	})
	require.Equal(t, ofKey("a", 40), first(handled.of("a")))
	r.RequireNothingLeft(0)
}
