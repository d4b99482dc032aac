// Package metrics has Prometheus metrics of delayed retries.
//
//	m, err := metrics.New()
//	…
//	client, err := topology.Open(ctx, cfg.Connection, strategy, topology.WithObserver(m))
//	retry, err := middleware.NewDelayedRetry(client, policy, middleware.WithObserver(m))
//	operator, err := operate.Open(ctx, url)
//	depth, err := metrics.NewCollector(client, operator, []topology.Plan{plan})
//	registry.MustRegister(m, depth)
//
// [Metrics] counts what becomes of messages, [Collector] asks the broker how many
// are in each queue. Both are prometheus.Collectors, for any Registerer. All names
// begin with millpond_, so that they stand beside those of Watermill's
// components/metrics; for labels of your own use prometheus.WrapRegistererWith.
//
// Labels are bounded: handler and queue have as many values as the program has,
// attempts from ten on share one, and all others are from fixed lists. Nothing
// that comes from a message is a label.
//
// docs/monitoring.md lists the metrics and what to do when one moves. The package
// is a module of its own: who does not use it does not download Prometheus.
package metrics
