package main

import (
	"image/color"
	"path/filepath"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// overloadPanels are the metrics of the overload of the lab, from above.
var overloadPanels = []string{
	"seconds after a first failure", "calls per second", "messages that wait",
}

// The overload of the simulation, in seconds.
const overloadFrom, overloadUntil = 60, 360

// drawOverload writes one picture of an overload, unless it was not simulated.
func drawOverload(results []result, folder string) error {
	results = slices.DeleteFunc(slices.Clone(results), func(r result) bool {
		return r.Group != "overload-curves"
	})
	if len(results) == 0 {
		return nil
	}
	var panels [][]*plot.Plot
	for _, metric := range overloadPanels {
		panel, err := overloadPanel(results, metric)
		if err != nil {
			return err
		}
		panel.Y.Label.Text = metric
		panel.Y.Label.TextStyle.Font.Size = vg.Points(10)
		panels = append(panels, []*plot.Plot{panel})
	}
	panels[0][0].Title.Text = "A service is overloaded for five minutes"
	panels[0][0].Y.Max = 15                // room for the legend
	panels[1][0].Legend = plot.NewLegend() // one is enough
	panels[2][0].Legend = plot.NewLegend()
	panels[2][0].X.Label.Text = "seconds"
	tiles := draw.Tiles{Rows: len(panels), Cols: 1, PadY: 6 * vg.Millimeter}
	return saveSized(filepath.Join(folder, "overload.svg"), 21*vg.Centimeter, func(c draw.Canvas) {
		for row, canvases := range plot.Align(panels, tiles, c) {
			panels[row][0].Draw(canvases[0])
		}
	})
}

// overloadPanel draws one metric of all contenders, with the overload in grey.
func overloadPanel(results []result, metric string) (*plot.Plot, error) {
	panel := plot.New()
	panel.Y.Tick.Marker = plain{plot.DefaultTicks{}}
	panel.Legend.Top, panel.Legend.Left, panel.Legend.XOffs = true, true, 7*vg.Centimeter
	panel.Legend.Padding = vg.Millimeter
	most := 0.0
	var entries []string
	lines := map[string]plotter.XYs{}
	for _, r := range results {
		if r.Metric != metric {
			continue
		}
		if !slices.Contains(entries, r.Entry) {
			entries = append(entries, r.Entry)
		}
		lines[r.Entry] = append(lines[r.Entry], plotter.XY{X: r.X, Y: r.median()})
		most = max(most, r.median())
	}
	ground, err := plotter.NewPolygon(plotter.XYs{
		{X: overloadFrom, Y: 0},
		{X: overloadUntil, Y: 0},
		{X: overloadUntil, Y: most},
		{X: overloadFrom, Y: most},
	})
	if err != nil {
		return nil, err
	}
	ground.Color, ground.LineStyle.Width = color.Gray{232}, 0
	panel.Add(ground, plotter.NewGrid())
	for i, entry := range entries {
		line, err := plotter.NewLine(lines[entry])
		if err != nil {
			return nil, err
		}
		line.Color, line.Width = colours[i%len(colours)], vg.Points(1.6)
		panel.Add(line)
		panel.Legend.Add(entry, line)
	}
	panel.Y.Min = 0
	return panel, nil
}
