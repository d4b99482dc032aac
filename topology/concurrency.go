package topology

import "fmt"

// maxConcurrency is the largest prefetch that AMQP can ask for.
const maxConcurrency = maxPrefetch

// WithConcurrency lets n messages of each Subscribe be in progress at once: n
// handlers run side by side, and a message that fails and waits for the broker's
// confirm, or is held, keeps only its own place busy. From 1 to 65535.
//
// Messages are handed out and end in no particular order; with 1 they are handed
// out in the order of the queue. Each is acked, set aside or given back by itself,
// whatever becomes of the others. Handlers must be safe to be called from n
// goroutines.
//
// The broker is asked to send at least n messages ahead: a smaller
// Consume.Qos.PrefetchCount is raised to n, a larger one stays. So up to n
// messages, or as many as are prefetched, are in memory, and unacked when the
// connection ends: then all of them are delivered again.
//
// After a lost connection the handlers that still run with a message of the old
// one count: never are there more than n. Close waits for all n at once, for at
// most the drain timeout. Messages that may have killed the process are tried
// alone, one at a time for all Subscribers of a Client, so that none is blamed
// for another.
//
// Default: 1.
func WithConcurrency(n int) SubscriberOption {
	return func(o *subscriberOptions) error {
		if n < 1 || n > maxConcurrency {
			return fmt.Errorf("WithConcurrency: %d is not within 1 and %d, the largest prefetch of AMQP", n, maxConcurrency)
		}
		o.concurrency = n
		return nil
	}
}
