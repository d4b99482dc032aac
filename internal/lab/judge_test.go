package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

func after(s float64) time.Time { return noon.Add(time.Duration(s * float64(time.Second))) }

// tried are the settings of the histories in these tests.
var tried = settings{
	Delays: everyDelay, Timer: time.Minute, Bound: 10 * time.Second,
	Fates: fates{
		Seed: 3, Fail: 300, Dead: 50, Permanent: 30, Retries: len(everyDelay), Priorities: true,
	},
}

// ran returns the events of an attempt at a message.
func ran(who string, m id, number int, copied string, begin, end float64, o outcome) []event {
	call := uint64(begin*1e6) + uint64(number)
	return []event{
		{
			Kind: begun, At: after(begin), Who: who, Call: call, id: m, Attempt: number, Copy: copied,
			Priority: tried.Fates.priority(m),
		},
		{Kind: ended, At: after(end), Who: who, Call: call, id: m, Attempt: number, Outcome: o},
	}
}

// flawless returns the events of messages that followed their fates, while nothing broke.
func flawless() (events []event) {
	for n := range 500 {
		m, at := id{1, n + 1}, float64(n)/100
		events = append(events, event{Kind: sent, At: after(at), id: m})
		failures := tried.Fates.failures(m)
		for number := 1; ; number++ {
			o := failed
			switch {
			case failures < 0 || failures >= number && number > len(tried.Delays):
				o = gaveUp
			case number > failures:
				o = handled
			}
			at++
			events = append(events, ran("i1/x", m, number, fmt.Sprint(n, number), at, at, o)...)
			if o == gaveUp {
				reason := map[bool]string{true: "permanent", false: "exhausted"}[failures < 0]
				events = append(events, event{
					Kind: letter, At: after(at + 1), id: m, Copy: fmt.Sprint(n, "dead"), Text: reason,
				})
			}
			if o != failed {
				break
			}
		}
	}
	return events
}

// one returns the first message with so many failures.
func one(failures int) id {
	for n := 1; ; n++ {
		if tried.Fates.failures(id{1, n}) == failures {
			return id{1, n}
		}
	}
}

func TestAFlawlessRunHasNoProblem(t *testing.T) {
	t.Parallel()
	r := judge(newHistory(tried, flawless()), chaos.rules)
	require.NoError(t, r.err())
	assert.Contains(t, r.rows[0], "500 confirmed")
	assert.Empty(t, reasons(r), "no copies")
}

// Each difference from a flawless run breaks a rule.
func TestTheJudgeFindsEachDifference(t *testing.T) {
	t.Parallel()
	twice, dead := one(2), one(len(tried.Delays)+1)
	without := func(m id, drop func(event) bool) func([]event) []event {
		return func(events []event) []event {
			return slices.DeleteFunc(events, func(e event) bool { return e.id == m && drop(e) })
		}
	}
	with := func(more ...event) func([]event) []event {
		return func(events []event) []event { return append(events, more...) }
	}
	for want, change := range map[string]func([]event) []event{
		fmt.Sprintf("1 of the confirmed messages are lost:\n    message %s", twice): without(twice,
			func(e event) bool { return e.Outcome == handled }),
		fmt.Sprintf("1 of the confirmed messages are lost:\n    message %s", dead): without(dead,
			func(e event) bool { return e.Kind == letter }),
		"1 of the confirmed messages are lost:\n    message 2/7": with(event{Kind: sent, id: id{2, 7}}),
		"nothing was tried": func([]event) []event { return nil },
		fmt.Sprintf("1 attempts beyond the limit:\n    message %s: attempt 6", dead): with(
			ran("i1/x", dead, 6, "late", 90, 91, failed)...),
		fmt.Sprintf("1 attempts after one without a call of the handler:\n    message %s: attempt 3",
			twice): without(twice, func(e event) bool { return e.Attempt == 2 }),
		"1 attempts with another priority": func(events []event) []event {
			i := slices.IndexFunc(events, func(e event) bool { return e.Kind == begun })
			events[i].Priority++
			return events
		},
		fmt.Sprintf("1 dead letters that should not be:\n    message %s: exhausted", twice): with(
			event{Kind: letter, id: twice, Copy: "x", Text: "exhausted", At: after(99)}),
		fmt.Sprintf("1 dead letters that should not be:\n    message %s: crash_loop", twice): with(
			event{Kind: letter, id: twice, Copy: "x", Text: "crash_loop", At: after(99)}),
		"1 dead letters that cannot be understood:\n    ?": with(
			event{Kind: letter, id: dead, Text: "?", Failed: true, At: after(99)}),
		"1 times ready messages stood still:\n    orders": with(event{Kind: stood, Text: "orders"}),
		"1 instance ended by itself:\n    i1":             with(event{Kind: gone, Who: "i1", Own: true}),
	} {
		r := judge(newHistory(tried, change(flawless())), chaos.rules)
		require.Error(t, r.err(), want)
		assert.Contains(t, r.err().Error(), want)
	}
	h := newHistory(tried, flawless())
	h.left = map[id]string{twice: "orders"}
	assert.ErrorContains(t, judge(h, []rule{nothingIsLeft}).err(),
		"1 messages are left:\n    message "+twice.String()+" in orders")

	h = newHistory(tried, without(twice, func(e event) bool { return e.Kind != sent })(flawless()))
	h.left = map[id]string{twice: "orders"}
	assert.NoError(t, judge(h, []rule{nothingIsLost}).err(), "what is left is not lost")
}

