package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// script is the log of a run in short: a word for each event.
//
//	a+2.1    instance a begins number 2 of key 1, attempt 1
//	a-2.1    … and it fails
//	a=2.1    … and it succeeds
//	a!2.1    … and it gives up
//	op<2.0   the operator releases the key of number 2, and op>2.0 replays its letter
//	a*kill   instance a suffers a fault: kill, freeze, thaw, cut
//	*healed  all faults are over
//
// A second passes between two words. @7 at the end of a word is the fencing token.
func script(t *testing.T, words string) (events []event) {
	t.Helper()
	calls := map[string]uint64{}
	for i, w := range strings.Fields(words) {
		e := event{at: time.Unix(int64(i), 0)}
		w, token, _ := strings.Cut(w, "@")
		at := strings.IndexAny(w, "+-=!*<>")
		require.GreaterOrEqual(t, at, 0, w)
		e.instance = w[:at]
		if w[at] == '*' {
			e.kind = struck
			e.fault = map[string]fault{
				"kill": killActive, "freeze": freezeActive, "thaw": thawed, "cut": cutAll, "healed": healed,
			}[w[at+1:]]
			require.NotEmpty(t, e.fault, w)
			events = append(events, e)
			continue
		}
		e.kind, e.msg.key = ended, 1
		_, err := fmt.Sscanf(w[at+1:], "%d.%d", &e.msg.n, &e.attempt)
		require.NoError(t, err, w)
		if token != "" {
			_, err := fmt.Sscan(token, &e.epoch)
			require.NoError(t, err, w)
		}
		handling := e.instance + w[at+1:]
		switch w[at] {
		case '+':
			e.kind = begun
			calls[handling] = uint64(i)
		case '-':
			e.outcome = failed
		case '=':
			e.outcome = handled
		case '!':
			e.outcome = gaveUp
		case '<':
			e.kind, e.outcome = decided, released
		case '>':
			e.kind, e.outcome = decided, replayed
		}
		e.call = calls[handling]
		events = append(events, e)
	}
	return events
}

// confirmedUpTo returns that all messages up to a number were confirmed at the beginning.
func confirmedUpTo(number int) func(id) (time.Time, bool) {
	return func(m id) (time.Time, bool) { return time.Unix(0, 0), m.n <= number }
}

// judgedScript returns the report of a script. All messages up to confirmed were confirmed at the
// beginning.
func judgedScript(t *testing.T, words string, confirmed int, letters, left []int) report {
	t.Helper()
	j := newJudge(fates{}, usualDelays, 10*time.Second, confirmedUpTo(confirmed))
	for _, e := range script(t, words) {
		j.add(e)
	}
	ids := func(numbers []int) (all []id) {
		for _, n := range numbers {
			all = append(all, id{1, n})
		}
		return all
	}
	var dead []letter
	for _, m := range ids(letters) {
		dead = append(dead, letter{m, "crash_loop"})
	}
	return j.close(map[int]int{1: confirmed}, dead, map[string][]id{"orders": ids(left)})
}

