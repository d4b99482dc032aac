package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"

	"github.com/millpond-go/millpond/internal/testing/overload"
)

// The groups of `bench overload`. Its picture has one panel for each metric of the curves.
const (
	overloadFigures = "overload"
	overloadCurves  = "overload-curves"
	// smooth is the number of seconds of one point of a curve.
	smooth = 10
)

// startOverload simulates an overload, as the arguments behind `bench overload` say. It needs no
// broker and takes a second.
func startOverload(_ context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("bench overload", flag.ContinueOnError)
	file := flags.String("out", "", "`file` for all figures, as JSON")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return errors.New("there are no arguments but flags")
	}
	r := run{Machine: "a simulation", Rounds: 1}
	for _, name := range []string{overload.Plain, overload.Adapts, overload.EightAll} {
		policy, err := overload.Contender(name)
		if err != nil {
			return err
		}
		seconds := overload.Run(overload.Standard, policy)
		f := overload.FiguresOf(overload.Standard, seconds)
		fmt.Fprintf(out, "%-27s %+v\n", name, f)
		r.Results = append(r.Results, overloadResults(name, f)...)
		r.Results = append(r.Results, overloadCurve(name, seconds)...)
	}
	if *file != "" {
		return r.write(*file)
	}
	return nil
}

func overloadResults(name string, f overload.Figures) []result {
	figures := []struct {
		metric string
		value  float64
	}{
		{"calls during the overload", float64(f.Down)},
		{"calls in the worst second after it", float64(f.Peak)},
		{"calls in all", float64(f.All)},
		{"seconds until the backlog was gone", f.Drained.Seconds()},
		{"seconds after a first failure, before the overload", f.Before},
		{"the same, at most during it", f.During},
		{"the same, at the end", f.After},
	}
	var results []result
	for _, figure := range figures {
		results = append(results,
			result{overloadFigures, 0, name, figure.metric, []float64{figure.value}})
	}
	return results
}

func overloadCurve(name string, seconds []overload.Second) (results []result) {
	add := func(x int, metric string, value float64) {
		results = append(results, result{overloadCurves, float64(x), name, metric, []float64{value}})
	}
	end := int(overload.Standard.End.Seconds())
	for x := 0; x+smooth <= min(len(seconds), end); x += smooth {
		calls, delay, given := 0.0, 0.0, 0.0
		for _, s := range seconds[x : x+smooth] {
			calls += float64(s.Calls)
			if s.Delay > 0 {
				delay, given = delay+s.Delay, given+1
			}
		}
		add(x, "calls per second", calls/smooth)
		add(x, "messages that wait", float64(seconds[x+smooth-1].Waiting))
		if given > 0 {
			add(x, "seconds after a first failure", delay/given)
		}
	}
	return results
}
