package e2e_test

import (
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/peer"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
)

const (
	lateMessages = 5
	lateTimeout  = 2 * time.Second
)

// oneCopyEach is a count of publishes without a duplicate.
var oneCopyEach = map[string]int{"0": 1, "1 dead": 1, "2": 1, "3 dead": 1, "4": 1}

// confirms keeps the publishes that a peer received and has not answered.
type confirms struct {
	mu     sync.Mutex
	held   []*peer.Publish
	copies map[string]int // by body
}

func (c *confirms) hold(p *peer.Publish) {
	c.mu.Lock()
	defer c.mu.Unlock()
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

// published returns how often each message was published.
func (c *confirms) published() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.copies)
}

// lateService is a service with five messages in progress. All fail, to be retried or
// dead-lettered, and a peer takes their copies without an answer.
type lateService struct {
	*rig.Service
	confirms
	handOvers rig.HandOvers
	proxy     *testbroker.Proxy // of the publishing connection
}

// startLate returns the service after so many failed tries of each hand-over.
func startLate(t *testing.T, tries int) *lateService {
	t.Helper()
	s := &lateService{confirms: confirms{copies: map[string]int{}}}
	s.proxy = testbroker.NewProxy(t, peer.Start(t, s.hold).URL())
	s.Service = rig.Start(t, rig.Config{
		URL: testbroker.URL(t), PublisherURL: s.proxy.URL(), Policy: backoff.List{time.Minute},
		Configure:         func(cfg *wamqp.Config) { rig.QuorumQueue(cfg); rig.QuickReconnect(cfg) },
		ClientOptions:     []topology.Option{topology.WithConfirmTimeout(lateTimeout)},
		SubscriberOptions: rig.InFlight(lateMessages),
		RetryOptions:      []middleware.Option{middleware.WithObserver(&s.handOvers)},
		Handle: func(msg *message.Message) error {
			if strings.HasSuffix(string(msg.Payload), "dead") {
				return middleware.Permanent(rig.ErrFailed)
			}
			return rig.ErrFailed
		},
	})
	for body := range oneCopyEach {
		msg := rig.Message(body)
		msg.MessageId = body
		s.Publish(msg)
	}
	rig.WaitFor(t, "the tries of each hand-over", func() bool {
		return s.handOvers.AtLeast(lateMessages, tries)
	})
	return s
}

// Given confirms that come several timeouts late, then there is one copy of each message, and
// each delivery is acked.
func TestLateConfirmMakesNoSecondCopy(t *testing.T) {
	t.Parallel()
	s := startLate(t, 3)
	s.each(func(p *peer.Publish) { p.Ack(p.Tag, false) })
	rig.WaitFor(t, "all hand-overs", func() bool { return s.handOvers.Succeeded() == lateMessages })
	s.Stop()
	assert.Zero(t, s.Depth(""), "given back")
	assert.Equal(t, oneCopyEach, s.published())
	assert.Equal(t, 1, s.proxy.Connections())
}

// Given open outcomes, when the channel ends, then each message is published once more, and
// not earlier.
func TestEndOfTheChannelMakesASecondCopy(t *testing.T) {
	t.Parallel()
	s := startLate(t, 2)
	assert.Equal(t, oneCopyEach, s.published())
	closed := map[uint16]bool{}
	s.each(func(p *peer.Publish) {
		if !closed[p.Channel] {
			p.CloseChannel(406, "PRECONDITION_FAILED")
		}
		closed[p.Channel] = true
	})
	rig.WaitFor(t, "all hand-overs", func() bool {
		s.each(func(p *peer.Publish) { p.Ack(p.Tag, false) })
		return s.handOvers.Succeeded() == lateMessages
	})
	s.Stop()
	for body, n := range s.published() {
		assert.Equal(t, 2, n, "copies of %s", body)
	}
}

// Given open outcomes, when the service stops, then it waits no longer than the drain, and the
// messages go back to their queue.
func TestShutdownWithAnOpenOutcome(t *testing.T) {
	t.Parallel()
	s := startLate(t, 1)
	begun := time.Now()
	s.Stop()
	require.Less(t, time.Since(begun), closeLimit)
	rig.WaitFor(t, "all messages in their queue", func() bool { return s.Depth("") == lateMessages })
	assert.Equal(t, oneCopyEach, s.published())
}
