package month

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/stretchr/testify/require"
)

// Each difference between the story of a message and the faults in its life is found.
func TestTheLedgerFindsEachDifference(t *testing.T) {
	t.Parallel()
	noon := time.Now()
	once, twice := []string{handled}, []string{handled, handled}
	three := []string{handled, handled, handled}
	outage := struck{event{name: "outage", copies: 1, again: 1}, noon, noon.Add(time.Minute)}
	for name, c := range map[string]struct {
		faults []struck
		calls  map[int]int
		ends   []string
		want   string
	}{
		"handled":                   {nil, map[int]int{1: 1}, once, ""},
		"a dead letter":             {nil, map[int]int{1: 1, 2: 1, 3: 1}, []string{"exhausted"}, ""},
		"lost":                      {nil, map[int]int{1: 1}, nil, "message 0 has not ended"},
		"lost in an outage":         {[]struck{outage}, nil, nil, "message 0 has not ended"},
		"handled twice":             {nil, nil, twice, "has ended 2 times"},
		"a copy of an outage":       {[]struck{outage}, map[int]int{1: 2}, twice, ""},
		"two copies":                {[]struck{outage}, nil, three, "3 times"},
		"a call again":              {nil, map[int]int{1: 2}, once, "2 calls of attempt 1"},
		"a call of an outage":       {[]struck{outage}, map[int]int{1: 2}, once, ""},
		"a delivery that went back": {nil, map[int]int{1: 2}, twice, ""},
		"more calls":                {[]struck{outage}, map[int]int{1: 5}, once, "5 calls"},
		"a fourth attempt":          {nil, map[int]int{4: 1}, once, "attempt 4"},
		"a crash without a kill":    {nil, nil, []string{"crash_loop"}, "crash loop"},
		"the outage of another day": {
			[]struck{{outage.event, noon.Add(-time.Hour), noon.Add(-time.Minute)}},
			map[int]int{1: 2},
			once,
			"2 calls of attempt 1",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLedger()
			l.faults = c.faults
			l.stories[0] = &story{
				sent: noon, last: noon.Add(time.Second), confirmed: true, calls: c.calls, ends: c.ends,
			}
			if name == "a delivery that went back" {
				said := lines{ledger: l}.With(watermill.LogFields{"message_id": "0"})
				said.Error("it goes back to its queue", errors.New("outcome unknown"), nil)
				said.Error("it goes back to its queue", errors.New("refused"), nil)
			}
			var r Report
			l.verdict(&r)
			if c.want == "" {
				require.Empty(t, r.Problems)
				return
			}
			require.Contains(t, fmt.Sprint(r.Problems), c.want)
		})
	}
}

// A machine may be too busy for the consumer timeout at times, but not every day.
func TestTheConsumerTimeoutMayStrikeOnceAWeek(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ days, late, problems int }{
		{7, 0, 0}, {7, 2, 0}, {7, 3, 1}, {1, 4, 1}, {30, 10, 0}, {30, 11, 1},
	} {
		r := Report{Late: c.late}
		r.tooLate(c.days)
		require.Len(t, r.Problems, c.problems, c)
	}
}