func TestJudge(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		words         string
		confirmed     int
		letters, left []int
		want          func(r *report)
	}{
		"in order": {words: "a+1.1 a-1.1 a+1.2 a=1.2 a+2.1 a=2.1", confirmed: 2},
		"a later message is handled during the wait": {
			words: "a+1.1 a-1.1 a+2.1 a=2.1 a+1.2 a=1.2", confirmed: 2,
			want: func(r *report) { r.Inversions = make([]string, 1) },
		},
		"two messages are overtaken": {
			words: "a+3.1 a=3.1 a+1.1 a=1.1 a+2.1 a=2.1", confirmed: 3,
			want: func(r *report) { r.Inversions = make([]string, 2) },
		},
		"a later message begins before an earlier one ends": {
			words: "a+1.1 a+2.1 a=1.1 a=2.1", confirmed: 2,
			want: func(r *report) { r.Inversions, r.InOne = make([]string, 1), make([]string, 1) },
		},
		"a duplicate beside itself": {
			words: "a+1.1 a=1.1 a+1.1 a=1.1 a+2.1 a=2.1", confirmed: 2,
			want: func(r *report) { r.Duplicates = 1 },
		},
		"a late duplicate is no inversion": {
			words: "a+1.1 a=1.1 a+2.1 a=2.1 a+1.1 a=1.1", confirmed: 2,
			want: func(r *report) { r.Duplicates = 1 },
		},
		"handled after a kill": {
			words: "a+1.1 a*kill b+1.1 b=1.1 b+2.1 b=2.1", confirmed: 2,
			want: func(r *report) { r.Faults[killActive] = 1 },
		},
		"overtaken after a kill": {
			words: "a+1.1 a-1.1 a*kill b+2.1 b=2.1 b+1.2 b=1.2", confirmed: 2,
			want: func(r *report) { r.Faults[killActive], r.Inversions = 1, make([]string, 1) },
		},
		"the key goes on after a dead letter": {
			words: "a+1.6 a!1.6 a+2.1 a=2.1", confirmed: 2, letters: []int{1},
			want: func(r *report) { r.Letters, r.Unexplained = 1, make([]string, 1) },
		},
		"a dead letter that is nowhere is lost": {
			words: "a+1.6 a!1.6 a+2.1 a=2.1", confirmed: 2,
			want: func(r *report) { r.Lost = make([]id, 1) },
		},
		"lost": {
			words: "a+1.1 a-1.1", confirmed: 1, want: func(r *report) { r.Lost = make([]id, 1) },
		},
		"not lost": {words: "a+1.1 a-1.1", confirmed: 1, left: []int{1}},
		"two instances at once": {
			words: "a+1.1 b+1.1 a=1.1 b=1.1", confirmed: 1,
			want: func(r *report) { r.Overlaps, r.Duplicates = make([]string, 1), 1 },
		},
		"two instances at once after a cut": {
			words: "a+1.1 *cut b+1.1 a=1.1 b=1.1", confirmed: 1,
			want: func(r *report) { r.Excused, r.Duplicates, r.Faults[cutAll] = 1, 1, 1 },
		},
		"a frozen instance wakes in its handler": {
			words: "a+1.1@1 a*freeze b+1.1@2 b=1.1@2 b+2.1@2 a*thaw a=1.1@1 b=2.1@2", confirmed: 2,
			want: func(r *report) {
				r.Excused, r.Duplicates, r.Zombies, r.Overtaken, r.Tokens = 2, 1, 1, 1, 2
				r.Faults[freezeActive] = 1
			},
		},
		"a woken instance begins with an old token": {
			words:     "a+1.1@1 a=1.1@1 a*freeze b+2.1@2 b=2.1@2 a*thaw a+2.1@1 a=2.1@1",
			confirmed: 2,
			want: func(r *report) {
				r.Duplicates, r.Late, r.Tokens, r.Faults[freezeActive] = 1, 1, 2, 1
			},
		},
		"an instance begins with an old token long after it woke": {
			words:     "a+1.1@1 a=1.1@1 a*freeze a*thaw b+2.1@2 b=2.1@2 b+3.1@2 b=3.1@2 a+2.1@1 a=2.1@1",
			confirmed: 3,
			want: func(r *report) {
				r.Duplicates, r.Stale, r.Tokens = 1, make([]string, 1), 2
				r.Faults[freezeActive] = 1
			},
		},
		"an instance begins with an old token and no fault": {
			words:     "a+1.1@1 a=1.1@1 b+2.1@2 b=2.1@2 a+2.1@1 a=2.1@1",
			confirmed: 2,
			want: func(r *report) {
				r.Duplicates, r.Stale, r.Tokens = 1, make([]string, 1), 2
			},
		},
		"an old token joins a handling": {
			words:     "a+1.1@1 a=1.1@1 b+2.1@2 a+2.1@1 b=2.1@2 a=2.1@1",
			confirmed: 2,
			want: func(r *report) {
				r.Overlaps, r.Stale = make([]string, 1), make([]string, 1)
				r.Duplicates, r.Tokens = 1, 2
			},
		},
		"an old token joins a handling shortly after a cut": {
			words:     "a+1.1@1 a=1.1@1 *cut b+2.1@2 a+2.1@1 b=2.1@2 a=2.1@1",
			confirmed: 2,
			want: func(r *report) {
				r.Excused, r.Late, r.Duplicates, r.Tokens, r.Faults[cutAll] = 1, 1, 1, 2, 1
			},
		},
		"a handling begins after the cut with the token from before": {
			words:     "a+1.1@1 a=1.1@1 *cut a+2.1@1 b+2.1@2 a=2.1@1 b=2.1@2",
			confirmed: 2,
			want: func(r *report) {
				r.Excused, r.Duplicates, r.Tokens, r.Faults[cutAll] = 1, 1, 2, 1
			},
		},
		"the cut was before the instance led": {
			words:     "*cut z*thaw a+1.1@1 b+1.1@2 a=1.1@1 b=1.1@2",
			confirmed: 1,
			want: func(r *report) {
				r.Overlaps, r.Duplicates, r.Tokens, r.Faults[cutAll] = make([]string, 1), 1, 2, 1
			},
		},
		"one instance with the same token after a cut": {
			words: "a+1.1@1 *cut a+1.1@1 a=1.1@1", confirmed: 1,
			want: func(r *report) {
				r.InOne, r.Tokens, r.Faults[cutAll] = make([]string, 1), 1, 1
			},
		},
		"one instance with the next token after a cut": {
			words: "a+1.1@1 *cut a+1.1@2 a=1.1@2", confirmed: 1,
			want: func(r *report) { r.Excused, r.Tokens, r.Faults[cutAll] = 1, 2, 1 },
		},
		"a token of two instances": {
			words: "a+1.1@1 a=1.1@1 b+2.1@1 b=2.1@1", confirmed: 2,
			want: func(r *report) { r.Shared, r.Tokens = make([]string, 1), 1 },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := judgedScript(t, c.words, c.confirmed, c.letters, c.left)
			want := report{Faults: map[fault]int{}}
			if c.want != nil {
				c.want(&want)
			}
			assert.Len(t, got.Inversions, len(want.Inversions), "inversions")
			assert.Len(t, got.Lost, len(want.Lost), "lost")
			assert.Len(t, got.Unexplained, len(want.Unexplained), "dead letters by mistake")
			assert.Len(t, got.Shared, len(want.Shared), "tokens of two instances")
			assert.Equal(t, want.Duplicates, got.Duplicates, "duplicates")
			assert.Len(t, got.Overlaps, len(want.Overlaps), "two instances at once")
			assert.Len(t, got.InOne, len(want.InOne), "one instance twice")
			assert.Equal(t, want.Excused, got.Excused, "explained overlaps")
			assert.Len(t, got.Stale, len(want.Stale), "old tokens")
			assert.Equal(t, [2]int{want.Zombies, want.Overtaken}, [2]int{got.Zombies, got.Overtaken})
			assert.Equal(t, [2]int{want.Late, want.Tokens}, [2]int{got.Late, got.Tokens}, "tokens")
			assert.Equal(t, want.Letters, got.Letters, "letters")
			assert.Equal(t, want.Faults, got.Faults)
			assert.Equal(t, len(c.left), got.Unfinished["orders"])
		})
	}
}

