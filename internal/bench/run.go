package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// run is what one run has measured.
type run struct {
	Machine string   `json:"machine"`
	Rounds  int      `json:"rounds"`
	Results []result `json:"results"`
}

func machineOf(b *broker) string {
	return fmt.Sprintf("%s, %d processors, %s, RabbitMQ %s on the same machine, %s",
		processor(), runtime.NumCPU(), runtime.Version(), b.node.Version(),
		time.Now().UTC().Format(time.DateOnly))
}

// processor is the model that Linux names.
func processor() string {
	info, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(info)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}

// samples returns a copy; none where it was not measured.
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

// print writes the aims first, and then what they are made of.
func (r run) print(out io.Writer) {
	fmt.Fprintln(out, "\nRatios of the turns in one round: median (range).")
	fmt.Fprintln(out, "One message in flight cannot be faster than the round trip of its confirm. Where a handler takes 10 ms, a wait of a second")
	fmt.Fprintln(out, "in it makes its queue 2 times slower if 1 % fail, and 11 times if 10 % do: that much a wait queue gains over Retry.")
	fmt.Fprintln(out)
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, a := range aims() {
		if s, ok := a.of(r); ok {
			fmt.Fprintf(table, "%s\t%s\t(%s to %s)\taim %s\t%s\n", a.about, short(s.median), short(s.low),
				short(s.high), a.bound(), a.verdict(s))
		}
	}
	_ = table.Flush()
	fmt.Fprintln(out, "\nWhat was measured: median (range).")
	fmt.Fprintln(out)
	for _, one := range r.Results {
		s := spreadOf(one.Samples)
		fmt.Fprintf(table, "%s\t%g\t%s\t%s\t(%s to %s)\t%s\n", one.Group, one.X, one.Entry,
			short(s.median), short(s.low), short(s.high), one.Metric)
	}
	_ = table.Flush()
}

// short is a number with three digits that count.
func short(v float64) string {
	switch {
	case v == 0:
		return "0"
	case v >= 1000 || v <= -1000:
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.3g", v)
}
