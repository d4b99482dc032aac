package topology_test

import (
	"os"
	"sync/atomic"
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

// A downstream is out while messages keep coming. With a budget it is called a
// tenth as often at most, and every message is handled afterwards. With
// MILLPOND_LONG the outage lasts a minute at 200 messages a second.
func TestBudgetSparesADownstreamThatIsOut(t *testing.T) {
	t.Parallel()
	rate, outage := 100, 6*time.Second
	if os.Getenv("MILLPOND_LONG") != "" {
		rate, outage = 200, time.Minute
	}
	url := testbench.URL(t)
	policy := backoff.Constant{Interval: 500 * time.Millisecond, Retries: 10_000}
	const slow = 4 * time.Second

	type service struct {
		*rig
		calls, handled atomic.Int64 // while it is out, and afterwards
	}
	var out atomic.Bool
	out.Store(true)
	serve := func(options ...middleware.Option) *service {
		s := &service{}
		s.rig = newRig(t, rigConfig{
			url: url, policy: policy, config: prefetch(50), options: options,
			subOptions: []topology.SubscriberOption{topology.ForPolicy(backoff.List{slow}), topology.WithConcurrency(16)},
			handler: func(*message.Message) ([]*message.Message, error) {
				if out.Load() {
					s.calls.Add(1)
					return nil, errFailed
				}
				s.handled.Add(1)
				return nil, nil
			},
		})
		testbench.Delete(t, s.queue+".wait.4s")
		return s
	}
	budget, err := middleware.NewBudget(middleware.BudgetConfig{Share: 0.5, Window: 3 * time.Second, Minimum: 10, Probes: 10, Delay: slow})
	require.NoError(t, err)
	with, without := serve(middleware.WithBudget(budget)), serve()

	ch := testbench.Channel(t, url)
	require.NoError(t, ch.Confirm(false))
	began, sent := time.Now(), 0
	var last *amqp.DeferredConfirmation
	for tick := time.NewTicker(10 * time.Millisecond); time.Since(began) < outage; <-tick.C {
		for ; sent < int(time.Since(began).Seconds()*float64(rate)); sent++ {
			for _, s := range []*service{with, without} {
				last, err = ch.PublishWithDeferredConfirm("", s.queue, true, false, amqp.Publishing{DeliveryMode: amqp.Persistent})
				require.NoError(t, err)
			}
		}
	}
	require.True(t, last.Wait())
	out.Store(false)
	for _, s := range []*service{with, without} {
		testbench.WaitFor(t, "every message to be handled", patience, func() bool { return s.handled.Load() >= int64(sent) })
		require.Equal(t, int64(sent), s.handled.Load())
		require.Equal(t, 0, testbench.Depth(t, url, s.plan.Dead.RoutingKey))
	}
	t.Logf("calls of a downstream that is out for %v at %d/s: %d without a budget, %d with", outage, rate, without.calls.Load(), with.calls.Load())
	require.LessOrEqual(t, with.calls.Load()*10, without.calls.Load())
	require.Positive(t, with.calls.Load())
	testbench.WaitFor(t, "the budget to open", patience, func() bool { return !budget.State().Closed })
}
