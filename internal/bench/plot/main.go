// Plot draws the pictures of docs/performance.md and fills its tables, from the files that bench
// writes with -out:
//
//	go run ./plot -docs ../../docs contests.json scale.json
//
// The tables of a group stand between `<!-- table GROUP -->` and `<!-- end -->`. With
// `<!-- table GROUP: METRIC -->` there is the table of one metric.
package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"image/color"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

type result struct {
	Group   string
	X       float64
	Entry   string
	Metric  string
	Samples []float64
}

func (r result) median() float64 {
	sorted := slices.Sorted(slices.Values(r.Samples))
	middle := len(sorted) / 2
	if len(sorted)%2 == 0 {
		return (sorted[middle-1] + sorted[middle]) / 2
	}
	return sorted[middle]
}

// picture is one metric of one group.
type picture struct {
	file, title, x, y string
	group, metric     string
	logX, logY        bool
	falls             bool // the legend stands below
}

const rate, p50, p99, mib = "per second", "p50 ms", "p99 ms", "broker MiB"

var pictures = []picture{
	{
		"inflight", "Messages that fail, per second", "in flight", "messages per second", "inflight",
		rate, true, false, false,
	},
	{
		"payload", "Messages that fail, per second, 8 in flight", "bytes of payload",
		"messages per second", "payload", rate, true, true, true,
	},
	{
		"headers", "Messages that fail, per second, 8 in flight", "headers", "messages per second",
		"headers", rate, false, false, true,
	},
	{
		"hops", "Lateness on Levels", "levels passed", "ms late, median", "hops", p50, false, false,
		false,
	},
	{
		"waiting-lateness", "Lateness at the handler", "messages waiting", "ms late, median", "waiting",
		p50, true, false, true,
	},
	{
		"waiting-rate", "Messages that fail, per second, 8 in flight", "messages waiting",
		"messages per second", "waiting", rate, true, false, true,
	},
	{
		"waiting-memory", "Memory of the broker", "messages waiting", "MiB", "waiting", mib, true, true,
		false,
	},
	{
		"handlers", "Until all handlers consume", "handlers", "seconds, at the start", "handlers",
		"seconds to start", true, true, false,
	},
}

// colours can be told apart by people who cannot tell red from green (Okabe and Ito).
var colours = []color.Color{
	color.RGBA{0, 114, 178, 255},
	color.RGBA{230, 159, 0, 255},
	color.RGBA{0, 158, 115, 255},
	color.RGBA{204, 121, 167, 255},
}

func main() {
	docs := flag.String("docs", "../../docs", "`folder` of performance.md")
	flag.Parse()
	if err := run(*docs, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "plot:", err)
		os.Exit(1)
	}
}

func run(docs string, files []string) error {
	results, err := readResults(files)
	if err != nil {
		return err
	}
	for _, p := range pictures {
		if err := p.draw(results, filepath.Join(docs, "performance")); err != nil {
			return fmt.Errorf("%s: %w", p.file, err)
		}
	}
	if err := drawOutage(results, filepath.Join(docs, "performance")); err != nil {
		return fmt.Errorf("outage: %w", err)
	}
	if err := drawOverload(results, filepath.Join(docs, "performance")); err != nil {
		return fmt.Errorf("overload: %w", err)
	}
	return fill(filepath.Join(docs, "performance.md"), results)
}

func readResults(files []string) (results []result, err error) {
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		var r struct{ Results []result }
		if err := json.Unmarshal(data, &r); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		results = append(results, r.Results...)
	}
	return results, nil
}

// draw writes an SVG, unless the group was not measured.
func (p picture) draw(results []result, folder string) error {
	lines, names := map[string]plotter.XYs{}, []string{}
	for _, r := range results {
		if r.Group != p.group || r.Metric != p.metric || p.logX && r.X <= 0 || p.logY && r.median() <= 0 {
			continue // has no logarithm
		}
		if !slices.Contains(names, r.Entry) {
			names = append(names, r.Entry)
		}
		lines[r.Entry] = append(lines[r.Entry], plotter.XY{X: r.X, Y: r.median()})
	}
	if len(names) == 0 {
		return nil
	}
	slices.Sort(names)
	drawn := plot.New()
	drawn.Title.Text, drawn.X.Label.Text, drawn.Y.Label.Text = p.title, p.x, p.y
	drawn.Legend.Top, drawn.Legend.Left, drawn.Legend.XOffs = !p.falls, true, vg.Millimeter*3
	drawn.Y.Tick.Marker = plain{plot.DefaultTicks{}}
	if p.logX {
		drawn.X.Scale, drawn.X.Tick.Marker = plot.LogScale{}, plain{plot.LogTicks{Prec: -1}}
	}
	if p.logY {
		drawn.Y.Scale, drawn.Y.Tick.Marker = plot.LogScale{}, plain{plot.LogTicks{Prec: -1}}
	}
	drawn.Add(plotter.NewGrid())
	for i, name := range names {
		line, points, err := plotter.NewLinePoints(lines[name])
		if err != nil {
			return err
		}
		line.Color, points.Color = colours[i%len(colours)], colours[i%len(colours)]
		line.Width = vg.Points(2)
		drawn.Add(line, points)
		drawn.Legend.Add(name, line, points)
	}
	if !p.logY {
		drawn.Y.Min = 0
	}
	return save(drawn, filepath.Join(folder, p.file+".svg"))
}

