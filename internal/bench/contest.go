package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"text/tabwriter"
	"time"
)

// values are the measurements of one turn, by the name of the metric.
type values map[string]float64

// entry is one contender in a contest. turn does the work once and measures it.
type entry struct {
	name string
	turn func(ctx context.Context) (values, error)
}

// contest lets its entries take turns, so that other work of the machine slows all of them alike. x
// is the number by which the contests of one group differ: callers, bytes, waiting messages.
type contest struct {
	group   string
	x       float64
	rounds  int
	entries []entry
}

// result has the measurements of one entry in all its turns.
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
	c.entries = slices.DeleteFunc(c.entries, func(e entry) bool {
		return b.only != nil && !slices.Contains(b.only, e.name)
	})
	for round := range c.rounds + warmUp {
		for i := range c.entries {
			e := c.entries[(i+round)%len(c.entries)]
			measured, err := b.whole(ctx, e)
			if err != nil {
				return nil, fmt.Errorf("%s (%g), %s: %w", c.group, c.x, e.name, err)
			}
			b.say("  %-12s %8g  %-34s %v\n", c.group, c.x, e.name, measured)
			if round < warmUp {
				continue
			}
			for metric, value := range measured {
				results = record(results, result{
					Group: c.group, X: c.x, Entry: e.name, Metric: metric, Samples: []float64{value},
				})
			}
		}
	}
	return results, nil
}

// leastTurn is how long the work that is measured in a turn takes at least.
const leastTurn = 2 * time.Second

// whole repeats the work of an entry until its turn is long enough, and returns the means. Each
// time does the same number of messages, so the rate is the harmonic mean.
func (b *bench) whole(ctx context.Context, e entry) (values, error) {
	sums, times := values{}, 0.0
	for b.counted = 0; times == 0 || b.counted > 0 && b.counted < leastTurn; times++ {
		measured, err := e.turn(ctx)
		if err != nil {
			return nil, err
		}
		for metric, value := range measured {
			if metric == rate {
				value = 1 / value
			}
			sums[metric] += value
		}
	}
	for metric, sum := range sums {
		if sums[metric] = sum / times; metric == rate {
			sums[metric] = times / sum
		}
	}
	return sums, nil
}

func record(results []result, r result) []result {
	i := slices.IndexFunc(results, func(before result) bool {
		return before.is(r.Group, r.X, r.Entry, r.Metric)
	})
	if i < 0 {
		return append(results, r)
	}
	results[i].Samples = append(results[i].Samples, r.Samples...)
	return results
}

func (r result) is(group string, x float64, entry, metric string) bool {
	return r.Group == group && r.X == x && r.Entry == entry && r.Metric == metric
}

// spread is a median and the range around it.
type spread struct{ median, low, high float64 }

// spreadOf returns the spread of at least one sample.
func spreadOf(samples []float64) spread {
	sorted := slices.Sorted(slices.Values(samples))
	middle := len(sorted) / 2
	median := sorted[middle]
	if len(sorted)%2 == 0 {
		median = (sorted[middle-1] + sorted[middle]) / 2
	}
	return spread{median, sorted[0], sorted[len(sorted)-1]}
}

// run has the results of one run.
type run struct {
	Machine string   `json:"machine"`
	Rounds  int      `json:"rounds"`
	Results []result `json:"results"`
}

func machineOf(b *broker) string {
	return fmt.Sprintf("%s, %d processors, %s, RabbitMQ %s on the same machine, %s",
		runtime.GOARCH, runtime.NumCPU(), runtime.Version(), b.node.Version(),
		time.Now().UTC().Format(time.DateOnly))
}

// samples returns a copy of the samples, and nil if there are none.
func (r run) samples(group string, x float64, entry, metric string) []float64 {
	for _, one := range r.Results {
		if one.is(group, x, entry, metric) {
			return slices.Clone(one.Samples)
		}
	}
	return nil
}

func (r run) write(file string) error {
	data, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(data, '\n'), 0o644)
}

// print writes the aims first, and then the measurements behind them.
func (r run) print(out io.Writer) {
	fmt.Fprintln(out, "\nRatios of the turns in one round: median (range).")
	fmt.Fprintln(out)
	aligned := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, a := range aims() {
		if s, ok := a.of(r); ok {
			fmt.Fprintf(aligned, "%s\t%s\t(%s to %s)\taim %s\t%s\n", a.about, digits(s.median),
				digits(s.low), digits(s.high), a.bound(), a.verdict(s))
		}
	}
	_ = aligned.Flush()
	var printed []string
	for _, one := range r.Results {
		if !slices.Contains(printed, one.Group) {
			printed = append(printed, one.Group)
			fmt.Fprintf(out, "\n%s: median (range).\n\n%s", one.Group, tablesOf(r.of(one.Group, "")))
		}
	}
}

// of returns the results of a group, and of one metric if it is named.
func (r run) of(group, metric string) []result {
	return slices.DeleteFunc(slices.Clone(r.Results), func(one result) bool {
		return one.Group != group || metric != "" && one.Metric != metric
	})
}
