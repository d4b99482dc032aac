package brake

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// simulate lets messages arrive at a rate, each of which waits for the pace and then for a timer
// that fires late. It returns the starts of each second, and when the pace was over.
func simulate(
	p *pace, begin time.Time, length time.Duration, arriving float64, gathered int, late time.Duration,
) (starts []int, over time.Duration) {
	starts = make([]int, int(length/time.Second)+1)
	now, n := begin, -gathered
	for now.Before(begin.Add(length)) {
		arrived := begin
		if n++; n > 0 {
			arrived = begin.Add(time.Duration(float64(n) / arriving * float64(time.Second)))
		}
		if now.Before(arrived) {
			now = arrived
		}
		if later := p.later(now); later > 0 {
			now = now.Add(later + late)
		}
		starts[int(now.Sub(begin)/time.Second)]++
		if p.start(now, arrived) {
			return starts, now.Sub(begin)
		}
	}
	return starts, 0
}

// Given timers that fire two milliseconds late, when a backlog is handled after a stop, then the
// rate rises to the rate before and is a quarter higher after the ramp, for slow and fast
// processes.
func TestPaceHoldsItsRate(t *testing.T) {
	t.Parallel()
	for _, rate := range []float64{12.5, 200, 1000, 4000} {
		begin := time.Now()
		p := newPace(begin, 10*time.Second, rate)
		starts, over := simulate(p, begin, 30*time.Second, rate, 1_000_000, 2*time.Millisecond)
		require.Zero(t, over, "a backlog is left")
		for second, n := range starts[:30] {
			most := rate * max(leastShare, min(1, float64(second+1)/10))
			if second >= 10 {
				most = rate * above
				assert.GreaterOrEqual(t, float64(n), 0.97*most-1, "%g a second, second %d", rate, second)
			}
			assert.LessOrEqual(t, float64(n), most*(1+catchUp.Seconds())+2, "%g a second, second %d", rate,
				second)
		}
	}
}

// Given a queue that fills at the rate before the stop, when the backlog is handled, then the pace
// ends, so that it does not hold back traffic that grows.
func TestPaceEndsWithTheBacklog(t *testing.T) {
	t.Parallel()
	for _, rate := range []float64{0.5, 12.5, 200} {
		begin := time.Now()
		p := newPace(begin, 10*time.Second, rate)
		backlog := int(10 * rate)
		_, over := simulate(p, begin, 10*time.Minute, rate, backlog, time.Millisecond)
		require.NotZero(t, over, "%g a second", rate)
		// The ramp adds half its length to the backlog of 10 s, which a quarter of the rate handles.
		assert.GreaterOrEqual(t, over, 60*time.Second, "%g a second", rate)
		assert.LessOrEqual(t, over, 2*time.Minute, "%g a second", rate)
	}
}

// Given a process and a broker that stall now and then, when a backlog is left, then the pace
// stays.
func TestPaceOutlastsStalls(t *testing.T) {
	t.Parallel()
	begin := time.Now()
	p := newPace(begin, 0, 100)
	now := begin
	for n := range 5000 {
		arrived := now
		now = now.Add(p.later(now))
		switch n % 100 {
		case 0: // the process
			now = now.Add(400 * time.Millisecond)
		case 50: // the broker
			arrived = now.Add(3 * time.Second)
			now = arrived
		}
		require.False(t, p.start(now, arrived), "start %d", n)
	}
}

// A queue with few messages has no backlog.
func TestPaceEndsWithFewMessages(t *testing.T) {
	t.Parallel()
	begin := time.Now()
	p := newPace(begin, 10*time.Second, 100)
	over := 0
	for n := 0; over == 0 && n < 100; n++ {
		at := begin.Add(time.Duration(n) * 10 * time.Second)
		if p.start(at, at) {
			over = n
		}
	}
	assert.Equal(t, 11, over)
}

