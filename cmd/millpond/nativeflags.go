package main

import (
	"slices"
	"time"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/native"
)

const nativeStrategy = "native"

// nativeOf makes the strategy of a queue that holds rejected messages as long as the policy says.
func nativeOf(w waits) (topology.Strategy, error) {
	if len(w.delays) == 0 {
		return nil, usage("--%s native: name the delays of the queue in --%s, as in 5s,10s,15s",
			flagStrategy, flagPolicy)
	}
	s := native.Strategy{
		Min: w.delays[0], Max: slices.Max(w.delays),
		Else: topology.PerQueue{Type: w.kind, Prefix: w.prefix, Dead: w.dead},
	}
	for i, delay := range w.delays {
		if held := min(s.Min*time.Duration(i+1), s.Max); delay != held {
			return nil, usage("--%s: delay %d is %v, but a queue that holds messages for %v to %v holds "+
				"them for %v then: only policies like %v fit, or others with wait queues", flagPolicy, i+1,
				delay, s.Min, s.Max, held, backoff.List{s.Min, 2 * s.Min, 3 * s.Min})
		}
	}
	return s, nil
}
