package main

import "math"

const residual = "worst residual, %"

// law says how a figure grows: fixed + each × x.
type law struct {
	about                string
	group, entry, metric string
	perItem              bool    // the figure is a rate: its inverse, times x, grows
	at                   float64 // the size that about names
}

var laws = []law{
	{"s until a wait queue works again; 10 million", "recovery", wait, works, false, 1e7},
	{"MiB of memory at most; 10 million wait", "recovery", wait, mib, false, 1e7},
	{"MiB on disk; 10 million wait", "recovery", wait, "disk MiB", false, 1e7},
	{"s to return at once, prefetch 32; a million", "expiring", "prefetch 32", rate, true, 1e6},
	{"s to return at once, prefetch 128; a million", "expiring", "prefetch 128", rate, true, 1e6},
	{"MiB of memory; 5000 quorum queues", "queues", "quorum", mib, false, 5000},
	{"s to restart; 5000 empty quorum queues", "queues", "quorum", works, false, 5000},
	{"s of first start, PerQueue; 2000 handlers", "handlers", "PerQueue", starts, false, 2000},
	{"s of first start, Shared; 2000 handlers", "handlers", "Shared", starts, false, 2000},
	{"s of first start, Levels; 2000 handlers", "handlers", "Levels", starts, false, 2000},
}

// ofLaws fits each law to its figures. A law with fewer than four sizes has no result.
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
			"fixed": fixed, "for 1000": 1000 * each, "named size": fixed + each*l.at,
			residual: 100 * worst,
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