// A handler that was held up for long is followed by a few starts at once, not by all that it
// missed.
func TestPaceCatchesUpALittle(t *testing.T) {
	t.Parallel()
	begin := time.Now()
	p := newPace(begin, 0, 100)
	now := begin.Add(3 * time.Second)
	n := 0
	for p.later(now) == 0 {
		p.start(now, begin)
		n++
	}
	assert.InDelta(t, 100*above*catchUp.Seconds(), n, 2)
}

// Given a process that handles messages evenly, when it asks for its rate after any time, then the
// seconds that have begun and not ended make no difference.
func TestRateOfShortTimes(t *testing.T) {
	t.Parallel()
	for _, rate := range []float64{5, 12.5, 400} {
		for _, length := range []float64{1.3, 1.9, 2.5, 7.2, 59.1, 61.5, 190.7} {
			begin := time.Unix(1_000_000, 0).Add(870 * time.Millisecond)
			var m meter
			for n := 0; ; n++ {
				at := float64(n) / rate
				if at > length {
					break
				}
				m.count(begin.Add(time.Duration(at * float64(time.Second))))
			}
			assert.InEpsilon(t, rate, m.rate(), 0.2, "%g a second for %g s", rate, length)
		}
	}
}

// A process that has handled little says so.
func TestRateOfFewMessages(t *testing.T) {
	t.Parallel()
	var m meter
	now := time.Unix(1_000_000, 0)
	assert.Zero(t, m.rate())
	m.count(now)
	assert.InDelta(t, 1, m.rate(), 0.01)
	m.count(now.Add(10 * time.Second))
	assert.InDelta(t, 0.2, m.rate(), 0.01)
	m.count(now.Add(10 * time.Minute))
	assert.InDelta(t, 1, m.rate(), 0.01, "the others are too old")
}

// Given a process that must handle more than before the stop, when the queue does not become
// shorter, then its limit rises, and else it does not.
func TestPaceRises(t *testing.T) {
	t.Parallel()
	begin := time.Now()
	p := newPace(begin, 10*time.Second, 50)
	assert.False(t, p.mustLook(begin.Add(9*time.Second)), "during the ramp")
	at, ready := begin.Add(10*time.Second), 1000
	look := func(change int) {
		require.True(t, p.mustLook(at))
		assert.False(t, p.mustLook(at.Add(29*time.Second)))
		p.look("orders", ready)
		at, ready = at.Add(30*time.Second), max(0, ready+change)
	}
	for range 5 { // the queue drains
		look(-100)
	}
	assert.InDelta(t, float64(time.Second)/62.5, float64(p.pause(at)), float64(time.Microsecond))
	for range 9 { // it grows
		look(100)
	}
	assert.Less(t, p.pause(at), time.Second/120)
	ready = 0
	look(0)
	look(0) // it is empty
	assert.Greater(t, p.pause(at), time.Second/135)
}

// Given a broker that answers late, when many handlers start until then, then one of them looks at
// the queue, so that the answers do not raise the limit one after another.
func TestOneLookAtATime(t *testing.T) {
	t.Parallel()
	begin := time.Now()
	p := newPace(begin, 10*time.Second, 100)
	looks := 0
	for n := range 7200 { // 72 s, and 5 starts until an answer comes
		if p.mustLook(begin.Add(time.Duration(n) * 10 * time.Millisecond)) {
			looks++
		}
	}
	assert.Equal(t, 3, looks, "after 10 s, 40 s and 70 s")
}

// Given a process with a long and a short queue, when both drain, then the limit does not rise
// because looks at them alternate.
func TestEachQueueIsComparedWithItself(t *testing.T) {
	t.Parallel()
	begin := time.Now()
	p := newPace(begin, 0, 50)
	for n := range 10 {
		p.look("short", 100-n)
		p.look("long", 1000-n)
	}
	assert.InDelta(t, float64(time.Second)/62.5, float64(p.pause(begin)), float64(time.Microsecond))
}
