package main

import (
	"context"
	"fmt"
	"slices"
)

// values are what one turn has measured, by the name of the metric.
type values map[string]float64

// entry is one way to do what a contest is about. turn does it once and measures it.
type entry struct {
	name string
	turn func(ctx context.Context) (values, error)
}

// contest lets its entries take turns, so that whatever else the machine does meets all of them
// alike. x tells contests of one group apart that differ in a number only: callers, bytes, messages
// that wait.
type contest struct {
	group   string
	x       float64
	rounds  int
	entries []entry
}

// result is what one entry has measured in all its turns.
type result struct {
	Group   string    `json:"group"`
	X       float64   `json:"x"`
	Entry   string    `json:"entry"`
	Metric  string    `json:"metric"`
	Samples []float64 `json:"samples"` // in the order of the rounds
}

// hold runs the contest. The first round warms up and does not count, unless there is only one.
// Each round begins with the next entry.
func (c contest) hold(ctx context.Context, b *bench) ([]result, error) {
	var results []result
	warmUp := 0
	if c.rounds > 1 {
		warmUp = 1
	}
	if b.only != nil {
		c.entries = slices.DeleteFunc(c.entries,
			func(e entry) bool { return !slices.Contains(b.only, e.name) })
	}
	for round := range c.rounds + warmUp {
		for i := range c.entries {
			e := c.entries[(i+round)%len(c.entries)]
			measured, err := e.turn(ctx)
			if err != nil {
				return nil, fmt.Errorf("%s (%g), %s: %w", c.group, c.x, e.name, err)
			}
			b.say("  %-12s %8g  %-34s %v\n", c.group, c.x, e.name, measured)
			if round < warmUp {
				continue
			}
			for metric, value := range measured {
				results = record(results, result{Group: c.group, X: c.x, Entry: e.name, Metric: metric,
					Samples: []float64{value}})
			}
		}
	}
	return results, nil
}

func record(results []result, r result) []result {
	for i := range results {
		if results[i].is(r.Group, r.X, r.Entry, r.Metric) {
			results[i].Samples = append(results[i].Samples, r.Samples...)
			return results
		}
	}
	return append(results, r)
}

func (r result) is(group string, x float64, entry, metric string) bool {
	return r.Group == group && r.X == x && r.Entry == entry && r.Metric == metric
}

// spread is a median and the range around it.
type spread struct{ median, low, high float64 }

// spreadOf returns the spread of samples, of which there is at least one.
func spreadOf(samples []float64) spread {
	sorted := slices.Sorted(slices.Values(samples))
	middle := len(sorted) / 2
	median := sorted[middle]
	if len(sorted)%2 == 0 {
		median = (sorted[middle-1] + sorted[middle]) / 2
	}
	return spread{median, sorted[0], sorted[len(sorted)-1]}
}
