package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// allowed are the rises over a whole run that are no growth: up to abs, and up to rel times the
// median.
var allowed = map[string]struct{ abs, rel float64 }{
	"heap": {8, 0.25}, "rss": {16, 0.25}, // MiB
	"goroutines":  {10, 0},
	"connections": {0.5, 0}, "channels": {2, 0}, "queues": {0.5, 0},
	"messages": {500, 0.5}, // in all queues
	// MiB. The log of quorum queues stays in memory until it is rolled over after minutes: a saw.
	"broker": {160, 0.25},
	"late":   {250, 1}, // ms, 99 of 100 messages that have waited
}

// minSamples is the number of samples for a verdict. The first one is not counted, because caches
// and pools fill then.
const minSamples = 6

// enoughToGrow is the length of a run in which growth would show. A shorter one measures alone.
const enoughToGrow = 2 * time.Minute

// nothingGrows: memory, goroutines, connections, messages and lateness stay as they are.
func nothingGrows(h *history, r *report) {
	figures := map[string][]float64{}
	var late []float64
	due := map[id]time.Time{}
	for _, e := range h.events {
		switch {
		case e.Kind == begun && !due[e.id].IsZero():
			late = append(late, float64(e.At.Sub(due[e.id]))/float64(time.Millisecond))
			delete(due, e.id)
		case e.Kind == ended && e.Outcome == failed:
			due[e.id] = e.At.Add(h.Delays[e.Attempt-1])
		case e.Kind == sampled:
			for name, value := range e.Figures {
				figures[name] = append(figures[name], value)
			}
			if e.Who == "" && len(late) > 0 { // once for each sample of the broker
				slices.Sort(late)
				figures["late"] = append(figures["late"], late[(len(late)-1)*99/100])
				late = late[:0]
			}
		}
	}
	var grown []string
	for _, name := range slices.Sorted(maps.Keys(allowed)) {
		values := figures[name]
		if len(values) < minSamples {
			grown = append(grown, fmt.Sprintf("%s: %d samples are too few, want %d", name, len(values),
				minSamples))
			continue
		}
		rise, most := growth(values[1:], allowed[name].abs, allowed[name].rel)
		r.row(name, "from %.1f to %.1f, a rise of %.1f; allowed %.1f", values[1], values[len(values)-1],
			rise, most)
		if rise > most && h.Length >= enoughToGrow {
			grown = append(grown, fmt.Sprintf("%s rises by %.1f, allowed are %.1f", name, rise, most))
		}
	}
	r.problem("figures grow", grown...)
}

// growth fits a line to the values, by least squares, and returns its rise and the rise that is
// allowed.
func growth(values []float64, abs, rel float64) (rise, most float64) {
	n := float64(len(values))
	var sumX, sumY, sumXY, sumXX float64
	for i, y := range values {
		x := float64(i)
		sumX, sumY, sumXY, sumXX = sumX+x, sumY+y, sumXY+x*y, sumXX+x*x
	}
	rise = (n*sumXY - sumX*sumY) / (n*sumXX - sumX*sumX) * (n - 1)
	return rise, abs + rel*slices.Sorted(slices.Values(values))[len(values)/2]
}

// sample logs figures of the broker.
func (r *run) sample(ctx context.Context) {
	for rest(ctx, r.Samples) {
		figures, err := r.figures(ctx)
		if err == nil {
			err = r.log.append(event{Kind: sampled, Figures: figures})
		}
		if err != nil && ctx.Err() == nil {
			r.say("sample: %v", err)
		}
	}
}

// counting asks a node for the counts of all that may grow.
const counting = `
	Depths = [N || [{messages, N}] <- rabbit_amqqueue:info_all(<<"/">>, [messages]), is_integer(N)],
	lists:flatten(io_lib:format("~b ~b ~b ~b ~b", [length(rabbit_networking:connections()),
		length(rabbit_channel:list()), length(Depths), lists:sum(Depths), erlang:memory(total)])).`

func (r *run) figures(ctx context.Context) (map[string]float64, error) {
	out, err := r.nemesis.tell(ctx, 0, counting)
	if err != nil {
		return nil, err
	}
	figures := map[string]float64{}
	fields := strings.Fields(strings.Trim(strings.TrimSpace(out), `"`))
	names := []string{"connections", "channels", "queues", "messages", "broker"}
	if len(fields) != len(names) {
		return nil, fmt.Errorf("the counts of the node are %q", out)
	}
	for i, name := range names {
		if figures[name], err = strconv.ParseFloat(fields[i], 64); err != nil {
			return nil, fmt.Errorf("the counts of the node are %q: %w", out, err)
		}
	}
	figures["broker"] /= mib
	return figures, nil
}
