package main

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// outages lets the downstream service of a fleet fail, and strikes the instance that probes it.
var outages = &scenario{
	name: "outage",
	settings: settings{
		Length: 80 * time.Second, Nodes: 1, Memory: true, Instances: 16, Strategy: "perqueue",
		Concurrency: 8, Prefetch: 16, Delays: outageDelays(), Heartbeat: 3 * time.Second,
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

// callsStayWithinTheBudget: while the service is out the fleet probes and spends no attempts; when
// it is back, it gets no more calls than it bears.
func callsStayWithinTheBudget(h *history, r *report) {
	i := slices.IndexFunc(h.faults, func(f event) bool { return f.Fault == putOut })
	if i < 0 {
		r.problem("run without an outage", "")
		return
	}
	from, back := h.faults[i].Began.Add(outGrace), h.faults[i].At
	var out, after []time.Time // calls
	var published []float64
	succeeded := h.Bound + time.Second // since the service is back, not as a probe
	prober, changes := "", 0
	for _, e := range h.events {
		switch {
		case e.Kind == sampled:
			published = append(published, e.Figures["published"])
		case e.Kind == begun && !e.At.Before(back):
			after = append(after, e.At)
		case e.Kind == begun && e.At.After(from):
			out = append(out, e.At)
			// Two that probe side by side change with each call.
			if who := instanceOf(e.Who); e.Probe {
				if prober != "" && who != prober {
					changes++
				}
				prober = who
			}
		}
	}
	for _, a := range h.attempts {
		if a.outcome == handled && !a.At.Before(back) && !a.Probe {
			succeeded = min(succeeded, a.At.Sub(back))
		}
	}
	figure := func(metric string, value, most float64) {
		r.row("", "%-50s %8.4g   at most %g", metric, value, most)
		if value > most {
			r.problem("figures beyond the budget", fmt.Sprintf("%s: %g, at most %g", metric, value, most))
		}
	}
	strikes := float64(len(h.faults) - 1) // beside the outage
	length := back.Sub(from).Seconds()
	figure("calls a second while out", float64(len(out))/length, 2)
	figure("calls in the worst second while out", worstSecond(out), 2+min(strikes, 2))
	figure("changes of the prober while out", float64(changes), 2*strikes)
	figure("publishes a second while out", (slices.Max(published)-slices.Min(published))/length,
		float64(h.Rate)/8)
	figure("seconds until the first success but probes", succeeded.Seconds(), h.Bound.Seconds())
	figure("calls in the worst second after it was back", worstSecond(after), bears)
	figure("messages with an attempt spent while out", float64(h.spent(from, back)), 0)
	figure("tokens left", float64(h.tokens["millpond.brake."+queueName]), 0)
}

// spent counts the messages that spent an attempt between two times: the next one has a higher
// number.
func (h *history) spent(from, until time.Time) (spent int) {
	for _, runs := range h.runs {
		for i, a := range runs[:len(runs)-1] {
			if runs[i+1].Attempt > a.Attempt && a.end.After(from) && a.end.Before(until) {
				spent++
			}
		}
	}
	return spent
}

// worstSecond returns the most times within any second.
func worstSecond(times []time.Time) float64 {
	slices.SortFunc(times, time.Time.Compare)
	most, begin := 0, 0
	for i, at := range times {
		for at.Sub(times[begin]) >= time.Second {
			begin++
		}
		most = max(most, i-begin+1)
	}
	return float64(most)
}
