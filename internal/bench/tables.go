package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
)

// fill replaces the tables of a page by those of files that runs have written. The tables of a
// group stand between `<!-- table GROUP -->` and `<!-- end -->`. With `<!-- table GROUP: METRIC
// -->` there is the table of one metric. The table of a group that no file has stays.
func fill(page string, files []string) error {
	var all run
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		var r run
		if err := json.Unmarshal(data, &r); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		all.Results = append(all.Results, r.Results...)
	}
	data, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	if bytes.Count(data, []byte("<!-- table ")) != len(tables.FindAll(data, -1)) {
		return fmt.Errorf("%s: a table has no end", page)
	}
	data = tables.ReplaceAllFunc(data, func(table []byte) []byte {
		name := string(tables.FindSubmatch(table)[1])
		group, metric, _ := strings.Cut(name, ": ")
		measured := all.of(group, metric)
		if len(measured) == 0 {
			return table
		}
		return []byte("<!-- table " + name + " -->\n\n" + tablesOf(measured) + "\n<!-- end -->")
	})
	return os.WriteFile(page, data, 0o644)
}

// tables matches the tables of a page, each to its end.
var tables = regexp.MustCompile(`(?s)<!-- table ([^\n]*) -->\n(?:[^<]|<[^!])*<!-- end -->`)

// tablesOf has the tables of a group: for each metric a row for each x and a column for each entry.
// A group that was measured at one x has one table, with a row for each entry.
func tablesOf(results []result) string {
	var xs []float64
	var entries, metrics []string
	for _, r := range results {
		xs, entries, metrics = append(xs, r.X), append(entries, r.Entry), append(metrics, r.Metric)
	}
	xs, entries, metrics = distinct(xs), distinct(entries), distinct(metrics)
	cell := func(x float64, entry, metric string) string {
		for _, r := range results {
			if r.X == x && r.Entry == entry && r.Metric == metric {
				return r.cell()
			}
		}
		return "–"
	}
	if slices.Equal(xs, []float64{0}) {
		return table("---", metrics, entries, func(entry, metric string) string {
			return cell(0, entry, metric)
		})
	}
	var all []string
	for _, metric := range metrics {
		of := slices.DeleteFunc(slices.Clone(entries), func(entry string) bool {
			return !slices.ContainsFunc(results, func(r result) bool {
				return r.Entry == entry && r.Metric == metric
			})
		})
		rows := map[string]float64{}
		var names []string
		for _, x := range xs {
			names = append(names, digits(x))
			rows[digits(x)] = x
		}
		all = append(all, "**"+metric+"**\n\n"+table("--:", of, names, func(x, entry string) string {
			return cell(rows[x], entry, metric)
		}))
	}
	return strings.Join(all, "\n")
}

// table returns a Markdown table. first is the ruler of its first column.
func table(first string, columns, rows []string, cell func(row, column string) string) string {
	text := "|  | " + strings.Join(columns, " | ") + " |\n|" + first + "|" +
		strings.Repeat("--:|", len(columns)) + "\n"
	for _, row := range rows {
		text += "| " + row + " |"
		for _, column := range columns {
			text += " " + cell(row, column) + " |"
		}
		text += "\n"
	}
	return text
}

// distinct returns the values in their order, each once.
func distinct[T cmp.Ordered](values []T) []T {
	slices.Sort(values)
	return slices.Compact(values)
}

// cell is the median with the range, or the only sample.
func (r result) cell() string {
	s := spreadOf(r.Samples)
	if len(r.Samples) == 1 {
		return digits(s.median)
	}
	return fmt.Sprintf("%s (%s–%s)", digits(s.median), digits(s.low), digits(s.high))
}

// digits returns a number with three significant digits at least, and no exponent.
func digits(v float64) string {
	if v < 100 && v > -100 {
		return fmt.Sprintf("%.3g", v)
	}
	return fmt.Sprintf("%.0f", v)
}
