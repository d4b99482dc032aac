package metrics_test

import (
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/metrics"
	"github.com/millpond-go/millpond/middleware/middlewaretest"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/operate"
)

func ExampleNew() {
	m, err := metrics.New()
	if err != nil {
		fmt.Println(err)
		return
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(m)

	broker := middlewaretest.NewBroker()
	policy := backoff.List{time.Second}
	retry, err := middleware.NewDelayedRetry(broker, policy, middleware.WithObserver(m))
	if err != nil {
		fmt.Println(err)
		return
	}
	handler := retry.Middleware(middlewaretest.Consumer(func(*message.Message) error {
		return errors.New("no stock")
	}))
	broker.Run(handler, middlewaretest.NewMessage(middleware.Delivery{Queue: "orders"}, nil))

	n, err := testutil.GatherAndCount(registry, "millpond_retries_total")
	fmt.Println(n, err)
	// Output: 1 <nil>
}

func ExampleNewCollector() {
	var client *topology.Client    // of topology.Open
	var operator *operate.Operator // of operate.Open
	_, err := metrics.NewCollector(client, operator, []topology.Plan{{}})
	fmt.Println(err)
	// Output:
	// new collector: client is nil
	// inspector is nil: use operate.Open
	// plan 1 is empty: use topology.PlanFor
}

// Every option of the metrics of events and of the Collector of depths.
func ExampleNew_options() {
	var m *metrics.Metrics
	m, err := metrics.New([]metrics.Option{metrics.WithProcessingBuckets(0.01, 0.1, 1)}...)
	fmt.Println(m != nil, err)
	var client metrics.Client // a *topology.Client
	var operator metrics.Inspector
	options := []metrics.CollectorOption{
		metrics.WithCacheFor(time.Minute), metrics.WithTimeout(time.Second),
	}
	var depths *metrics.Collector
	depths, err = metrics.NewCollector(client, operator, nil, options...)
	fmt.Println(depths == nil, err != nil)
	// Output:
	// true <nil>
	// true true
}
