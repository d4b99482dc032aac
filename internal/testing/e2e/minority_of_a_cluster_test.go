//go:build unix

package e2e_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
)

// Given a cluster whose quorum queues have no majority for several confirm timeouts, when ten
// failed messages are handed over, then each is handled as often as without the outage. A
// service with classic wait queues is not disturbed.
func TestMinorityMakesNoSecondCopy(t *testing.T) {
	t.Parallel()
	c := testbroker.PrivateCluster(t, 3)
	url := c.Node(0).URL()
	const messages = 10
	var mu sync.Mutex
	runs := map[string]int{}
	start := func(queue string, kind topology.QueueType, told *rig.HandOvers) *rig.Service {
		return rig.Start(t, rig.Config{
			URL: url, Queue: queue, Keep: true, Strategy: topology.PerQueue{Type: kind},
			Policy:            backoff.List{200 * time.Millisecond},
			Configure:         rig.QuickReconnect, // Classic main queues live on the node that stays.
			ClientOptions:     []topology.Option{topology.WithConfirmTimeout(lateTimeout)},
			SubscriberOptions: rig.InFlight(messages),
			RetryOptions:      []middleware.Option{middleware.WithObserver(told)},
			Handle: func(msg *message.Message) error {
				mu.Lock()
				defer mu.Unlock()
				runs[string(msg.Payload)]++
				if middleware.Attempt(msg.Context()) == 1 {
					return rig.ErrFailed
				}
				return nil
			},
		})
	}
	var quorum, classic rig.HandOvers
	slow := start("slow", topology.Quorum, &quorum)
	healthy := start("healthy", topology.Classic, &classic)
	send := func(s *rig.Service, prefix string) {
		for i := range messages {
			msg := rig.Message(fmt.Sprint(prefix, i))
			msg.MessageId = string(msg.Body)
			s.Publish(msg)
		}
	}
	awaitRetries := func(prefix string) {
		t.Helper()
		rig.WaitFor(t, "the retries of messages "+prefix, func() bool {
			mu.Lock()
			defer mu.Unlock()
			for i := range messages {
				if runs[fmt.Sprint(prefix, i)] < 2 {
					return false
				}
			}
			return true
		})
	}
	send(slow, "before ")
	awaitRetries("before ")

	for _, i := range []int{1, 2} {
		require.NoError(t, c.Freeze(i))
	}
	send(slow, "slow ")
	rig.WaitFor(t, "three failed tries of each hand-over", func() bool {
		return quorum.AtLeast(messages, 3)
	})
	send(healthy, "healthy ")
	awaitRetries("healthy ")
	for _, i := range []int{1, 2} {
		require.NoError(t, c.Thaw(i))
	}
	awaitRetries("slow ")
	rig.WaitFor(t, "all hand-overs", func() bool { return quorum.Succeeded() == 2*messages })
	send(slow, "after ")
	awaitRetries("after ")
	slow.Stop()
	healthy.Stop()
	for body, n := range runs {
		// A message that expired a moment before the outage may come twice (F18).
		if !strings.HasPrefix(body, "before ") {
			assert.Equal(t, 2, n, "runs of %s", body)
		}
	}
	for _, queue := range []string{"slow", "slow.wait.200ms", "slow.dlq", "healthy"} {
		assert.Zero(t, testbroker.Depth(t, url, queue), queue)
	}
}