// A frequent kill may blame a message.
func TestKillsExplainACrashLoop(t *testing.T) {
	t.Parallel()
	events := append(flawless(), event{Kind: over, Fault: killInstance, At: after(50)},
		event{Kind: letter, id: one(0), Copy: "x", Text: "crash_loop", At: after(99)})
	assert.NoError(t, judge(newHistory(tried, events), []rule{attemptsFollowThePolicy}).err())
}

func loss(who, what string, at float64) event {
	if what == lostProcess {
		return event{Kind: gone, Who: instanceOf(who), At: after(at), Began: after(at)}
	}
	return event{Kind: lost, Who: who, Text: what, At: after(at)}
}

func faulty(kind faultKind, begun, end float64) event {
	return event{Kind: over, Fault: kind, Began: after(begun), At: after(end)}
}

func marked(events []event, mark func(*event)) []event {
	mark(&events[0])
	return events
}

func again(events []event) []event {
	return marked(events, func(e *event) { e.Redelivered = true })
}

func aside(events []event) []event { return marked(events, func(e *event) { e.Aside = true }) }

// Given the runs of a message and the losses meanwhile, then these explain its extra runs or not.
func TestFaultsExplainExtraRuns(t *testing.T) {
	t.Parallel()
	m := id{1, 1}
	run := func(who string, number int, copied string, begin, end float64) []event {
		return ran(who+"/x", m, number, copied, begin, end, failed)
	}
	// Attempt 1 at 10 s has put one copy, or two, for attempt 2 into the wait queue of one second.
	first, single := run("i1", 1, "", 9, 10), run("i2", 2, "a", 11, 11.1)
	second := run("i2", 2, "b", 20, 20.1)
	two := slices.Concat(first, single, second)
	later := func() []event { return run("i2", 2, "a", 15, 15.1) }
	redelivered := slices.Concat(first, single, again(later()))
	stopped := event{Kind: gone, Who: "i2", Began: after(12), At: after(17)}
	for name, c := range map[string]struct {
		runs   []event
		events []event
		want   string // each reason with its counts: explained, unexplained
	}{
		"no extra run": {runs: slices.Concat(first, single)},
		"a late confirm explains no second copy": {
			two, []event{faulty(delayConfirms, 9, 25)}, twoCopies + " 0 1",
		},
		"nor does the death of a node to which the publisher is not connected": {
			two, []event{faulty(killNode, 9, 25)}, twoCopies + " 0 1",
		},
		"nor a policy that an operator applies": {
			two, []event{faulty(applyPolicy, 9, 25)}, twoCopies + " 0 1",
		},
		"nor an alarm": {two, []event{faulty(raiseAlarm, 9, 25)}, twoCopies + " 0 1"},
		"nor a loss of the consuming connection": {
			two, []event{loss("i1/x", lostConsuming, 12)}, twoCopies + " 0 1",
		},
		"nor a loss of another instance": {
			two, []event{loss("i2/x", lostPublishing, 12)}, twoCopies + " 0 1",
		},
		"nor of another line": {two, []event{loss("i1/y", lostPublishing, 12)}, twoCopies + " 0 1"},
		"nor a loss before the hand-over": {
			two, []event{loss("i1/x", lostPublishing, 8)}, twoCopies + " 0 1",
		},
		"nor an end by the client itself": {
			two,
			[]event{{Kind: lost, Who: "i1/x", Text: lostPublishing, At: after(12), Own: true}},
			twoCopies + " 0 1",
		},
		"unless a fault silenced it": {
			two, []event{
				faulty(silenceNode, 9, 13),
				{Kind: lost, Who: "i1/x", Text: lostPublishing, At: after(12), Own: true},
			}, twoCopies + " 1 0",
		},
		"a publishing connection that is lost explains one copy": {
			two, []event{loss("i1/x", lostPublishing, 12)}, twoCopies + " 1 0",
		},
		"and one only": {
			slices.Concat(two, run("i3", 2, "c", 21, 21.1)),
			[]event{loss("i1/x", lostPublishing, 12)},
			twoCopies + " 1 1",
		},
		"two losses explain two": {
			slices.Concat(two, run("i3", 2, "c", 21, 21.1)),
			[]event{loss("i1/x", lostPublishing, 12), loss("i1/x", lostPublishing, 14)},
			twoCopies + " 2 0",
		},
		"the ends of a process and of its connections are one loss": {
			slices.Concat(two, run("i3", 2, "c", 21, 21.1)),
			[]event{loss("i1/x", lostPublishing, 12), loss("i1/x", lostProcess, 12.1)},
			twoCopies + " 1 1",
		},
		"no reason to deliver again": {redelivered, nil, redeliveredAgain + " 0 1"},
		"a late confirm is none": {
			redelivered, []event{faulty(delayConfirms, 9, 25)}, redeliveredAgain + " 0 1",
		},
		"a consuming connection that is lost is one": {
			redelivered, []event{loss("i2/x", lostConsuming, 12)}, redeliveredAgain + " 1 0",
		},
		"but not that of an instance that never had it": {
			redelivered, []event{loss("i3/x", lostConsuming, 12)}, redeliveredAgain + " 0 1",
		},
		"nor after it was delivered again": {
			redelivered, []event{loss("i2/x", lostConsuming, 17)}, redeliveredAgain + " 0 1",
		},
		"a process that is told to stop gives back before it ends": {
			redelivered, []event{stopped}, redeliveredAgain + " 1 0",
		},
		"the two ends of a node's fault explain two": {
			slices.Concat(redelivered, again(run("i3", 2, "a", 16, 16.1)),
				again(run("i3", 2, "a", 17, 17.1))),
			[]event{faulty(freezeNode, 10, 16)},
			redeliveredAgain + " 2 1",
		},
		"a copy returns twice without a fault": {
			slices.Concat(first, single, later()), []event{faulty(delayConfirms, 9, 25)}, sentTwice + " 0 1",
		},
		"a node died while it expired": {
			slices.Concat(first, single, later()), []event{faulty(killNode, 5, 8)}, sentTwice + " 1 0",
		},
		"a node died too long ago": {
			slices.Concat(first, run("i2", 2, "a", 40, 40.1), run("i2", 2, "a", 41, 41.1)),
			[]event{faulty(killNode, -30, -8)},
			sentTwice + " 0 1",
		},
		"a node died when the copy was due, and the dead-letter timer sent it": {
			slices.Concat(first, run("i2", 2, "a", 71, 71.1), run("i2", 2, "a", 131, 131.1)),
			[]event{faulty(killNode, 10, 12)},
			sentTwice + " 1 0",
		},
		"each dead-letter timer that a fault lasts explains one more": {
			slices.Concat(first, run("i2", 2, "a", 160, 161), run("i2", 2, "a", 162, 163),
				run("i2", 2, "a", 164, 165), run("i2", 2, "a", 166, 167), run("i2", 2, "a", 168, 169),
				run("i2", 2, "a", 170, 171)),
			[]event{faulty(minority, 10, 155)},
			sentTwice + " 4 1",
		},
		"runs of the attempt before each publish their copy": {
			slices.Concat(first, again(run("i2", 1, "", 12, 12.1)), single, second),
			[]event{loss("i1/x", lostProcess, 10.5)},
			followsAgain + " 1 0, " + redeliveredAgain + " 1 0",
		},
		"a suspect that is set aside has been delivered again": {
			slices.Concat(first, single, aside(run("i2", 2, "b", 20, 20.1))),
			[]event{loss("i2/x", lostProcess, 11.5)},
			redeliveredAgain + " 1 0",
		},
		"a copy that was set aside before any run is no extra run": {
			runs: slices.Concat(first, aside(run("i2", 2, "b", 20, 20.1))),
		},
		"but two of it are": {
			slices.Concat(first, aside(run("i2", 2, "b", 20, 20.1)), aside(run("i3", 2, "c", 30, 30.1))),
			[]event{faulty(delayConfirms, 9, 25)},
			redeliveredAgain + " 0 1",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := judge(newHistory(tried, slices.Concat(c.runs, c.events)), []rule{faultsExplainCopies})
			assert.Equal(t, c.want, reasons(r))
			assert.Equal(t, strings.Contains(c.want+",", " 0,") || c.want == "", r.err() == nil, r.err())
		})
	}
}

