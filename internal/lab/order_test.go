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
//	*healed  all faults are over; pause: twelve seconds pass
//
// A second passes between two words. @7 at the end of a word is the fencing token. All messages up
// to confirmed were confirmed at the beginning.
func script(t *testing.T, confirmed int, words string) (events []event) {
	t.Helper()
	for n := range confirmed {
		events = append(events, event{Kind: sent, At: noon, id: id{1, n + 1}})
	}
	faults := map[string]event{
		"kill": {Kind: struck, Fault: killInstance}, "freeze": {Kind: struck, Fault: freezeInstance},
		"thaw": {Kind: over, Fault: freezeInstance}, "cut": {Kind: struck, Fault: cutAll},
		"healed": {Kind: healed},
	}
	calls := map[string]uint64{}
	words = strings.ReplaceAll(words, "pause", strings.Repeat("z*cut ", 12))
	for i, w := range strings.Fields(words) {
		w, token, _ := strings.Cut(w, "@")
		at := strings.IndexAny(w, "+-=!*<>")
		require.GreaterOrEqual(t, at, 0, w)
		e := event{Kind: ended, id: id{Key: 1}}
		handling := w[:at] + w[at+1:]
		switch w[at] {
		case '*':
			e = faults[w[at+1:]]
			require.NotEmpty(t, e.Kind, w)
		case '+':
			e.Kind = begun
			calls[handling] = uint64(i)
		case '-':
			e.Outcome = failed
		case '=':
			e.Outcome = handled
		case '!':
			e.Outcome = gaveUp
		case '<':
			e.Kind, e.Outcome = decided, released
		case '>':
			e.Kind, e.Outcome = decided, replayed
		}
		if w[at] != '*' {
			_, err := fmt.Sscanf(w[at+1:], "%d.%d", &e.N, &e.Attempt)
			require.NoError(t, err, w)
		}
		if token != "" {
			_, err := fmt.Sscan(token, &e.Epoch)
			require.NoError(t, err, w)
		}
		e.At, e.Who, e.Call = after(float64(i)), w[:at], calls[handling]
		events = append(events, e)
	}
	return events
}

// findings counts what an order judge has found: "inversions 1, excused 2".
func findings(j *orderJudge) string {
	var all []string
	for _, f := range []struct {
		name  string
		count int
	}{
		{"inversions", len(j.inversions)},
		{"passed", len(j.passed)},
		{"stalls", len(j.stalls)},
		{"overlaps", len(j.overlaps)},
		{"inOne", len(j.inOne)},
		{"excused", j.excused},
		{"stale", len(j.stale)},
		{"shared", len(j.shared)},
		{"undecided", j.undecided()},
	} {
		if f.count > 0 {
			all = append(all, fmt.Sprint(f.name, " ", f.count))
		}
	}
	return strings.Join(all, ", ")
}

// table returns the words of each line of a text, and the findings behind the colon.
func table(text string) map[string]string {
	lines := map[string]string{}
	for line := range strings.Lines(strings.TrimSpace(text)) {
		line, _, _ = strings.Cut(line, "#")
		words, want, found := strings.Cut(line, ":")
		if !found {
			continue
		}
		lines[strings.TrimSpace(words)] = strings.TrimSpace(want)
	}
	return lines
}

func TestTheOrderOfAKeyIsJudged(t *testing.T) {
	t.Parallel()
	s := tried
	s.Delays = ordered.settings.Delays
	for words, want := range table(`
		a+1.1 a-1.1 a+1.2 a=1.2 a+2.1 a=2.1 :
		a+1.1 a-1.1 a+2.1 a=2.1 a+1.2 a=1.2 : inversions 1 # during the wait
		a+3.1 a=3.1 a+1.1 a=1.1 a+2.1 a=2.1 : inversions 2
		a+1.1 a+2.1 a=1.1 a=2.1 : inversions 1, inOne 1 # before the earlier one ends
		a+1.1 a=1.1 a+1.1 a=1.1 a+2.1 a=2.1 : # a duplicate beside itself
		a+1.1 a=1.1 a+2.1 a=2.1 a+1.1 a=1.1 : # a late duplicate
		a+9.1 a=9.1 a+1.1 a=1.1 a+8.1 a=8.1 : inversions 1 # 8 and 9 are not confirmed
		a+1.1 a*kill b+1.1 b=1.1 b+2.1 b=2.1 :
		a+1.1 a-1.1 a*kill b+2.1 b=2.1 b+1.2 b=1.2 : inversions 1
		a+1.6 a!1.6 a+2.1 a=2.1 : # the key goes on after a dead letter

		a+1.1 b+1.1 a=1.1 b=1.1 : overlaps 1
		a+1.1 *cut b+1.1 a=1.1 b=1.1 : excused 1
		a+1.1@1 *cut a+1.1@1 a=1.1@1 : inOne 1
		a+1.1@1 *cut a+1.1@2 a=1.1@2 : excused 1
		*cut z*thaw a+1.1@1 b+1.1@2 a=1.1@1 b=1.1@2 : overlaps 1 # it led later
		a+1.1@1 a=1.1@1 *cut a+2.1@1 b+2.1@2 a=2.1@1 b=2.1@2 : excused 1
		a+1.1@1 a=1.1@1 b+2.1@2 a+2.1@1 b=2.1@2 a=2.1@1 : overlaps 1, stale 1
		a+1.1@1 a=1.1@1 *cut b+2.1@2 a+2.1@1 b=2.1@2 a=2.1@1 : excused 2
		a+1.1@1 a=1.1@1 b+2.1@1 b=2.1@1 : shared 1
		a+1.1@1 a=1.1@1 b+2.1@2 b=2.1@2 a+2.1@1 a=2.1@1 : stale 1
		a+1.1@1 a=1.1@1 a*freeze b+2.1@2 b=2.1@2 a*thaw a+2.1@1 a=2.1@1 : excused 1
		a+1.1@1 a=1.1@1 a*freeze a*thaw b+2.1@2 b=2.1@2 b+3.1@2 b=3.1@2 a+2.1@1 a=2.1@1 : stale 1
		a+1.1@1 a*freeze b+1.1@2 b=1.1@2 b+2.1@2 a*thaw a=1.1@1 : excused 2

		*healed a+1.1 a=1.1 pause a+2.1 a=2.1 : stalls 1
		a+1.1 a=1.1 pause *healed a+2.1 a=2.1 : # before the faults were over
		*healed a+1.1 a=1.1 a+2.1 a=2.1 pause a+1.1 a=1.1 :
		*healed a+1.1 a-1.1 a+1.2 a=1.2 a+2.1 a=2.1 : # the wait after a failure
	`) {
		assert.Equal(t, want, findings(newHistory(s, script(t, 3, words)).order()), words)
	}
}

