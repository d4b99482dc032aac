package main

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// outages lets the downstream service of a fleet fail, and strikes the instance that probes it.
var outages = &scenario{
	name:  "outage",
	about: "a fleet with a brake while its downstream service is out and probers die",
	settings: settings{
		Length: 80 * time.Second, Nodes: 1, Memory: true, Instances: 16, Strategy: "perqueue",
		Handlers: 1, Concurrency: 8, Prefetch: 16, Delays: outageDelays(), Heartbeat: 3 * time.Second,
		Timer: 5 * time.Second, Keys: producing, Rate: 150, Brake: true, Bound: 20 * time.Second,
	},
	schedule: func(s settings) schedule {
		out := fault{At: s.Length / 5, Kind: putOut, Hold: s.Length * 3 / 5}
		probers := lane{
			map[faultKind]int{
				killInstance: 2, stopInstance: 1, freezeInstance: 1, cutInstance: 1, silenceInstance: 1,
				cutAll: 1, restartNode: 1, raiseAlarm: 1,
			},
			2 * time.Second, 5 * time.Second, 4 * time.Second, 9 * time.Second, true,
		}
		faults := probers.deal(rand.New(rand.NewPCG(s.Seed, 2)), out.Hold-4*time.Second)
		for i := range faults {
			faults[i].At += out.At + outGrace
		}
		return schedule{{out}, faults}
	},
	rules: []rule{
		nothingIsLost, faultsExplainCopies, attemptsFollowThePolicy, nothingIsLeft,
		callsStayWithinTheBudget, nothingStandsStill,
	},
}

// outageDelays last longer than the outage, so that no message is dead because of it.
func outageDelays() []time.Duration {
	return append([]time.Duration{time.Second, 5 * time.Second},
		slices.Repeat([]time.Duration{15 * time.Second}, 20)...)
}

const (
	// outGrace is the time after which the bounds of an outage hold.
	outGrace = 2 * time.Second
	// bears is the number of calls a second that the service bears when it is back.
	bears = 300
)

// out is an outage as the log shows it.
type out struct {
	began, back, end time.Time
	calls            []event // all, in order of time
	ok               map[id]time.Time
}

func outageOf(h *history) (o out) {
	o.ok = map[id]time.Time{}
	for _, e := range h.events {
		switch {
		case e.Kind == over && e.Fault == putOut:
			o.began, o.back = e.Began, e.At
		case e.Kind == begun:
			o.calls = append(o.calls, e)
		case e.Kind == ended && e.Outcome == handled && o.ok[e.id].IsZero():
			o.ok[e.id] = e.At
		}
		o.end = latest(o.end, e.At)
	}
	slices.SortStableFunc(o.calls, func(a, b event) int { return a.At.Compare(b.At) })
	return o
}

// times returns the times of calls in a window.
func (o out) times(from, until time.Time, which func(event) bool) (times []time.Time) {
	for _, c := range o.calls {
		if !c.At.Before(from) && c.At.Before(until) && which(c) {
			times = append(times, c.At)
		}
	}
	return times
}

func anyCall(event) bool { return true }

// worstSecond returns the most times within any second. They are in order.
func worstSecond(times []time.Time) int {
	most, begin := 0, 0
	for i, at := range times {
		for at.Sub(times[begin]) >= time.Second {
			begin++
		}
		most = max(most, i-begin+1)
	}
	return most
}

