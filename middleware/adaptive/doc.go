// Package adaptive counts how a downstream service has been doing, for backoff.Adaptive.
//
//	health, err := adaptive.New(time.Minute)
//	…
//	policy := backoff.Adaptive{
//		Policy: backoff.Exponential{Initial: time.Second, Factor: 2, Retries: 8},
//		Health: health.Recent,
//	}
//	client, err := topology.Open(ctx, cfg.Connection, strategy, topology.WithObserver(health))
//	retry, err := middleware.NewDelayedRetry(client, policy) // takes the client's observers
//
// Handlers that call the same downstream service may share a [Health], also in several
// DelayedRetry. For handlers of several services make one Health for each service, and give it to
// their DelayedRetry with middleware.WithObserver. WithObserver replaces the observers of the
// client, so name those again, too.
//
// A Health counts in this process. The share of failures is the same in each process that calls
// the service.
package adaptive
