package main

import "math"

// law says how a figure grows: fixed + each × x.
type law struct {
	about                string
	group, entry, metric string
	perItem              bool    // the figure is a rate: its inverse, times x, grows
	at                   float64 // a size beyond the measured ones that the page names
}

var laws = []law{
	{"s until a wait queue works again", "recovery", "one wait queue", "s until it works", false, 1e7},
	{"MiB of memory, waiting messages", "recovery", "one wait queue", "broker MiB", false, 1e7},
	{"MiB on disk, waiting messages", "recovery", "one wait queue", "disk MiB", false, 1e7},
	{"s to return, prefetch 32", "expiring", "prefetch 32", rate, true, 1e6},
	{"s to return, prefetch 128", "expiring", "prefetch 128", rate, true, 1e6},
	{"MiB of memory, idle quorum queues", "queues", "quorum", "broker MiB", false, 1e4},
	{"MiB of memory, idle classic queues", "queues", "classic", "broker MiB", false, 1e4},
	{"s to restart, idle quorum queues", "queues", "quorum", "s until it works", false, 1e4},
	{"s to restart, idle classic queues", "queues", "classic", "s until it works", false, 1e4},
	{"s to start, handlers, PerQueue", "handlers", "PerQueue", seconds + " to start", false, 3000},
	{"s to start, handlers, Shared", "handlers", "Shared", seconds + " to start", false, 3000},
	{"s to start, handlers, Levels", "handlers", "Levels", seconds + " to start", false, 3000},
}

// ofLaws fits the laws to what was measured. A law whose figures are missing is left out.
func (r run) ofLaws() (results []result) {
	for _, l := range laws {
		var xs, ys []float64
		for _, one := range r.of(l.group, l.metric) {
			if one.Entry != l.entry {
				continue
			}
			y := spreadOf(one.Samples).median
			if l.perItem {
				y = one.X / y
			}
			xs, ys = append(xs, one.X), append(ys, y)
		}
		if len(xs) < 4 {
			continue
		}
		fixed, each, worst := fit(xs, ys)
		for metric, value := range map[string]float64{
			"fixed": fixed, "for 1000": 1000 * each, "worst residual, %": 100 * worst,
			"sizes": float64(len(xs)), "then at": l.at, "it is": fixed + each*l.at,
		} {
			results = append(results, result{
				Group: "laws", Entry: l.about, Metric: metric, Samples: []float64{value},
			})
		}
	}
	return results
}

// fit returns the line with the smallest squares of relative residuals, and the largest of these.
func fit(xs, ys []float64) (fixed, each, worst float64) {
	var w, wx, wy, wxx, wxy float64
	for i, x := range xs {
		weight := 1 / (ys[i] * ys[i])
		w, wx, wy = w+weight, wx+weight*x, wy+weight*ys[i]
		wxx, wxy = wxx+weight*x*x, wxy+weight*x*ys[i]
	}
	each = (w*wxy - wx*wy) / (w*wxx - wx*wx)
	fixed = (wy - each*wx) / w
	for i, x := range xs {
		worst = max(worst, math.Abs(fixed+each*x-ys[i])/ys[i])
	}
	return fixed, each, worst
}