// callsStayWithinTheBudget: while the service is out the fleet probes and spends no attempts; when
// it is back, it gets no more calls than it bears.
func callsStayWithinTheBudget(h *history, r *report) {
	o := outageOf(h)
	if o.began.IsZero() {
		r.problem("run without an outage", "")
		return
	}
	strikes := float64(len(h.faults) - 1) // beside the outage
	figure := func(metric string, value, most float64) {
		bound := ""
		if most >= 0 {
			bound = fmt.Sprintf("   at most %g", most)
		}
		r.row("", "%-50s %8.4g%s", metric, value, bound)
		if most >= 0 && value > most {
			r.problem("figures beyond the budget", fmt.Sprintf("%s: %g, at most %g", metric, value, most))
		}
	}
	since := func(metric string, at time.Time, most float64) {
		if !at.IsZero() {
			figure(metric, at.Sub(o.back).Seconds(), most)
		}
	}
	const free = -1 // has no bound
	length := o.back.Sub(o.began)
	bounded := o.times(o.began.Add(outGrace), o.back, anyCall)
	figure("calls a second while out", float64(len(bounded))/(length-outGrace).Seconds(), 2)
	figure("calls in the worst second while out", float64(worstSecond(bounded)), 2+min(strikes, 2))
	figure("changes of the prober while out", o.probers(h), 2*strikes)
	figure("writes a second while out", h.writes(), float64(h.Rate)/4)
	success := func(e event) bool { return !o.ok[e.id].IsZero() && !o.ok[e.id].Before(e.At) }
	noProbe := func(e event) bool { return success(e) && !e.Probe }
	since("seconds from back to the first success", first(o.times(o.back, o.end, success)),
		h.Bound.Seconds())
	since("seconds from back to the first success but probes",
		first(o.times(o.back, o.end, noProbe)), h.Bound.Seconds())
	figure("calls in the worst second after it was back",
		float64(worstSecond(o.times(o.back, o.end, anyCall))), bears)
	drained := time.Time{}
	for _, at := range o.ok {
		drained = latest(drained, at)
	}
	since("seconds from back until all were handled", drained, free)
	early, late := o.spent(h)
	figure("messages with an attempt spent in the first 2 s", float64(early), free)
	figure("messages with an attempt spent later while out", float64(late), 0)
	figure("tokens left", float64(h.tokens["millpond.brake."+queueName]), 0)
}

func first(times []time.Time) time.Time {
	if len(times) == 0 {
		return time.Time{}
	}
	return times[0]
}

// probers counts how often another instance probed than before. Two that probe side by side change
// with each call.
func (o out) probers(h *history) (changes float64) {
	before := ""
	for _, c := range o.calls {
		if c.At.After(o.began.Add(outGrace)) && c.At.Before(o.back) && c.Probe {
			if who := instanceOf(c.Who); before != "" && who != before {
				changes++
			}
			before = instanceOf(c.Who)
		}
	}
	return changes
}

// spent counts the messages that failed an attempt while the service was out: their next attempt
// has a higher number.
func (o out) spent(h *history) (early, late int) {
	first, later := map[id]bool{}, map[id]bool{}
	for m, runs := range h.runs {
		for i, a := range runs[:len(runs)-1] {
			switch {
			case runs[i+1].Attempt <= a.Attempt || a.end.Before(o.began) || a.end.After(o.back):
			case a.end.Before(o.began.Add(outGrace)):
				first[m] = true
			default:
				later[m] = true
			}
		}
	}
	return len(first), len(later)
}

// writes returns the writes a second while the service is out: the publishes of all clients but the
// producers, and the messages that the broker itself wrote to another queue.
func (h *history) writes() float64 {
	var tallies []event
	for _, e := range h.events {
		if e.Kind == sampled && e.Figures["received"] > 0 {
			tallies = append(tallies, e)
		}
	}
	if len(tallies) < 2 {
		return math.NaN()
	}
	from, until := tallies[0], tallies[len(tallies)-1]
	writes := until.Figures["received"] + until.Figures["moved"] - from.Figures["received"] -
		from.Figures["moved"]
	if writes < 0 {
		return 0 // the broker was restarted, and counts from 0 again
	}
	for _, at := range h.sent {
		if at.After(from.At) && !at.After(until.At) {
			writes--
		}
	}
	return writes / until.At.Sub(from.At).Seconds()
}

// tallying reads the counters inside the node, which are exact and cost the clients nothing.
const tallying = `
	All = maps:values(rabbit_global_counters:overview()),
	Sum = fun(Names) -> lists:sum([maps:get(N, M, 0) || M <- All, N <- Names]) end,
	lists:flatten(io_lib:format("~b ~b", [Sum([messages_received_total]),
		Sum([messages_dead_lettered_expired_total, messages_dead_lettered_rejected_total,
			messages_dead_lettered_maxlen_total, messages_dead_lettered_delivery_limit_total])])).`

// tally logs how many messages the broker has received and moved by itself.
func (n *nemesis) tally(ctx context.Context) error {
	out, err := n.tell(ctx, 0, tallying)
	if err != nil {
		return nil // the node is away
	}
	var received, moved float64
	if _, err := fmt.Sscan(strings.Trim(strings.TrimSpace(out), `"`), &received, &moved); err != nil {
		return fmt.Errorf("the counters of the node are %q: %w", out, err)
	}
	return n.log.append(event{
		Kind: sampled, Figures: map[string]float64{"received": received, "moved": moved},
	})
}