// save leaves a margin, unlike plot.Save.
func save(drawn *plot.Plot, name string) error {
	return saveSized(name, 10*vg.Centimeter, func(c draw.Canvas) { drawn.Draw(c) })
}

// saveSized writes a picture on a white ground, so that it can be read on a dark page, too.
func saveSized(name string, height vg.Length, paint func(draw.Canvas)) error {
	canvas := vgsvg.New(17*vg.Centimeter, height)
	whole := draw.New(canvas)
	whole.FillPolygon(color.White, []vg.Point{
		{X: whole.Min.X, Y: whole.Min.Y},
		{X: whole.Max.X, Y: whole.Min.Y},
		{X: whole.Max.X, Y: whole.Max.Y},
		{X: whole.Min.X, Y: whole.Max.Y},
	})
	const margin = 6 * vg.Millimeter
	paint(draw.Crop(whole, margin/2, -2*margin, margin/2, -margin))
	file, err := os.Create(name)
	if err != nil {
		return err
	}
	_, err = canvas.WriteTo(file)
	return errors.Join(err, file.Close())
}

// plain are ticks whose labels have all digits.
type plain struct{ plot.Ticker }

func (g plain) Ticks(low, high float64) []plot.Tick {
	ticks := g.Ticker.Ticks(low, high)
	for i := range ticks {
		if ticks[i].Label != "" {
			ticks[i].Label = number(ticks[i].Value)
		}
	}
	return ticks
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
		before, behind, ended := strings.Cut(table, end)
		if !named || !ended {
			return fmt.Errorf("%s: table %q has no end", page, name)
		}
		group, metric, one := strings.Cut(name, ": ")
		measured := slices.DeleteFunc(slices.Clone(results), func(r result) bool {
			return r.Group != group || one && r.Metric != metric
		})
		if len(measured) > 0 { // else the table of an earlier run stays
			before = "\n" + tableOf(measured, group) + "\n"
		}
		out.WriteString(begin + name + after + before + end)
		rest = behind
	}
	return os.WriteFile(page, []byte(out.String()), 0o644)
}

// manyMetrics do not fit into the columns of a table.
const manyMetrics = 4

// tableOf has the tables of a group: for each metric a row for each x and a column for each entry.
// A group that was measured once has one table, with a row for each entry; if it has many metrics,
// with a row for each of them.
func tableOf(results []result, group string) string {
	type place struct {
		x             float64
		entry, metric string
	}
	var (
		xs               []float64
		entries, metrics []string
		inOrder          []string // the metrics as they were measured
		cells            = map[place]string{}
	)
	for _, r := range results {
		if r.Group != group {
			continue
		}
		xs, entries, metrics = append(xs, r.X), append(entries, r.Entry), append(metrics, r.Metric)
		cells[place{r.X, r.Entry, r.Metric}] = r.cell()
		if !slices.Contains(inOrder, r.Metric) {
			inOrder = append(inOrder, r.Metric)
		}
	}
	xs, entries, metrics = distinct(xs), distinct(entries), distinct(metrics)
	var out strings.Builder
	row := func(first string, columns int, cell func(column int) string) {
		out.WriteString("| " + first + " |")
		for column := range columns {
			fmt.Fprintf(&out, " %s |", cmp.Or(cell(column), "–"))
		}
		out.WriteByte('\n')
	}
	if slices.Equal(xs, []float64{0}) && len(metrics) > manyMetrics {
		row("", len(entries), func(i int) string { return entries[i] })
		out.WriteString("|---|" + strings.Repeat("--:|", len(entries)) + "\n")
		for _, metric := range inOrder {
			row(metric, len(entries), func(i int) string { return cells[place{0, entries[i], metric}] })
		}
		return out.String()
	}
	if slices.Equal(xs, []float64{0}) {
		row("", len(metrics), func(i int) string { return metrics[i] })
		out.WriteString("|---|" + strings.Repeat("--:|", len(metrics)) + "\n")
		for _, entry := range entries {
			row(entry, len(metrics), func(i int) string { return cells[place{0, entry, metrics[i]}] })
		}
		return out.String()
	}
	for i, metric := range metrics {
		if i > 0 {
			out.WriteByte('\n')
		}
		of := slices.DeleteFunc(slices.Clone(entries), func(entry string) bool {
			return !slices.ContainsFunc(results, func(r result) bool {
				return r.Group == group && r.Entry == entry && r.Metric == metric
			})
		})
		out.WriteString("**" + metric + "**\n\n")
		row("", len(of), func(i int) string { return of[i] })
		out.WriteString("|--:|" + strings.Repeat("--:|", len(of)) + "\n")
		for _, x := range xs {
			row(number(x), len(of), func(i int) string { return cells[place{x, of[i], metric}] })
		}
	}
	return out.String()
}

// distinct returns the values in their order, each once.
func distinct[T cmp.Ordered](values []T) []T {
	slices.Sort(values)
	return slices.Compact(values)
}

// cell is the median with the range, or the only sample.
func (r result) cell() string {
	if len(r.Samples) == 1 {
		return number(r.Samples[0])
	}
	return fmt.Sprintf("%s (%s–%s)", number(r.median()), number(slices.Min(r.Samples)),
		number(slices.Max(r.Samples)))
}

// number returns three significant digits at least.
func number(v float64) string {
	if v < 100 && v > -100 {
		return fmt.Sprintf("%.3g", v)
	}
	return fmt.Sprintf("%.0f", v)
}
