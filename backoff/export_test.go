package backoff

import "math/rand/v2"

// Seeded returns a jitter that draws the same delays every time. It is not for
// concurrent use.
func Seeded[P FullJitter | EqualJitter | BoundedJitter | DecorrelatedJitter](p P, seed uint64) P {
	random := rand.New(rand.NewPCG(seed, 0))
	switch p := any(&p).(type) {
	case *FullJitter:
		p.random = random
	case *EqualJitter:
		p.random = random
	case *BoundedJitter:
		p.random = random
	case *DecorrelatedJitter:
		p.random = random
	}
	return p
}
