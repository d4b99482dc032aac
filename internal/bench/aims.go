package main

import (
	"fmt"
	"math"
)

// aim bounds a figure of an entry, by the same of another one, round by round.
type aim struct {
	about, group string
	x            float64
	metric       string
	entry, by    string  // by: without it the figure itself
	bare         string  // is taken off both
	least, most  float64 // 0: none
	beyond       float64 // is better than the aim; 0: none
}

// of takes the figure out of a run. It returns false if the run did not measure it.
func (a aim) of(r run) (spread, bool) {
	values, by := r.samples(a.group, a.x, a.entry, a.metric), r.samples(a.group, a.x, a.by, a.metric)
	bare := r.samples(a.group, a.x, a.bare, a.metric)
	if len(values) == 0 || a.by != "" && len(by) != len(values) ||
		a.bare != "" && len(bare) != len(values) {
		return spread{}, false
	}
	for i := range values {
		if a.bare != "" {
			values[i], by[i] = values[i]-bare[i], by[i]-bare[i]
		}
		if a.by != "" { // the samples of one round belong together
			values[i] /= by[i]
		}
	}
	return spreadOf(values), true
}

// verdict returns one word about a figure.
func (a aim) verdict(s spread) string {
	ok := func(least, most float64) bool {
		return (least == 0 || s.median >= least) && (most == 0 || s.median <= most)
	}
	switch {
	case math.IsNaN(s.median), !ok(a.least, a.most), a.least == 0 && a.most == 0 && s.median != 0:
		return "missed"
	case a.beyond != 0 && (a.least != 0 && ok(a.beyond, 0) || a.most != 0 && ok(0, a.beyond)):
		return "beyond"
	}
	return "met"
}

func (a aim) bound() string {
	switch {
	case a.least != 0:
		return fmt.Sprintf("≥ %g", a.least)
	case a.most != 0:
		return fmt.Sprintf("≤ %g", a.most)
	}
	return "0"
}

// aims returns the aims of the library for one run on one machine.
func aims() []aim {
	list := []aim{
		{
			about: "success: allocations added to a handler", group: "success", metric: allocs,
			entry: millpond,
		},
		{
			about: "success: time added, by Recoverer's", group: "success", metric: nanoseconds,
			entry: millpond, by: recoverer, bare: bare, most: 3, beyond: 2,
		},
	}
	// add adds an aim for the rate.
	add := func(about, group string, x int, by string, least, beyond float64) {
		list = append(list, aim{
			about: fmt.Sprintf(about, x), group: group, x: float64(x), metric: rate, entry: millpond,
			by: by, least: least, beyond: beyond,
		})
	}
	for i, n := range []int{1, 8, 64} {
		add("publish, %d callers, by raw amqp091-go with mandatory", "publish", n, raw, 0.95, 0)
		add("publish, %d callers, by watermill-amqp as it comes, confirms on", "publish", n, wmDefault,
			[]float64{3, 4, 6}[i], 0)
		add("failing, %d handlers, prefetch 64, by raw with as many", "failing", n, raw,
			[]float64{10, 3, 1}[i], 0)
		add("10 %% fail, %d handlers, by no failures", "healthy", n, millpondNoFailures,
			[]float64{0.65, 0.7, 0.7}[i], 0.78)
	}
	for i, n := range prefetches {
		add("failing, prefetch %d, by raw pipelined", "pipelined", n, rawPipelined,
			[]float64{0.95, 0.85, 0.8}[i], 0.95)
		add("failing, prefetch %d, by the best client by hand", "pipelined", n, bestByHand, 0.75, 0)
		add("no failures, prefetch %d, by raw", "consuming", n, raw, []float64{0.85, 0.8, 0.8}[i], 0)
		add("no failures, prefetch %d, by watermill-amqp's Subscriber", "consuming", n, wmSubscriber, 1,
			0)
		add("no failures, prefetch %d, by watermill-amqp's Subscriber as it comes", "consuming", n,
			wmSubscriberAsIs, 1, 0)
		list = append(list, aim{
			about: fmt.Sprintf("failing, prefetch %d, by raw pipelined, time of the client", n),
			group: "pipelined", x: float64(n), metric: clients, entry: millpond, by: rawPipelined,
			most: 1.4,
		})
	}
	for _, n := range []int{30_000, 200_000} {
		list = append(list, aim{
			about: fmt.Sprintf("%d messages return at once, worker prefetch 128, by 32", n),
			group: "expiring", x: float64(n), metric: rate, entry: "prefetch 128", by: "prefetch 32",
			least: 1.3,
		})
	}
	for _, strategy := range []string{"PerQueue", "Shared", "Levels"} {
		list = append(list, aim{
			about: "first start of 1000 handlers, " + strategy, group: "handlers", x: 1000, metric: starts,
			entry: strategy, most: 16,
		})
	}
	for _, l := range laws {
		list = append(list, aim{
			about: "residual of the law: " + l.about, group: "laws", metric: residual, entry: l.about,
			most: 15,
		})
	}
	return append(list, aim{
		about: "a whole retry, 64 at once, by river", group: "peers, 64 at once", metric: wholeRetry,
		entry: "millpond, quorum", by: "river", most: 1, beyond: 0.75,
	}, aim{
		about: "publish, 8 callers: processor time, client and broker, by raw", group: "publish", x: 8,
		metric: microseconds, entry: millpond, by: raw, most: 1.05, beyond: 1,
	}, aim{
		about: "failing, 8 handlers: processor time, client and broker, by raw", group: "failing", x: 8,
		metric: microseconds, entry: millpond, by: raw, most: 1.08, beyond: 1,
	}, aim{
		about: "lateness with a million waiting, median, by raw", group: "waiting", x: 1_000_000,
		metric: p50, entry: millpond, by: raw, most: 1.5,
	}, aim{
		about: "lateness with a million waiting, 99 %, by raw", group: "waiting", x: 1_000_000,
		metric: p99, entry: millpond, by: raw, most: 1.5,
	})
}
