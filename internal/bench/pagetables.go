package main

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
)

// fillTables writes the results of these files into a page, whose tables stand between
// `<!-- table NAME -->` and `<!-- end -->`.
func fillTables(page string, files []string) error {
	var results []result
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		var r run
		if err := json.Unmarshal(data, &r); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		results = append(results, r.Results...)
	}
	return fill(page, results)
}

// fill replaces the tables of a page.
func fill(page string, results []result) error {
	data, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	const begin, after, end = "<!-- table ", " -->\n", "<!-- end -->"
	var out strings.Builder
	rest := string(data)
	for {
		before, table, found := strings.Cut(rest, begin)
		out.WriteString(before)
		if !found {
			break
		}
		name, table, named := strings.Cut(table, after)
		_, behind, ended := strings.Cut(table, end)
		if !named || !ended {
			return fmt.Errorf("%s: table %q has no end", page, name)
		}
		out.WriteString(begin + name + after + "\n" + tableOf(results, name) + "\n" + end)
		rest = behind
	}
	return os.WriteFile(page, []byte(out.String()), 0o644)
}

// tableOf has a row for each x, and a column for each entry and metric.
func tableOf(results []result, group string) string {
	type column struct{ entry, metric string }
	var (
		xs      []float64
		columns []column
		cells   = map[float64]map[column]result{}
	)
	for _, r := range results {
		if r.Group != group {
			continue
		}
		c := column{r.Entry, r.Metric}
		if !slices.Contains(xs, r.X) {
			xs = append(xs, r.X)
			cells[r.X] = map[column]result{}
		}
		if !slices.Contains(columns, c) {
			columns = append(columns, c)
		}
		cells[r.X][c] = r
	}
	slices.Sort(xs)
	slices.SortFunc(columns, func(a, b column) int {
		return strings.Compare(a.metric+"\x00"+a.entry, b.metric+"\x00"+b.entry)
	})
	var out strings.Builder
	out.WriteString("| |")
	for _, c := range columns {
		fmt.Fprintf(&out, " %s, %s |", c.entry, c.metric)
	}
	out.WriteString("\n|--:|" + strings.Repeat("--:|", len(columns)) + "\n")
	for _, x := range xs {
		fmt.Fprintf(&out, "| %s |", grouped(x))
		for _, c := range columns {
			r, ok := cells[x][c]
			switch {
			case !ok:
				out.WriteString(" – |")
			case len(r.Samples) == 1:
				fmt.Fprintf(&out, " %s |", grouped(r.Samples[0]))
			default:
				s := spreadOf(r.Samples)
				fmt.Fprintf(&out, " %s (%s–%s) |", grouped(s.median), grouped(s.low), grouped(s.high))
			}
		}
		out.WriteByte('\n')
	}
	return out.String()
}

// grouped returns three significant digits at least, in groups of three.
func grouped(v float64) string {
	if v < 100 && v > -100 {
		return fmt.Sprintf("%.3g", v)
	}
	digits := fmt.Sprintf("%.0f", v)
	var out strings.Builder
	for i, d := range digits {
		if i > 0 && (len(digits)-i)%3 == 0 {
			out.WriteByte(' ')
		}
		out.WriteRune(d)
	}
	return out.String()
}
