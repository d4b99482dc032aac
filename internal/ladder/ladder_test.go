package ladder_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/ladder"
)

const (
	ms   = time.Millisecond
	s    = time.Second
	m    = time.Minute
	h    = time.Hour
	week = 7 * 24 * h
)

// steps that the strategies plan for a policy that cannot list its delays.
var steps = []time.Duration{s, 5 * s, 30 * s, 2 * m, 10 * m, h}

// rounds are all waits of a delay, if each takes exactly as long as its step.
func rounds(steps []time.Duration, asked time.Duration) []time.Duration {
	var all []time.Duration
	for rest := asked; len(all) == 0 || rest > 0; rest -= all[len(all)-1] {
		all = append(all, ladder.Next(steps, rest, asked))
	}
	return all
}

func sum(all []time.Duration) (total time.Duration) {
	for _, d := range all {
		total += d
	}
	return total
}

func TestRoundsOfADelay(t *testing.T) {
	t.Parallel()
	sparse, long := []time.Duration{s, h}, []time.Duration{5 * s, 30 * s, 2 * m}
	tenSeconds := strings.TrimSpace(strings.Repeat("1s ", 10))
	for name, c := range map[string]struct {
		steps []time.Duration
		asked time.Duration
		want  string
	}{
		"nothing":                             {steps, 0, "1s"},
		"negative":                            {steps, -s, "1s"},
		"shorter than all":                    {steps, ms, "1s"},
		"a step":                              {steps, 30 * s, "30s"},
		"a second late":                       {steps, 4 * s, "5s"},
		"more than a second":                  {steps, 3999 * ms, "1s 1s 1s 1s"},
		"a little more than a step":           {steps, s + ms, "1s 1s"},
		"seven seconds":                       {steps, 7 * s, "5s 1s 1s"},
		"a quarter late":                      {steps, 24 * s, "30s"},
		"more than a quarter":                 {steps, 24*s - ms, "5s 5s 5s 5s 5s"},
		"45 seconds":                          {steps, 45 * s, "30s 5s 5s 5s"},
		"the rest is late by a quarter of it": {steps, 20 * m, "10m0s 10m0s"},
		"half an hour":                        {steps, 30 * m, "10m0s 10m0s 10m0s"},
		"longer than all":                     {steps, 2*h + 5*m, "1h0m0s 1h0m0s 10m0s"},
		"longer than all, and a quarter":      {steps, 2*h + 31*m, "1h0m0s 1h0m0s 1h0m0s"},
		"a sparse policy, ten rounds":         {sparse, 10 * s, tenSeconds},
		"a sparse policy, eleven":             {sparse, 11 * s, "1h0m0s"},
		"a sparse policy, half an hour":       {sparse, 30 * m, "1h0m0s"},
		"a sparse policy, a quarter":          {sparse, 48 * m, "1h0m0s"},
		"no step of a second":                 {long, s, "5s"},
		"no step for the rest":                {long, 7 * s, "5s 5s"},
		"rounds that end later than the step": {[]time.Duration{7 * s, 10 * s}, 7900 * ms, "10s"},
		"steps under a second have one round": {[]time.Duration{100 * ms, 3 * s}, 500 * ms, "3s"},
		"no such step for a rest, either":     {[]time.Duration{100 * ms, 3 * s}, 7 * s, "3s 3s 3s"},
		"but a last round":                    {[]time.Duration{100 * ms, 4 * s}, 4100 * ms, "4s 100ms"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := rounds(c.steps, c.asked)
			require.Equal(t, "["+c.want+"]", fmt.Sprint(got))
			require.Equal(t, sum(got), ladder.Total(c.steps, c.asked))
		})
	}
}

func TestNoSteps(t *testing.T) {
	t.Parallel()
	require.Zero(t, ladder.Next(nil, s, s))
	require.Equal(t, m, ladder.Total(nil, m))
}

// Ten years in seconds are not counted one by one.
func TestManyRounds(t *testing.T) {
	t.Parallel()
	const years = 87600 * h
	require.Equal(t, years+s, ladder.Total([]time.Duration{s}, years+ms))
}

