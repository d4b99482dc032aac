package main

import (
	"fmt"
	"math"
)

// A measure takes a spread of ratios out of a run. It returns false if the run did not measure it.
type measure func(run) (spread, bool)

// aim bounds a measure.
type aim struct {
	about string
	of    measure
	least float64 // 0: none
	most  float64 // 0: none
	// beyond is a better figure than the aim; 0: none.
	beyond float64
}

// ratio compares two entries round by round.
func ratio(group string, x float64, metric, a, b string) measure {
	return func(r run) (spread, bool) {
		return paired(r.samples(group, x, a, metric), r.samples(group, x, b, metric))
	}
}

// added compares the costs that two entries add to a third.
func added(group, metric, a, b, bare string) measure {
	return func(r run) (spread, bool) {
		base := r.samples(group, 0, bare, metric)
		minus := func(entry string) []float64 {
			samples := r.samples(group, 0, entry, metric)
			if len(samples) != len(base) {
				return nil
			}
			for i := range samples {
				samples[i] -= base[i]
			}
			return samples
		}
		return paired(minus(a), minus(b))
	}
}

// plain takes a metric without a comparison.
func plain(group string, x float64, entry, metric string) measure {
	return func(r run) (spread, bool) {
		samples := r.samples(group, x, entry, metric)
		if len(samples) == 0 {
			return spread{}, false
		}
		return spreadOf(samples), true
	}
}

// paired divides sample by sample, because the samples of one round belong together.
func paired(a, b []float64) (spread, bool) {
	if len(a) == 0 || len(a) != len(b) {
		return spread{}, false
	}
	ratios := make([]float64, len(a))
	for i := range a {
		ratios[i] = a[i] / b[i]
	}
	return spreadOf(ratios), true
}

// verdict returns one word about a measure.
func (a aim) verdict(s spread) string {
	ok := func(least, most float64) bool {
		return (least == 0 || s.median >= least) && (most == 0 || s.median <= most)
	}
	switch {
	case math.IsNaN(s.median), !ok(a.least, a.most), a.least == 0 && a.most == 0 && s.median != 0:
		return "missed"
	case a.beyond != 0 && a.least != 0 && ok(a.beyond, 0), a.beyond != 0 && a.most != 0 &&
		ok(0, a.beyond):
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
		{about: "success: allocations added to a handler", of: plain("success", 0, millpond, allocs)},
		{
			about: "success: time added, by Recoverer's",
			of:    added("success", nanoseconds, millpond, recoverer, bare), most: 3, beyond: 2,
		},
	}
	for i, n := range []float64{1, 8, 64} {
		callers := fmt.Sprintf("publish, %g callers, by ", n)
		list = append(list, aim{
			about: callers + "raw amqp091-go with mandatory",
			of:    ratio("publish", n, rate, millpond, raw), least: 0.95,
		}, aim{
			about: callers + "watermill-amqp as it comes, confirms on",
			of:    ratio("publish", n, rate, millpond, wmDefault), least: []float64{3, 4, 6}[i],
		}, aim{
			about: fmt.Sprintf("failing, %g handlers, prefetch 64, by raw with as many", n),
			of:    ratio("failing", n, rate, millpond, raw), least: []float64{10, 3, 1}[i],
		}, aim{
			about: fmt.Sprintf("10 %% fail, %g handlers, by no failures", n),
			of:    ratio("healthy", n, rate, millpond, millpondNoFailures),
			least: []float64{0.65, 0.7, 0.7}[i], beyond: 0.78,
		})
	}
	for i, n := range prefetches {
		x := float64(n)
		failing, none := fmt.Sprintf("failing, prefetch %d, by ", n),
			fmt.Sprintf("no failures, prefetch %d, by ", n)
		list = append(list, aim{
			about: failing + "raw pipelined",
			of:    ratio("pipelined", x, rate, millpond, rawPipelined),
			least: []float64{0.95, 0.85, 0.8}[i], beyond: 0.95,
		}, aim{
			about: failing + "the best client by hand",
			of:    ratio("pipelined", x, rate, millpond, bestByHand), least: 0.75,
		}, aim{
			about: failing + "raw pipelined, time of the client",
			of:    ratio("pipelined", x, clients, millpond, rawPipelined), most: 1.4,
		}, aim{
			about: none + "raw", of: ratio("consuming", x, rate, millpond, raw),
			least: []float64{0.85, 0.8, 0.8}[i],
		}, aim{
			about: none + "watermill-amqp's Subscriber",
			of:    ratio("consuming", x, rate, millpond, wmSubscriber), least: 1,
		}, aim{
			about: none + "watermill-amqp's Subscriber as it comes",
			of:    ratio("consuming", x, rate, millpond, wmSubscriberAsIs), least: 1,
		})
	}
	return append(list, aim{
		about: "publish, 8 callers: processor time, client and broker, by raw",
		of:    ratio("publish", 8, microseconds, millpond, raw), most: 1.05, beyond: 1,
	}, aim{
		about: "failing, 8 handlers: processor time, client and broker, by raw",
		of:    ratio("failing", 8, microseconds, millpond, raw), most: 1.08, beyond: 1,
	}, aim{
		about: "lateness with 50 000 waiting, median, by raw",
		of:    ratio("late", 0, p50, millpond, raw), most: 1.5,
	}, aim{
		about: "lateness with 50 000 waiting, 99 %, by raw",
		of:    ratio("late", 0, p99, millpond, raw), most: 1.5,
	}, aim{
		about: "memory: KiB in the process for each of 100 000 that wait",
		of:    plain("memory", 0, millpond, kibPerMessage), most: 0.05,
	})
}
