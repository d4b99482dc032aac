//go:build unix

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
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
)

// The wait queue of a cluster has no majority for several confirm timeouts, while ten
// failed messages are handed over. Each is handled as often as it would be without the
// outage, and those of a queue with healthy classic wait queues are not disturbed.
func TestMinorityMakesNoSecondCopy(t *testing.T) {
	t.Parallel()
	c := testbroker.PrivateCluster(t, 3)
	url := c.Node(0).URL()
	const messages = 10
	var mu sync.Mutex
	runs := map[string]int{}
	handler := func(msg *message.Message) ([]*message.Message, error) {
		mu.Lock()
		defer mu.Unlock()
		runs[string(msg.Payload)]++
		if middleware.Attempt(msg.Context()) == 1 {
			return nil, rig.ErrFailed
		}
		return nil, nil
	}
	ran := func(prefix string, times int) func() bool {
		return func() bool {
			mu.Lock()
			defer mu.Unlock()
			for i := range messages {
				if runs[fmt.Sprint(prefix, i)] < times {
					return false
				}
			}
			return true
		}
	}
	var quorum, classic rig.HandOvers
	service := func(queue string, kind topology.QueueType, told *rig.HandOvers) *rig.Service {
		return rig.Start(t, rig.Config{
			URL: url, Queue: queue, Keep: true, Strategy: topology.PerQueue{Type: kind}, Policy: backoff.List{200 * time.Millisecond},
			Configure:         func(cfg *wamqp.Config) { rig.QuickReconnect(cfg) }, // classic main queues, on the node that stays
			ClientOptions:     []topology.Option{topology.WithConfirmTimeout(lateTimeout)},
			SubscriberOptions: []topology.SubscriberOption{topology.WithConcurrency(messages)},
			RetryOptions:      []middleware.Option{middleware.WithObserver(told)},
			Handler:           handler,
		})
	}
	slow, healthy := service("slow", topology.Quorum, &quorum), service("healthy", topology.Classic, &classic)
	send := func(r *rig.Service, prefix string) {
		for i := range messages {
			body := fmt.Sprint(prefix, i)
			r.Publish(amqp.Publishing{Body: []byte(body), MessageId: body, DeliveryMode: amqp.Persistent})
		}
	}
	send(slow, "before ")
	testbroker.WaitFor(t, "the retries before the outage", rig.Patience, ran("before ", 2))

	for _, i := range []int{1, 2} {
		require.NoError(t, c.Freeze(i))
	}
	send(slow, "slow ")
	rig.WaitFor(t, "three failed tries of each hand-over", func() bool { return quorum.AtLeast(messages, 3) })
	send(healthy, "healthy ")
	testbroker.WaitFor(t, "the retries by classic queues", rig.Patience, ran("healthy ", 2))
	for _, i := range []int{1, 2} {
		require.NoError(t, c.Thaw(i))
	}
	testbroker.WaitFor(t, "the retries after the outage", rig.Patience, ran("slow ", 2))
	rig.WaitFor(t, "all hand-overs", func() bool { return quorum.Succeeded() == 2*messages })
	send(slow, "after ")
	testbroker.WaitFor(t, "the retries of later messages", rig.Patience, ran("after ", 2))
	slow.Stop()
	healthy.Stop()
	for body, n := range runs {
		if !strings.HasPrefix(body, "before ") { // one that expired a moment before may come twice (F18)
			assert.Equal(t, 2, n, "runs of %s", body)
		}
	}
	for _, queue := range []string{"slow", "slow.wait.200ms", "slow.dlq", "healthy"} {
		assert.Zero(t, testbroker.Depth(t, url, queue), queue)
	}
}