// reasons returns the reasons in a report, with their counts.
func reasons(r *report) string {
	var all []string
	for _, row := range r.rows {
		why, counts, found := strings.Cut(strings.TrimSpace(row), ": ")
		var explained, unexplained int
		if n, _ := fmt.Sscanf(counts, "%d explained, %d unexplained", &explained, &unexplained); found &&
			n == 2 {
			all = append(all, fmt.Sprintf("%s %d %d", why, explained, unexplained))
		}
	}
	return strings.Join(all, ", ")
}

func TestFaultsExplainExtraDeadLetters(t *testing.T) {
	t.Parallel()
	m := id{1, 1}
	runs := ran("i1/x", m, 5, "a", 9, 10, gaveUp)
	dead := func(copied string, at float64) event {
		return event{Kind: letter, id: m, Copy: copied, Text: "exhausted", At: after(at)}
	}
	two := append(slices.Clone(runs), dead("x", 11), dead("y", 71))
	reasonsOf := func(events ...event) string {
		return reasons(judge(newHistory(tried, slices.Concat(two, events)), []rule{faultsExplainCopies}))
	}
	assert.Equal(t, twoLetters+" 0 1", reasonsOf())
	assert.Equal(t, twoLetters+" 1 0", reasonsOf(loss("i1/x", lostPublishing, 11)))
	assert.Equal(t, followsAgain+" 1 0, "+redeliveredAgain+" 1 0", reasonsOf(append(
		again(ran("i2/x", m, 5, "a", 12, 13, gaveUp)), loss("i1/x", lostProcess, 10.5))...),
		"two runs, two letters")
}

