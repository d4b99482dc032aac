package brake

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/middleware/header"
)

// Given a queue with one active consumer, when a process becomes it that has handled nothing before
// the stop, then it takes the whole rate. A queue that is shared out gives it a part.
func TestAStandbyTakesTheWholeRate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newStopped(t)
		standby, shared := Sit(b), Sit(b)
		standby.SetOneActive(true)
		b.Set(header.BrakeState{Rate: 100, Members: 10})
		starts := func(s *Seat, length time.Duration) (n int) {
			for until := time.Now().Add(length); time.Now().Before(until); {
				if later := s.Later(); later > 0 {
					time.Sleep(later)
					continue
				}
				if look := s.Start(time.Now().Add(-time.Hour)); look != nil {
					look(1000 - n)
				}
				n++
			}
			return n
		}
		time.Sleep(time.Second) // the ramp
		assert.InDelta(t, 1250, starts(standby, 10*time.Second), 30)
		assert.InDelta(t, 125, starts(shared, 10*time.Second), 10)
	})
}

// Given a process that stands by after a stop, when it becomes active long after, then nothing
// holds it back.
func TestAPaceWithoutStartsEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newStopped(t)
		s := Sit(b)
		b.Set(header.BrakeState{Rate: 1, Members: 10})
		time.Sleep(time.Minute)
		s.Start(time.Now())
		require.NotZero(t, s.Later())
		time.Sleep(time.Hour)
		for range 100 {
			require.Zero(t, s.Later())
			require.Nil(t, s.Start(time.Now()))
		}
	})
}
