package topology_test

import (
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/millpond-go/millpond/internal/testing/rig"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
)

// A downstream is out while messages keep coming. With a budget it is called no more
// often than the budget's probes allow, and every message is handled afterwards. With
// MILLPOND_LONG the outage lasts a minute at 200 messages a second, and the downstream
// is called a tenth as often at most.
func TestBudgetSparesADownstreamThatIsOut(t *testing.T) {
	t.Parallel()
	rate, outage, long := 100, 6*time.Second, os.Getenv("MILLPOND_LONG") != ""
	if long {
		rate, outage = 200, time.Minute
	}
	url := testbroker.URL(t)
	policy := backoff.Constant{Interval: 500 * time.Millisecond, Retries: 10_000}
	const (
		slow        = 4 * time.Second
		window      = 3 * time.Second
		minimum     = 10
		probes      = 10
		concurrency = 16
	)

	type service struct {
		*rig.Service
		calls, handled atomic.Int64 // while it is out, and afterwards
	}
	var out atomic.Bool
	out.Store(true)
	serve := func(options ...middleware.Option) *service {
		s := &service{}
		s.Service = rig.Start(t, rig.Config{
			URL: url, Policy: policy, Configure: rig.Prefetch(50), RetryOptions: options,
			SubscriberOptions: []topology.SubscriberOption{topology.ForPolicy(backoff.List{slow}), topology.WithConcurrency(concurrency)},
			Handler: func(*message.Message) ([]*message.Message, error) {
				if out.Load() {
					s.calls.Add(1)
					return nil, rig.ErrFailed
				}
				s.handled.Add(1)
				return nil, nil
			},
		})
		testbroker.Delete(t, s.Queue+".wait.4s")
		return s
	}
	budget, err := middleware.NewBudget(middleware.BudgetConfig{Share: 0.5, Window: window, Minimum: minimum, Probes: probes, Delay: slow})
	require.NoError(t, err)
	with := serve(middleware.WithBudget(budget))
	services := []*service{with}
	if long {
		services = append(services, serve()) // to compare with
	}

	ch := testbroker.Channel(t, url)
	require.NoError(t, ch.Confirm(false))
	began, sent := time.Now(), 0
	var last *amqp.DeferredConfirmation
	for tick := time.NewTicker(10 * time.Millisecond); time.Since(began) < outage; <-tick.C {
		for ; sent < int(time.Since(began).Seconds()*float64(rate)); sent++ {
			for _, s := range services {
				last, err = ch.PublishWithDeferredConfirm("", s.Queue, true, false, amqp.Publishing{DeliveryMode: amqp.Persistent})
				require.NoError(t, err)
			}
		}
	}
	require.True(t, last.Wait())
	out.Store(false)
	windows := int64(time.Since(began)/window) + 1
	for _, s := range services {
		rig.WaitFor(t, "every message to be handled", func() bool { return s.handled.Load() >= int64(sent) })
		require.Equal(t, int64(sent), s.handled.Load())
		require.Equal(t, 0, testbroker.Depth(t, url, s.Plan.Dead.RoutingKey))
	}
	t.Logf("%d calls of a downstream that is out for %v at %d messages a second", with.calls.Load(), outage, rate)
	// A window in which no delivery came opens the budget: then the first failures close it again.
	require.LessOrEqual(t, with.calls.Load(), windows*(minimum+concurrency+probes))
	if long {
		without := services[1].calls.Load()
		t.Logf("%d calls without a budget", without)
		require.LessOrEqual(t, with.calls.Load()*10, without)
	}
	require.Positive(t, with.calls.Load())
	rig.WaitFor(t, "the budget to open", func() bool { return !budget.State().Closed })
}