func TestGrowth(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		values []float64
		grows  bool
	}{
		"flat":                      {[]float64{20, 20, 20, 20, 20}, false},
		"noise":                     {[]float64{24, 18, 23, 17, 22, 19, 21}, false},
		"one peak in the middle":    {[]float64{20, 20, 90, 20, 20}, false},
		"falling":                   {[]float64{90, 80, 70, 60, 50}, false},
		"a little more each minute": {[]float64{22, 24, 26, 28, 30, 32}, true},
	} {
		rise, most := growth(c.values, 5, 0.1)
		assert.Equal(t, c.grows, rise > most, name)
	}
	var events []event
	for n := range minSamples + 2 {
		events = append(events, event{Kind: sampled, Figures: map[string]float64{
			"heap": 10 * float64(n), "rss": 10, "goroutines": 10, "connections": 1, "channels": 1,
			"queues": 1, "messages": 1,
		}})
	}
	s := tried
	s.Length = enoughToGrow
	r := judge(newHistory(s, events), []rule{nothingGrows})
	assert.ErrorContains(t, r.err(), "2 figures grow:\n    broker: 0 samples are too few, want 6\n"+
		"    heap rises by 60.0, allowed are 18.0")
}

// Given an outage with a second prober, an attempt that is spent and too many calls at the end,
// then each is a figure beyond the budget.
func TestCallsBeyondTheBudget(t *testing.T) {
	t.Parallel()
	s := outages.settings
	call := func(who string, n, number int, at float64, o outcome) []event {
		return marked(ran(who, id{1, n}, number, "", at, at+0.01, o),
			func(e *event) { e.Probe, e.Priority = at > 12 && at < 40, 0 })
	}
	well := slices.Concat(call("i1/x", 1, 1, 1, handled), call("i1/x", 2, 1, 11, failed),
		call("i1/x", 3, 1, 20, failed), call("i1/x", 3, 1, 30, failed), call("i1/x", 3, 1, 41, handled),
		call("i2/x", 2, 2, 42, handled),
		[]event{
			{Kind: over, Fault: putOut, Began: after(10), At: after(40)},
			{Kind: sampled, Figures: map[string]float64{"published": 1}},
		})
	r := judge(newHistory(s, well), []rule{callsStayWithinTheBudget})
	require.NoError(t, r.err())
	assert.Contains(t, strings.Join(r.rows, "\n"), fmt.Sprintf("%-50s %8.4g   at most 2",
		"calls a second while out", 2./28))

	for want, more := range map[string][]event{
		"changes of the prober while out: 2": call("i2/x", 4, 1, 25, failed),
		"attempt spent while out: 1": slices.Concat(call("i1/x", 5, 1, 31, failed),
			call("i1/x", 5, 2, 43, handled)),
		"worst second after it was back: 301": slices.Repeat(call("i1/x", 7, 1, 44, handled), 301),
		"worst second while out: 3": slices.Concat(call("i1/x", 6, 1, 32, failed),
			call("i1/x", 6, 1, 32.2, failed), call("i1/x", 6, 1, 32.4, failed)),
	} {
		events := slices.Concat(well, more)
		slices.SortStableFunc(events, func(a, b event) int { return a.At.Compare(b.At) })
		r := judge(newHistory(s, events), []rule{callsStayWithinTheBudget})
		assert.ErrorContains(t, r.err(), want)
	}
}
