package page

import (
	"fmt"
	"html/template"
	"strings"
	"time"

	"github.com/millpond-go/millpond/topology/operate"
)

// back is when the waiting messages return, at the latest.
type back struct {
	Bars []bar
	// Unknown are wait queues whose messages the broker has not counted.
	Unknown int
}

type bar struct {
	Label string
	N     int
}

// backOf counts messages by the longest time that they can still wait: the delay of their queue,
// and twice that with Levels, where shorter waits follow. The broker does not show more without a
// look at the messages.
func backOf(waits []operate.Wait) back {
	b := back{Bars: []bar{
		{Label: "within a minute"}, {Label: "within an hour"}, {Label: "within a day"}, {Label: "later"},
	}}
	limits := []time.Duration{time.Minute, time.Hour, 24 * time.Hour}
	for _, w := range waits {
		longest, i := w.Delay, 0
		if w.Strategy == operate.Levels {
			longest *= 2
		}
		for i < len(limits) && longest > limits[i] {
			i++
		}
		if !w.Total.Known() {
			b.Unknown++
			continue
		}
		b.Bars[i].N += w.Total.N
	}
	return b
}

// Total counts all messages of the picture.
func (b back) Total() (n int) {
	for _, bar := range b.Bars {
		n += bar.N
	}
	return n
}

// Picture draws the bars, the longest over the whole width.
func (b back) Picture() template.HTML {
	const width, height, row, text = 320, 96, 24, 110
	most := 1
	for _, bar := range b.Bars {
		most = max(most, bar.N)
	}
	var svg strings.Builder
	fmt.Fprintf(&svg, `<svg class="bars" viewBox="0 0 %d %d" role="img" aria-label="%s">`,
		width, height, b.summary())
	for i, bar := range b.Bars {
		length := bar.N * (width - text - 60) / most
		if bar.N > 0 {
			length = max(length, 2)
		}
		fmt.Fprintf(&svg, `<text x="0" y="%d">%s</text><rect x="%d" y="%d" width="%d" height="14"/>`+
			`<text x="%d" y="%d">%s</text>`,
			i*row+15, bar.Label, text, i*row+4, length, text+length+6, i*row+15, digits(bar.N))
	}
	svg.WriteString("</svg>")
	return template.HTML(svg.String())
}

func (b back) summary() string {
	var parts []string
	for _, bar := range b.Bars {
		parts = append(parts, fmt.Sprintf("%s: %d", bar.Label, bar.N))
	}
	return "Waiting messages return " + strings.Join(parts, ", ")
}

// columns draws counts, with their numbers if they are few.
func columns(class string, counts []int, width, height int, label string) template.HTML {
	most, text := 1, 0
	for _, n := range counts {
		most = max(most, n)
	}
	if len(counts) < bins {
		text = 16
	}
	var svg strings.Builder
	fmt.Fprintf(&svg, `<svg class="%s" viewBox="0 0 %d %d" role="img" aria-label="%s">`,
		class, width, height, template.HTMLEscapeString(label))
	step := width / len(counts)
	for i, n := range counts {
		if n == 0 {
			continue
		}
		tall := max(n*(height-text)/most, 2)
		fmt.Fprintf(&svg, `<rect x="%d" y="%d" width="%d" height="%d"/>`,
			i*step, height-tall, step-1, tall)
		if text > 0 {
			fmt.Fprintf(&svg, `<text x="%d" y="%d">%d</text>`, i*step, height-tall-3, n)
		}
	}
	if text > 0 {
		fmt.Fprintf(&svg, `<rect x="0" y="%d" width="%d" height="1"/>`, height-1, width)
	}
	svg.WriteString("</svg>")
	return template.HTML(svg.String())
}

// dueChart is a picture of the messages that return in a span of time.
type dueChart struct {
	Title   string
	N       int
	Picture template.HTML
}

// chartsOf draws the times in the next minute, hour and day after now.
func chartsOf(due []time.Time, now time.Time) []dueChart {
	var charts []dueChart
	from := time.Duration(0)
	for _, span := range []struct {
		title string
		d     time.Duration
		n     int
		unit  string
	}{
		{"next minute", time.Minute, 12, "5 s"},
		{"next hour", time.Hour, 12, "5 min"},
		{"next day", 24 * time.Hour, 24, "1 h"},
	} {
		counts, n := make([]int, span.n), 0
		for _, at := range due {
			if in := max(at.Sub(now), 0); in < span.d {
				counts[int(in*time.Duration(span.n)/span.d)]++
				n++
			}
		}
		charts = append(charts, dueChart{
			Title: span.title, N: n,
			Picture: columns("columns", counts, 320, 60, fmt.Sprintf("%s return in the %s, in columns of %s",
				plural(n, "message"), span.title, span.unit)),
		})
		from = span.d
	}
	later := 0
	for _, at := range due {
		if at.Sub(now) >= from {
			later++
		}
	}
	return append(charts, dueChart{Title: "later", N: later})
}
