package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
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
}

const (
	// minSamples is the number of samples for a verdict. The first one is not counted, because caches
	// and pools fill then.
	minSamples = 6
	// enoughToGrow is the length of a run in which growth would show. A shorter one measures alone.
	enoughToGrow = 2 * time.Minute
	mib          = 1 << 20
)

// nothingGrows: memory, goroutines, connections and messages stay as they are.
func nothingGrows(h *history, r *report) {
	figures := map[string][]float64{}
	for _, e := range h.events {
		for name, value := range e.Figures {
			figures[name] = append(figures[name], value)
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

// sample logs figures of an instance until it ends.
func (in instance) sample() {
	for range time.Tick(in.Samples) {
		runtime.GC()
		var mem runtime.MemStats
		runtime.ReadMemStats(&mem)
		statm, _ := os.ReadFile("/proc/self/statm") // without it there are too few samples
		var size, pages float64
		_, _ = fmt.Sscan(string(statm), &size, &pages)
		in.append(event{Kind: sampled, Who: in.Name, Figures: map[string]float64{
			"heap": float64(mem.HeapAlloc) / mib, "goroutines": float64(runtime.NumGoroutine()),
			"rss": pages * float64(os.Getpagesize()) / mib,
		}})
	}
}

// counting asks a node for the counts of all that may grow.
const counting = `
	Depths = [N || [{messages, N}] <- rabbit_amqqueue:info_all(<<"/">>, [messages]), is_integer(N)],
	lists:flatten(io_lib:format("~b ~b ~b ~b ~b", [length(rabbit_networking:connections()),
		length(rabbit_channel:list()), length(Depths), lists:sum(Depths), erlang:memory(total)])).`

// sample logs figures of the broker.
func (r *run) sample(ctx context.Context) {
	for rest(ctx, r.Samples) {
		out, err := r.nemesis.tell(ctx, 0, counting)
		var connections, channels, queues, messages, memory float64
		if err == nil {
			_, err = fmt.Sscan(strings.Trim(strings.TrimSpace(out), `"`), &connections, &channels, &queues,
				&messages, &memory)
		}
		if err != nil {
			r.say("sample: %v", err)
			continue
		}
		r.note(event{Kind: sampled, Figures: map[string]float64{
			"connections": connections, "channels": channels, "queues": queues, "messages": messages,
			"broker": memory / mib,
		}})
	}
}
