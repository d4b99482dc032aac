package topology

import (
	"fmt"
	"math/bits"
	"strings"
	"time"

	"github.com/millpond-go/millpond/backoff"
)

// LevelRoutes is how a plan of Levels makes the route of any delay.
type LevelRoutes struct {
	// Exchange is where every message enters.
	Exchange string
	// Destination is the last word of every routing key: the escaped queue.
	Destination string
	// Resolution is what level 0 waits; each further one waits twice as long.
	Resolution time.Duration
	// Levels is how many there are.
	Levels int
	// Tolerance is the fraction by which a delay may grow to pass fewer levels.
	Tolerance float64
}

// check says what is wrong with the numbers.
func (l LevelRoutes) check() error {
	switch {
	case l.Resolution <= 0 || l.Resolution > maxSnooze:
		return fmt.Errorf("resolution %v is not over zero and up to %v: set it", l.Resolution, maxSnooze)
	case l.Levels < 1 || l.Levels > 62 || l.Resolution > backoff.MaxDelay>>(l.Levels-1):
		return fmt.Errorf("%d levels of %v and more are none, or wait over ten years: correct their number", l.Levels, l.Resolution)
	case !(l.Tolerance >= 0 && l.Tolerance <= 1): // NaN as well
		return fmt.Errorf("tolerance %v is not between 0 and 1: correct it", l.Tolerance)
	}
	return nil
}

// route returns the way of a delay.
func (l LevelRoutes) route(asked time.Duration) Route {
	steps := l.steps(asked)
	return Route{
		Exchange:   l.Exchange,
		RoutingKey: levelKey(steps, l.Destination),
		Delay:      time.Duration(steps) * l.Resolution,
		Hops:       bits.OnesCount64(steps),
	}
}

// steps returns a delay in steps of the resolution. Where all levels together are too
// short, the message takes the longest one alone: rounds of few hops.
func (l LevelRoutes) steps(asked time.Duration) uint64 {
	longest := uint64(1)<<l.Levels - 1
	steps := uint64(1)
	if asked > 0 {
		steps = uint64((asked-1)/l.Resolution) + 1
	}
	if steps > longest {
		return 1 << (l.Levels - 1)
	}
	most := uint64(float64(max(asked, 0)) * (1 + l.Tolerance) / float64(l.Resolution))
	return fewestBits(steps, min(most, longest))
}

// fewestBits returns the number with the fewest bits from least to most, of
// several the smallest; least where most is smaller. Any such number shares the
// bits of least above some place, has a bit at that place, and needs none below
// it.
func fewestBits(least, most uint64) uint64 {
	best := least
	for place := 0; place < 63; place++ {
		next := (least>>place + 1) << place
		if next > most {
			break
		}
		if bits.OnesCount64(next) < bits.OnesCount64(best) {
			best = next
		}
	}
	return best
}

// levelKey writes the bits of a number of steps, the lowest first, and the
// destination. It does not depend on how many levels there are.
func levelKey(steps uint64, destination string) string {
	var key strings.Builder
	for ; steps > 0; steps >>= 1 {
		key.WriteByte('0' + byte(steps&1))
		key.WriteByte('.')
	}
	key.WriteString(destination)
	return key.String()
}

// String says which delays there are, in one line.
func (l LevelRoutes) String() string {
	longest := time.Duration(uint64(1)<<l.Levels-1) * l.Resolution
	return fmt.Sprintf("any delay in steps of %s up to %s, %g %% more for fewer levels", delayName(l.Resolution), delayName(longest), 100*l.Tolerance)
}