// Given a message that begins 12 s after its predecessor was over, then it has stalled. Its wait
// after a failure is none, and neither is the time before the faults were over.
func TestJudgeFindsStalls(t *testing.T) {
	t.Parallel()
	pause := strings.Repeat(" z*cut", 12)
	for words, stalls := range map[string]int{
		"*healed a+1.1 a=1.1" + pause + " a+2.1 a=2.1":             1,
		"a+1.1 a=1.1" + pause + " *healed a+2.1 a=2.1":             0,
		"*healed a+1.1 a=1.1 a+2.1 a=2.1" + pause + " a+1.1 a=1.1": 0,
		"*healed a+1.1 a-1.1 a+1.2 a=1.2 a+2.1 a=2.1":              0,
	} {
		r := judgedScript(t, words, 2, nil, nil)
		assert.Len(t, r.Stalls, stalls, words)
		assert.Equal(t, stalls > 0, len(r.problems()) > 0, words)
	}
}

func TestEachMistakeFailsTheRun(t *testing.T) {
	t.Parallel()
	one := make([]string, 1)
	for problem, plant := range map[string]func(r *result){
		"inversions":                  func(r *result) { r.Inversions = one },
		"dead letter of their key":    func(r *result) { r.Passed = one },
		"are lost":                    func(r *result) { r.Lost = make([]id, 1) },
		"stalls":                      func(r *result) { r.Stalls = one },
		"left in orders":              func(r *result) { r.Unfinished = map[string]int{"orders": 1} },
		"of two instances":            func(r *result) { r.Shared = one },
		"older fencing token":         func(r *result) { r.Stale = one },
		"two instances handled a key": func(r *result) { r.Overlaps = one },
		"one instance handled a key":  func(r *result) { r.InOne = one },
		"should have been handled":    func(r *result) { r.Unexplained = one },
		"no message was confirmed":    func(r *result) { r.Messages = 0 },
		"could not be done":           func(r *result) { r.Failed = one },
		"ended by themselves":         func(r *result) { r.Ended = 1 },
	} {
		r := result{report: report{
			Messages: 1, Excused: 1, Late: 1, Duplicates: 1, Zombies: 1, Overtaken: 1,
		}}
		require.Empty(t, r.problems(), "what a fault explains is no mistake")
		plant(&r)
		require.Len(t, r.problems(), 1, problem)
		require.Contains(t, r.problems()[0], problem)
	}
}