// Given keys that a dead letter blocks, then no later message begins before the decision, nor
// before a replayed letter is over.
func TestBlockedKeysAreJudged(t *testing.T) {
	t.Parallel()
	s := tried
	s.Delays, s.Block = ordered.settings.Delays, true
	for words, want := range table(`
		a+1.6 a!1.6 op<1.0 a+2.1 a=2.1 :
		a+1.6 a!1.6 op>1.0 a+1.1 a=1.1 a+2.1 a=2.1 :
		a+1.6 a!1.6 op>1.0 a+1.6 a!1.6 op>1.0 a+1.1 a=1.1 a+2.1 a=2.1 :
		a+1.6 a!1.6 a+2.1 a=2.1 : passed 1, undecided 1
		a+1.6 a!1.6 a+2.1 op<1.0 a=2.1 : passed 1
		a+1.6 a!1.6 op>1.0 a+1.1 a-1.1 a+2.1 a=2.1 a+1.2 a=1.2 : passed 1
		a+1.6 a!1.6 op>1.0 a+1.6 a!1.6 a+2.1 a=2.1 : passed 1, undecided 1
		a+1.6 a!1.6 op>1.0 op<1.0 a+2.1 a=2.1 : # the replay is given up
		a+1.6 a!1.6 op>1.0 a+1.1 a=1.1 op>1.0 a+2.1 a=2.1 : # the decision is repeated
		a+1.1 a=1.1 a+2.6 a!2.6 *cut b+1.1 b=1.1 b+2.6 b!2.6 op<2.0 b+3.1 b=3.1 : # an ack is lost
		# A woken instance gives up what was released.
		a+1.6 a*freeze b+1.6 b!1.6 op<1.0 b+2.1 b=2.1 a*thaw a!1.6 : excused 2
		a+1.6 a!1.6 op>1.0 : undecided 1
	`) {
		assert.Equal(t, want, findings(newHistory(s, script(t, 3, words)).order()), words)
	}
}

// Each finding that no fault explains fails the run, and no other.
func TestFindingsInTheOrderFailTheRun(t *testing.T) {
	t.Parallel()
	s := tried
	s.Block = true
	for words, want := range table(`
		a+1.1 a+2.1 a=1.1 a=2.1 : 1 inversions
		a+1.6 a!1.6 a+2.1 op<1.0 a=2.1 : before a dead letter of their key
		a+1.1@1 a=1.1@1 b+2.1@1 b=2.1@1 : of two instances
		a+1.1@1 a=1.1@1 b+2.1@2 b=2.1@2 a+2.1@1 a=2.1@1 : older fencing token
		a+1.1 b+1.1 a=1.1 b=1.1 : two instances handled a key
		a+1.1@1 *cut a+1.1@1 a=1.1@1 : one instance handled a key
		*healed pause a+1.1 a=1.1 : stalls
		a+1.1@1 a*freeze b+1.1@2 b=1.1@2 b+2.1@2 a*thaw a=1.1@1 b=2.1@2 :
	`) {
		err := judge(newHistory(s, script(t, 3, words)), []rule{keysKeepTheirOrder}).err()
		if want == "" {
			assert.NoError(t, err, words)
			continue
		}
		assert.ErrorContains(t, err, want, words)
	}
	undone := event{Kind: over, Fault: cutAll, Failed: true, At: noon.Add(time.Second)}
	assert.ErrorContains(t, judge(newHistory(s, append(script(t, 1, ""), undone)),
		[]rule{keysKeepTheirOrder}).err(), "could not be done")
}