func TestGaps(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		steps []time.Duration
		want  []ladder.Gap
	}{
		"one step":                {[]time.Duration{s}, nil},
		"the default":             {steps, nil},
		"twelve and a half times": {[]time.Duration{s, 12500 * ms}, nil},
		"a little more": {
			[]time.Duration{10 * s, 126 * s}, []ladder.Gap{{100 * s, 100800 * ms, 126 * s}},
		},
		"two": {
			[]time.Duration{s, m, 2 * m, 2 * h},
			[]ladder.Gap{{10 * s, 48 * s, m}, {20 * m, 96 * m, 2 * h}},
		},
		"under a second": {[]time.Duration{200 * ms, 5 * s}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, c.want, ladder.Gaps(c.steps))
		})
	}
}

// anySteps are up to eight steps from 10 ms to a day.
func anySteps(r *rand.Rand) []time.Duration {
	var found []time.Duration
	for range 1 + r.IntN(8) {
		found = append(found, between(r, 10*ms, 24*h))
	}
	if r.IntN(2) == 0 { // most plans have it
		found = append(found, s)
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// between returns a delay in whole milliseconds. Short ones are as likely as long ones.
func between(r *rand.Rand, low, high time.Duration) time.Duration {
	for d := low; ; d *= 2 {
		if 2*d >= high {
			return (d + time.Duration(r.Int64N(int64(high-d)+1))).Truncate(ms)
		}
		if r.IntN(8) == 0 {
			return (d + time.Duration(r.Int64N(int64(d)))).Truncate(ms)
		}
	}
}

// allowed returns how late a message may be with these steps, by the words of the documentation:
// a quarter of the delay or a second, or the shortest step of at least a second if that is longer.
// A delay, or the rest of one, that lies in a gap takes the longer step.
func allowed(steps []time.Duration, asked time.Duration) time.Duration {
	late := max(s, asked/4)
	for _, step := range steps {
		if step >= s {
			late = max(late, step)
			break
		}
	}
	for _, gap := range ladder.Gaps(steps) {
		if asked > gap.From {
			late = max(late, gap.Wait-gap.From)
		}
	}
	return late
}

// FuzzEveryDelay checks the promise for any steps and delays from a second to a week: never
// early, no later than allowed, and in no more rounds than stated, also with a backlog.
func FuzzEveryDelay(f *testing.F) {
	for seed := range uint64(1000) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		r := rand.New(rand.NewPCG(seed, 0))
		steps := anySteps(r)
		longest := steps[len(steps)-1]
		asked := between(r, s, min(week, max(2*s, 1000*longest))) // few enough rounds for a test
		most := int(asked/longest) + ladder.MostRounds
		late := allowed(steps, asked)

		all := rounds(steps, asked)
		require.GreaterOrEqual(t, sum(all), asked, "%v early on %v", asked, steps)
		require.LessOrEqual(t, sum(all)-asked, late, "%v late on %v: %v", asked, steps, all)
		require.LessOrEqual(t, len(all), most, "%v on %v: %v", asked, steps, all)
		require.Equal(t, sum(all), ladder.Total(steps, asked), "%v on %v", asked, steps)

		// A backlog in the queue makes each round longer. It counts once.
		backlog := between(r, ms, h)
		var waited time.Duration
		n := 0
		for waited < asked {
			waited += ladder.Next(steps, asked-waited, asked) + time.Duration(r.Int64N(int64(backlog)))
			n++
		}
		require.LessOrEqual(t, waited-asked, late+backlog, "%v on %v, backlog %v", asked, steps, backlog)
		require.LessOrEqual(t, n, most, "%v on %v, backlog %v", asked, steps, backlog)
	})
}

// With the default wait steps the promise has no exception.
func TestDefaultSteps(t *testing.T) {
	t.Parallel()
	check := func(asked, late time.Duration, most int) {
		all := rounds(steps, asked)
		if waits := sum(all); waits < asked || waits > asked+late || len(all) > most {
			t.Fatalf("%v: %v is %v", asked, all, waits)
		}
	}
	for asked := s; asked <= h; asked += 7 * ms {
		check(asked, max(s, asked/4), 5)
	}
	for asked := h; asked <= week; asked += 61 * s {
		check(asked, min(asked/4, h), int(asked/h)+5)
	}
}
