package topology_test

import (
	"fmt"
	"strings"
	"sync"
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
	"github.com/millpond-go/millpond/topology"
)

// confirms are the publishes that a peer has got, and holds back.
type confirms struct {
	mu     sync.Mutex
	held   []*peer.Publish
	copies map[string]int
}

func (c *confirms) hold(p *peer.Publish) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.copies == nil {
		c.copies = map[string]int{}
	}
	c.copies[string(p.Body)]++
	c.held = append(c.held, p)
}

// each calls f with every publish that is held, and forgets it.
func (c *confirms) each(f func(*peer.Publish)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.held {
		f(p)
	}
	c.held = nil
}

// published is how often each message was published.
func (c *confirms) published() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	copies := map[string]int{}
	for body, n := range c.copies {
		copies[body] = n
	}
	return copies
}

// lateRig is a service with five messages in progress that all fail, and whose copies a
// peer takes without an answer.
func lateRig(t *testing.T) (*rig.Service, *confirms, *rig.HandOvers, *testbroker.Proxy) {
	t.Helper()
	var late confirms
	var failing rig.HandOvers
	proxy := testbroker.NewProxy(t, peer.Start(t, late.hold).URL())
	r := rig.Start(t, rig.Config{
		URL: testbroker.URL(t), PublisherURL: proxy.URL(),
		Configure:         func(cfg *wamqp.Config) { rig.QuorumQueue(cfg); rig.QuickReconnect(cfg) },
		ClientOptions:     []topology.Option{topology.WithConfirmTimeout(lateTimeout)},
		SubscriberOptions: []topology.SubscriberOption{topology.WithConcurrency(lateMessages)},
		RetryOptions:      []middleware.Option{middleware.WithObserver(&failing)},
		Policy:            backoff.List{time.Minute},
		Handler: func(msg *message.Message) ([]*message.Message, error) {
			if strings.HasSuffix(string(msg.Payload), "dead") {
				return nil, middleware.Permanent(rig.ErrFailed)
			}
			return nil, rig.ErrFailed
		},
	})
	for i := range lateMessages {
		body := fmt.Sprint(i)
		if i%2 == 1 {
			body += " dead"
		}
		r.Publish(amqp.Publishing{Body: []byte(body), MessageId: body, DeliveryMode: amqp.Persistent})
	}
	return r, &late, &failing, proxy
}

const (
	lateMessages = 5
	lateTimeout  = 2 * time.Second
)

// The confirms of five messages, to be retried or dead-lettered, come several timeouts
// late: there is one copy of each, and then each delivery is acked.
func TestLateConfirmMakesNoSecondCopy(t *testing.T) {
	t.Parallel()
	r, late, failing, proxy := lateRig(t)
	rig.WaitFor(t, "several tries of each hand-over", func() bool { return failing.AtLeast(lateMessages, 3) })
	late.each(func(p *peer.Publish) { p.Ack(p.Tag, false) })
	rig.WaitFor(t, "all hand-overs to succeed", func() bool { return failing.Succeeded() == lateMessages })
	r.Stop()
	assert.Zero(t, r.Depth(""), "given back")
	assert.Equal(t, map[string]int{"0": 1, "1 dead": 1, "2": 1, "3 dead": 1, "4": 1}, late.published())
	assert.Equal(t, 1, proxy.Connections())
}

// The channel ends while the outcomes are open: each message is published once more,
// and not before.
func TestEndOfTheChannelMakesASecondCopy(t *testing.T) {
	t.Parallel()
	r, late, failing, _ := lateRig(t)
	rig.WaitFor(t, "two tries of each hand-over", func() bool { return failing.AtLeast(lateMessages, 2) })
	once := late.published()
	assert.Equal(t, map[string]int{"0": 1, "1 dead": 1, "2": 1, "3 dead": 1, "4": 1}, once)
	channels := map[uint16]bool{}
	late.each(func(p *peer.Publish) {
		if !channels[p.Channel] {
			p.CloseChannel(406, "PRECONDITION_FAILED")
		}
		channels[p.Channel] = true
	})
	rig.WaitFor(t, "all to be settled", func() bool {
		late.each(func(p *peer.Publish) { p.Ack(p.Tag, false) })
		return failing.Succeeded() == lateMessages
	})
	r.Stop()
	for body, n := range late.published() {
		assert.Equal(t, 2, n, "copies of %s", body)
	}
}

// At shutdown an open outcome is not waited for any longer than the drain: the message
// goes back to its queue.
func TestShutdownWithAnOpenOutcome(t *testing.T) {
	t.Parallel()
	r, late, failing, _ := lateRig(t)
	rig.WaitFor(t, "a failed try of each hand-over", func() bool { return failing.AtLeast(lateMessages, 1) })
	begun := time.Now()
	r.Stop()
	require.Less(t, time.Since(begun), closeLimit)
	rig.WaitFor(t, "all messages in their queue", func() bool { return r.Depth("") == lateMessages })
	for body, n := range late.published() {
		assert.Equal(t, 1, n, "copies of %s", body)
	}
}
