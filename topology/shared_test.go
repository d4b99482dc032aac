package topology_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testbench"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
)

// The scenario row "shared": two queues with policies of their own share one set
// of wait queues; 1/10/100/500/500 s, here a hundredth of that; only errors
// marked retryable are retried; past the limit to the dead-letter exchange.
func TestSharedRow(t *testing.T) {
	t.Parallel()
	for _, kind := range []topology.QueueType{topology.Quorum, topology.Classic} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			url := testbench.URL(t)
			ch := testbench.Channel(t, url)
			strategy := shared(t, kind)
			dlx := strategy.Prefix + ".dlx"
			require.NoError(t, ch.ExchangeDeclare(dlx, "topic", true, false, false, false, nil))
			t.Cleanup(func() { _ = testbench.Channel(t, url).ExchangeDelete(dlx, false, false) })
			graveyard := testbench.Queue(t) + "-dead"
			testbench.Delete(t, graveyard)
			_, err := ch.QueueDeclare(graveyard, true, false, false, false, nil)
			require.NoError(t, err)
			require.NoError(t, ch.QueueBind(graveyard, "dead.#", dlx, false, nil))
			strategy.Dead = topology.DeadLetters{Target: func(queue string) topology.Route {
				return topology.Route{Exchange: dlx, RoutingKey: "dead." + queue}
			}}

			long := backoff.Exponential{Initial: 10 * time.Millisecond, Factor: 10, Max: 5 * time.Second, Retries: 5}
			short := backoff.List{100 * time.Millisecond, time.Second}
			longDelays, _ := backoff.Delays(long)
			first, err := strategy.Plan("a", longDelays)
			require.NoError(t, err)
			second, err := strategy.Plan("b", short)
			require.NoError(t, err)
			known := map[string]bool{}
			for _, q := range first.Queues {
				known[q.Name] = true
			}
			for _, q := range second.Queues {
				require.True(t, known[q.Name], "a new queue needs only its policy, not %s", q.Name)
			}

			var longCalls, shortCalls, unmarked timeline
			serve := func(policy backoff.Policy, calls *timeline) *rig {
				return newRig(t, rigConfig{
					url: url, strategy: strategy, policy: policy,
					options: []middleware.Option{middleware.WithDefaultClass(middleware.ClassPermanent)},
					handler: func(msg *message.Message) ([]*message.Message, error) {
						if string(msg.Payload) == "unmarked" {
							unmarked.add()
							return nil, errFailed
						}
						calls.add()
						return nil, fmt.Errorf("try again: %w", middleware.Retryable(errFailed))
					},
				})
			}
			a, b := serve(long, &longCalls), serve(short, &shortCalls)
			a.publish(amqp.Publishing{Body: []byte("long")})
			b.publish(amqp.Publishing{Body: []byte("short")})
			b.publish(amqp.Publishing{Body: []byte("unmarked")})

			dead := map[string]amqp.Delivery{}
			for range 3 {
				d := take(t, url, graveyard)
				dead[string(d.Body)] = d
			}
			longCalls.requireGaps(t, 10*time.Millisecond, 100*time.Millisecond, time.Second, 5*time.Second, 5*time.Second)
			shortCalls.requireGaps(t, 100*time.Millisecond, time.Second)
			require.Equal(t, 1, unmarked.count())
			require.Equal(t, "permanent", dead["unmarked"].Headers[middleware.DeadReasonKey])
			require.Equal(t, "exhausted", dead["long"].Headers[middleware.DeadReasonKey])
			require.Equal(t, "dead."+a.queue, dead["long"].RoutingKey)
			require.Equal(t, "exhausted", dead["short"].Headers[middleware.DeadReasonKey])
		})
	}
}

// The strategy is changed on a live queue, under traffic of which a fifth fails
// once: every message is handled, and nothing conflicts.
func TestPerQueueToSharedUnderTraffic(t *testing.T) {
	t.Parallel()
	rate, length := 200, time.Minute
	if testing.Short() {
		length = 5 * time.Second
	}
	url, queue := testbench.URL(t), testbench.Queue(t)
	policy := backoff.List{time.Second, 2 * time.Second}
	var mu sync.Mutex
	handled := map[string]int{}
	handler := func(msg *message.Message) ([]*message.Message, error) {
		mu.Lock()
		defer mu.Unlock()
		body := string(msg.Payload)
		if last := body[len(body)-1]; middleware.Attempt(msg.Context()) == 1 && (last == '3' || last == '7') {
			return nil, errors.New("once")
		}
		handled[body]++
		return nil, nil
	}
	count := func() int { mu.Lock(); defer mu.Unlock(); return len(handled) }
	run := func(strategy topology.Strategy) *rig {
		return newRig(t, rigConfig{url: url, queue: queue, strategy: strategy, policy: policy, handler: handler, config: prefetch(20)})
	}
	sharing := shared(t, topology.Quorum)
	before := run(topology.PerQueue{})

	ch := testbench.Channel(t, url)
	require.NoError(t, ch.Confirm(false))
	total := rate * int(length/time.Second)
	tick := time.NewTicker(time.Second / time.Duration(rate))
	defer tick.Stop()
	var confirms []*amqp.DeferredConfirmation
	var after *rig
	for i := range total {
		<-tick.C
		confirm, err := ch.PublishWithDeferredConfirm("", queue, true, false, amqp.Publishing{Body: []byte(fmt.Sprint(i)), DeliveryMode: amqp.Persistent})
		require.NoError(t, err)
		confirms = append(confirms, confirm)
		if i == total/3 { // a rolling deploy: the new instance first, then the old one goes
			after = run(sharing)
		}
		if i == total/2 {
			go before.stop()
		}
	}
	for _, confirm := range confirms {
		require.True(t, confirm.Wait())
	}
	testbench.WaitFor(t, "every message is handled", patience, func() bool { return count() == total })
	before.stop()
	after.stop()
	require.NotContains(t, before.logs.text()+after.logs.text(), "PRECONDITION_FAILED")
	require.Zero(t, testbench.Depth(t, url, queue+".dlq"))
	duplicates := 0
	for _, n := range handled {
		duplicates += n - 1
	}
	t.Logf("%d messages, %d duplicates", total, duplicates)
}
