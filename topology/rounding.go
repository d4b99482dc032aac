package topology

import (
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
)

// maxAsked bounds the list of delays that a warning names.
const maxAsked = 16

// rounding says once for each Subscribe that a delay is rounded up by more than a
// tenth: the Subscriber does not know the policy, or the error asked for the delay.
type rounding struct {
	mu    sync.Mutex
	asked []time.Duration // so far, distinct
	said  bool
}

// note takes down a delay that a DelayedRetry asked for.
func (r *rounding) note(s *subscription, asked time.Duration) {
	given := s.plan.waits(asked)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.said {
		return
	}
	if len(r.asked) < maxAsked && !slices.Contains(r.asked, asked) {
		r.asked = append(r.asked, asked)
	}
	// A message that is set aside for as short as possible asks for a millisecond.
	if given-asked <= asked/10 || asked <= time.Millisecond {
		return
	}
	r.said = true
	fields := watermill.LogFields{"asked": asked, "delay": given, "delays_asked": r.asked}
	if l := s.plan.Levels; l != nil {
		s.logger.Info("Warning: a delay is rounded up by more than a tenth to a multiple of the resolution; "+
			"give topology.Levels a smaller Resolution", fields.Add(watermill.LogFields{"resolution": l.Resolution}))
		return
	}
	s.logger.Info("Warning: a delay is rounded up by more than a tenth to the next longer wait step; "+
		"give the Subscriber the policy with topology.ForPolicy, and a delay that an error asks for as a backoff.List beside it",
		fields.Add(watermill.LogFields{"wait_steps": s.plan.steps()}))
}

// steps are the delays that have a wait queue, ascending, each once.
func (p Plan) steps() []time.Duration {
	steps := make([]time.Duration, 0, len(p.WaitSteps))
	for _, rung := range p.WaitSteps {
		steps = append(steps, rung.Delay)
	}
	return slices.Compact(steps)
}
