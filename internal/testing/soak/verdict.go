package main

import (
	"fmt"
	"slices"
)

// minSamples is how many samples a verdict takes. The first is not counted: caches and pools fill
// then.
const minSamples = 6

// series is one figure over time.
type series struct {
	name string
	unit string
	// A rise over the whole run of up to abs, and of up to rel times the series' median, is no growth.
	abs, rel float64
	values   []float64
}

// growth says that a series grows, or nothing. It goes by the line that fits the values best, by
// least squares.
func (s series) growth() string {
	if len(s.values) < minSamples {
		return fmt.Sprintf("%s: %d samples are too few for a verdict, want %d", s.name, len(s.values),
			minSamples)
	}
	values := s.values[1:]
	rise := slope(values) * float64(len(values)-1)
	median := slices.Sorted(slices.Values(values))[len(values)/2]
	if allowed := s.abs + s.rel*median; rise > allowed {
		return fmt.Sprintf("%s rises by %.1f %s, allowed are %.1f", s.name, rise, s.unit, allowed)
	}
	return ""
}

// slope is by how much the values rise from one to the next.
func slope(values []float64) float64 {
	n := float64(len(values))
	var sumX, sumY, sumXY, sumXX float64
	for i, y := range values {
		x := float64(i)
		sumX, sumY, sumXY, sumXX = sumX+x, sumY+y, sumXY+x*y, sumXX+x*x
	}
	return (n*sumXY - sumX*sumY) / (n*sumXX - sumX*sumX)
}
