package main

import (
	"image/color"
	"path/filepath"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// The groups and metrics of the outage of the lab that the picture shows.
const (
	outageCurves  = "outage-curves"
	outageFigures = "outage"
	callsCurve    = "calls per second"
	backlogCurve  = "backlog"
	secondsOut    = "seconds out"
	fellAfter     = "seconds from back until it fell over"
	callsLimit    = "calls a second that it bears"
)

// outageEntries are the contenders in the picture, with names for the legend and colours. Beside a
// fleet without a budget, which calls many times more often, they could not be seen.
var outageEntries = []struct {
	entry, name string
	colour      color.Color
}{
	{"brake", "with the brake", colours[0]},
	{"budget", "a budget in each process", colours[1]},
}

// drawOutage writes one picture of an outage, unless it was not measured: above the calls of the
// downstream, below the backlog.
func drawOutage(results []result, folder string) error {
	out, measured := figureOf(results, "", secondsOut)
	if !measured {
		return nil
	}
	calls, err := outagePanel(results, callsCurve, out)
	if err != nil {
		return err
	}
	calls.Title.Text = "A downstream service is out for a while"
	calls.Y.Label.Text = "calls per second"
	if limit, ok := figureOf(results, "", callsLimit); ok {
		if err := addLimit(calls, limit); err != nil {
			return err
		}
	}
	if err := addFalls(calls, results, out); err != nil {
		return err
	}
	backlog, err := outagePanel(results, backlogCurve, out)
	if err != nil {
		return err
	}
	backlog.Y.Label.Text = "messages not handled yet"
	backlog.X.Label.Text = "seconds since the outage began"
	backlog.Legend = plot.NewLegend() // one is enough
	calls.X.Min, calls.X.Max = min(calls.X.Min, backlog.X.Min), max(calls.X.Max, backlog.X.Max)
	backlog.X.Min, backlog.X.Max = calls.X.Min, calls.X.Max

	panels := [][]*plot.Plot{{calls}, {backlog}}
	tiles := draw.Tiles{Rows: 2, Cols: 1, PadY: 6 * vg.Millimeter}
	return saveSized(filepath.Join(folder, "outage.svg"), 17*vg.Centimeter, func(c draw.Canvas) {
		for row, canvases := range plot.Align(panels, tiles, c) {
			panels[row][0].Draw(canvases[0])
		}
	})
}

// figureOf returns a figure of a contender, or of the first that has it.
func figureOf(results []result, entry, metric string) (value float64, ok bool) {
	i := slices.IndexFunc(results, func(r result) bool {
		return r.Group == outageFigures && r.Metric == metric && (entry == "" || r.Entry == entry)
	})
	if i < 0 {
		return 0, false
	}
	return results[i].median(), true
}

func isShown(entry string) bool {
	for _, e := range outageEntries {
		if e.entry == entry {
			return true
		}
	}
	return false
}

// outagePanel draws one metric of all contenders, with the outage in grey.
func outagePanel(results []result, metric string, out float64) (*plot.Plot, error) {
	panel := plot.New()
	panel.Y.Tick.Marker = plain{plot.DefaultTicks{}}
	panel.Legend.Top, panel.Legend.Left, panel.Legend.XOffs = true, true, 6*vg.Centimeter
	panel.Legend.Padding = vg.Millimeter
	most := 0.0
	lines := map[string]plotter.XYs{}
	for _, r := range results {
		if r.Group == outageCurves && r.Metric == metric && isShown(r.Entry) {
			lines[r.Entry] = append(lines[r.Entry], plotter.XY{X: r.X, Y: r.median()})
			most = max(most, r.median())
		}
	}
	ground, err := plotter.NewPolygon(plotter.XYs{
		{X: 0, Y: 0}, {X: out, Y: 0}, {X: out, Y: most}, {X: 0, Y: most},
	})
	if err != nil {
		return nil, err
	}
	ground.Color, ground.LineStyle.Width = color.Gray{232}, 0
	panel.Add(ground, plotter.NewGrid())
	for _, e := range slices.Backward(outageEntries) { // the brake is drawn last, on top
		if len(lines[e.entry]) == 0 {
			continue
		}
		line, err := plotter.NewLine(lines[e.entry])
		if err != nil {
			return nil, err
		}
		line.Color, line.Width = e.colour, vg.Points(1.6)
		panel.Add(line)
		panel.Legend.Add(e.name, line)
	}
	panel.Y.Min = 0
	return panel, nil
}

// addLimit draws the rate above which the downstream falls over.
func addLimit(panel *plot.Plot, limit float64) error {
	line, err := plotter.NewLine(plotter.XYs{{X: panel.X.Min, Y: limit}, {X: panel.X.Max, Y: limit}})
	if err != nil {
		return err
	}
	line.Color, line.Dashes = color.Gray{90}, []vg.Length{vg.Points(4), vg.Points(3)}
	panel.Add(line)
	panel.Legend.Add("falls over above "+number(limit), line)
	return nil
}

// addFalls marks where the downstream fell over.
func addFalls(panel *plot.Plot, results []result, out float64) error {
	for _, e := range outageEntries {
		fell, ok := figureOf(results, e.entry, fellAfter)
		if !ok {
			continue
		}
		x := out + fell
		y := 0.0
		for _, r := range results {
			if r.Group == outageCurves && r.Entry == e.entry && r.Metric == callsCurve && r.X <= x {
				y = r.median() // the second that it fell in
			}
		}
		labels, err := plotter.NewLabels(plotter.XYLabels{
			XYs: plotter.XYs{{X: x, Y: y}}, Labels: []string{" fell over"},
		})
		if err != nil {
			return err
		}
		labels.TextStyle[0].Color, labels.TextStyle[0].Font.Size = e.colour, font.Length(9)
		point, err := plotter.NewScatter(plotter.XYs{{X: x, Y: y}})
		if err != nil {
			return err
		}
		point.Color, point.Shape, point.Radius = e.colour, draw.CrossGlyph{}, vg.Points(4)
		panel.Add(point, labels)
	}
	return nil
}
