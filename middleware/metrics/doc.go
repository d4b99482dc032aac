// Package metrics provides Prometheus metrics of delayed retries.
//
//	m, err := metrics.New()
//	…
//	client, err := topology.Open(ctx, cfg.Connection, strategy, topology.WithObserver(m))
//	retry, err := middleware.NewDelayedRetry(client, policy)
//	plan, err := topology.PlanFor(strategy, "orders", retry.PoliciesFor("orders", "orders")...)
//	operator, err := operate.Open(ctx, url)
//	depth, err := metrics.NewCollector(client, operator, []topology.Plan{plan})
//	registry.MustRegister(m, depth)
//
// [Metrics] counts the outcomes of messages. [Collector] asks the broker how many
// messages are in each queue. Both are prometheus.Collectors, for any Registerer. All
// names begin with millpond_, so that they stand beside the metrics of Watermill's
// components/metrics. For your own labels use prometheus.WrapRegistererWith.
//
// The number of label values is bounded. handler and queue have as many values as the
// program has, and attempts and retry levels from ten on share one value. retry_delay has the first
// 50 delays of each queue, and "other". All other labels have values from fixed lists. No label
// comes from a message.
//
// docs/monitoring.md lists the metrics and the answer to each that moves. The package is
// its own module, so that only its users download Prometheus.
package metrics
