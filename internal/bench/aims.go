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

// across compares the same entry at two places of a group.
func across(group, metric, entry string, xa, xb float64) measure {
	return func(r run) (spread, bool) {
		return paired(r.samples(group, xa, entry, metric), r.samples(group, xb, entry, metric))
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
	for _, c := range []struct {
		callers           float64
		watermill, beyond float64
	}{{1, 3, 0}, {8, 4, 0}, {64, 6, 0}} {
		of := func(peer string) string {
			return fmt.Sprintf("publish, %g callers: rate, by %s", c.callers, peer)
		}
		list = append(list,
			aim{
				about: of("raw amqp091-go with mandatory"),
				of:    ratio("publish", c.callers, rate, millpond, raw), least: 0.95, beyond: c.beyond,
			},
			aim{
				about: of("watermill-amqp as it comes, confirms on"),
				of:    ratio("publish", c.callers, rate, millpond, wmDefault), least: c.watermill,
			},
		)
	}
	list = append(list, aim{
		about: "publish, 8 callers: processor time, client and broker, by raw",
		of:    ratio("publish", 8, microseconds, millpond, raw), most: 1.05, beyond: 1,
	})
	for _, n := range []float64{1, 8} {
		list = append(list, aim{
			about: fmt.Sprintf("failing, %g in flight: rate, by raw", n),
			of:    ratio("failing", n, rate, millpond, raw), least: 0.95, beyond: 1,
		})
	}
	return append(list,
		aim{
			about: "failing: rate with 64 in flight, by the rate with 8",
			of:    across("failing", rate, millpond, 64, 8), least: 2,
		},
		aim{
			about: "10 % fail, 1 in flight: rate of the others, by the rate without failures",
			of:    ratio("healthy", 1, rate, millpond, millpondNoFailures), least: 0.55,
		},
		aim{
			about: "10 % fail, 8 in flight: rate of the others, by the rate without failures",
			of:    ratio("healthy", 8, rate, millpond, millpondNoFailures), least: 0.85,
		},
		aim{
			about: "10 % fail, 64 in flight: rate of the others, by the rate without failures",
			of:    ratio("healthy", 64, rate, millpond, millpondNoFailures), least: 0.85, beyond: 0.9,
		},
		aim{
			about: "lateness with 50 000 waiting, median, by raw", of: ratio("late", 0, p50, millpond, raw),
			most: 1.5,
		},
		aim{
			about: "lateness with 50 000 waiting, 99 %, by raw", of: ratio("late", 0, p99, millpond, raw),
			most: 1.5,
		},
		aim{
			about: "memory: KiB in the process for each of 100 000 that wait",
			of:    plain("memory", 0, millpond, kibPerMessage), most: 0.05,
		},
	)
}
