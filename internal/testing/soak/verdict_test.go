package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestGrowth(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		values []float64
		want   string
	}{
		"flat":                     {[]float64{20, 20, 20, 20, 20, 20}, ""},
		"the first does not count": {[]float64{1, 20, 20, 20, 20, 20}, ""},
		"noise":                    {[]float64{20, 24, 18, 23, 17, 22, 19, 21}, ""},
		"one peak in the middle":   {[]float64{20, 20, 20, 90, 20, 20, 20}, ""},
		"falling":                  {[]float64{90, 80, 70, 60, 50, 40}, ""},
		"a little more each minute": {[]float64{20, 22, 24, 26, 28, 30, 32},
			"things rises by 10.0 pieces, allowed are 7.8"},
		"too short": {[]float64{20, 20, 20},
			"things: 3 samples are too few for a verdict, want 6"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			assert.Equal(t, c.want, series{name: "things", unit: "pieces", abs: 5, rel: 0.1,
				values: c.values}.growth())
		})
	}
}
