package metrics_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/middleware/metrics"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/operate"
)

// inspector returns the result of answer, and counts the calls.
type inspector struct {
	mu     sync.Mutex
	asked  int
	answer func(ctx context.Context, plan topology.Plan) (operate.Report, error)
}

func (i *inspector) Inspect(ctx context.Context, plan topology.Plan) (operate.Report, error) {
	i.mu.Lock()
	i.asked++
	i.mu.Unlock()
	return i.answer(ctx, plan)
}

// connecting is a client that has no connection.
type connecting struct{}

func (connecting) Healthy() error { return errors.New("connecting") }

func amqpCount(n int) operate.Count { return operate.Count{N: n, Source: operate.SourceAMQP} }

func managementCount(n int) operate.Count {
	return operate.Count{N: n, Source: operate.SourceManagement}
}

var unknown = operate.Count{N: -1}

// plans are the plans of these queues.
func plans(queues ...string) (plans []topology.Plan) {
	for _, queue := range queues {
		plans = append(plans, topology.Plan{Queue: queue})
	}
	return plans
}

func newCollector(
	t *testing.T, client metrics.Inspector, plans []topology.Plan, opts ...metrics.CollectorOption,
) *metrics.Collector {
	t.Helper()
	c, err := metrics.NewCollector(connecting{}, client, plans, opts...)
	require.NoError(t, err)
	return c
}

func collect(t *testing.T, c prometheus.Collector) map[string]float64 {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(c)
	all := map[string]float64{}
	for name, value := range samples(t, registry) {
		all[strings.TrimPrefix(name, "millpond_")] = value
	}
	return all
}

func TestCollectorReportsWhatIsKnown(t *testing.T) {
	t.Parallel()
	shared := operate.Queue{
		Name: "wait.1s", Role: operate.RoleWait, Ready: amqpCount(3), Consumers: amqpCount(0),
		Total: managementCount(8), Held: managementCount(5),
	}
	orders := operate.Queue{
		Name: "orders", Role: operate.RoleMain, Ready: amqpCount(7), Consumers: amqpCount(2),
		Total: unknown, Held: unknown,
	}
	mail := operate.Queue{
		Name: "mail", Role: operate.RoleMain, Missing: true, Ready: unknown, Consumers: unknown,
		Total: unknown, Held: unknown,
	}
	answer := func(_ context.Context, plan topology.Plan) (operate.Report, error) {
		switch plan.Queue {
		case "mail":
			return operate.Report{
				Queue: "mail", ManagementErr: errors.New("gone"), Queues: []operate.Queue{mail, shared},
			}, nil
		case "away":
			return operate.Report{}, errors.New("no connection")
		}
		return operate.Report{Queue: "orders", Queues: []operate.Queue{orders, shared}}, nil
	}
	c := newCollector(t, &inspector{answer: answer}, plans("orders", "mail", "away"))
	want := map[string]float64{
		`client_healthy`:                                                 0,
		`inspect_up{queue="orders"}`:                                     1,
		`inspect_up{queue="mail"}`:                                       1,
		`inspect_up{queue="away"}`:                                       0,
		`inspect_management_up{queue="orders"}`:                          1,
		`inspect_management_up{queue="mail"}`:                            0,
		`queue_messages_ready{name="orders",queue="orders",role="main"}`: 7,
		`queue_consumers{name="orders",queue="orders",role="main"}`:      2,
		`queue_missing{name="orders",queue="orders",role="main"}`:        0,
		`queue_missing{name="mail",queue="mail",role="main"}`:            1,
		// The wait queue of two plans belongs to neither, and is there once.
		`queue_messages_ready{name="wait.1s",queue="",role="wait"}`: 3,
		`queue_consumers{name="wait.1s",queue="",role="wait"}`:      0,
		`queue_messages{name="wait.1s",queue="",role="wait"}`:       8,
		`queue_messages_held{name="wait.1s",queue="",role="wait"}`:  5,
		`queue_missing{name="wait.1s",queue="",role="wait"}`:        0,
	}
	require.Equal(t, want, collect(t, c))
	problems, err := testutil.CollectAndLint(c)
	require.NoError(t, err)
	require.Empty(t, problems)
}

func TestCollectorRemembersAnAnswer(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		option metrics.CollectorOption
		asked  int
	}{
		"for a while": {metrics.WithCacheFor(time.Hour), 1},
		"not at all":  {metrics.WithCacheFor(0), 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := &inspector{answer: func(context.Context, topology.Plan) (operate.Report, error) {
				return operate.Report{}, nil
			}}
			c := newCollector(t, client, plans("orders"), test.option)
			for range 3 {
				collect(t, c)
			}
			require.Equal(t, test.asked, client.asked)
		})
	}
}

func TestCollectorIsBoundedInTime(t *testing.T) {
	t.Parallel()
	client := &inspector{answer: func(ctx context.Context, _ topology.Plan) (operate.Report, error) {
		<-ctx.Done()
		return operate.Report{}, ctx.Err()
	}}
	c := newCollector(t, client, plans("orders", "mail"), metrics.WithTimeout(50*time.Millisecond))
	began := time.Now()
	got := collect(t, c)
	require.Less(t, time.Since(began), 10*time.Second)
	require.Equal(t, map[string]float64{
		`client_healthy`: 0, `inspect_up{queue="orders"}`: 0, `inspect_up{queue="mail"}`: 0,
	}, got)
}

func TestCollectorNamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	_, err := metrics.NewCollector(nil, nil, plans("", "orders", "orders"), metrics.WithTimeout(0))
	require.EqualError(t, err, "new collector: WithTimeout: 0s is not positive\nclient is nil\n"+
		"inspector is nil: use operate.Open\n"+
		"plan 1 is empty: use topology.PlanFor\nplan 3: queue \"orders\" is there twice")
	_, err = metrics.NewCollector(connecting{}, &inspector{}, nil, metrics.WithCacheFor(-1))
	require.ErrorContains(t, err, "WithCacheFor: -1ns is negative")
}
