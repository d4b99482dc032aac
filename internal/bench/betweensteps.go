package main

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/ladder"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
)

// The entries and metrics of delays between two wait steps.
const (
	inRounds    = "rounds"
	nextLonger  = "next longer step"
	lateShare   = "late, mean % of the delay"
	lateWorst   = "late, worst, of what is allowed"
	writesEach  = "writes a message"
	writesRate  = "writes a second"
	betweenMost = 30 * time.Second
)

// betweenSteps lets messages fail at once, each with a RetryAfter from 1 s to 30 s, on the default
// wait steps. It compares the rounds with the next longer step, which the handler then asks for.
func (b *bench) betweenSteps(ctx context.Context) ([]result, error) {
	return scale([]int{200, 2000}, func(n int) (results []result, err error) {
		c := contest{group: "between", x: float64(n), rounds: 1}
		steps := []time.Duration{
			time.Second, 5 * time.Second, 30 * time.Second,
			2 * time.Minute, 10 * time.Minute, time.Hour,
		}
		for name, asks := range map[string]func(time.Duration) time.Duration{
			inRounds: func(d time.Duration) time.Duration { return d },
			nextLonger: func(d time.Duration) time.Duration {
				at, _ := slices.BinarySearch(steps, d)
				return steps[at]
			},
		} {
			e, end, started := b.betweenEntry(ctx, name, n, steps, asks)
			defer func() { err = errors.Join(err, end()) }()
			if started != nil {
				return nil, started
			}
			c.entries = append(c.entries, e)
		}
		return c.hold(ctx, b)
	})
}

// betweenEntry measures how late the second attempt is. The number of writes is computed, not
// counted.
func (b *bench) betweenEntry(
	ctx context.Context, name string, n int, steps []time.Duration,
	asks func(time.Duration) time.Duration,
) (entry, func() error, error) {
	wanted := func(i int) time.Duration { // evenly on a logarithmic scale
		share := math.Pow(betweenMost.Seconds(), float64(i)/float64(n))
		return time.Duration(share * float64(time.Second)).Round(time.Millisecond)
	}
	var mu sync.Mutex
	failed := map[int]time.Time{}
	var sum, worst float64
	handle := func(body []byte) error {
		now := time.Now()
		mu.Lock()
		defer mu.Unlock()
		i := number(body)
		if at, ok := failed[i]; ok {
			late := now.Sub(at) - wanted(i)
			sum += float64(late) / float64(wanted(i))
			worst = max(worst, float64(late)/float64(ladder.Allowed(wanted(i))))
			return nil
		}
		failed[i] = now
		return middleware.RetryAfter(errFailed, asks(wanted(i)))
	}
	start := func(ctx context.Context, br *broker, w work) (*service, error) {
		unlisted := backoff.Limit{Retries: 3, Policy: backoff.PolicyFunc(
			func(backoff.Failure) (time.Duration, bool) { return time.Second, true })}
		return servePolicy(ctx, br, w, topology.PerQueue{}, unlisted, watermill.NopLogger{})
	}
	l, err := b.newLane(ctx, start, work{inFlight: 8, handle: handle})
	if err != nil {
		return entry{}, l.end, err
	}
	return entry{name, func(ctx context.Context) (values, error) {
		writes := 0
		for i := range n {
			for rest, asked := asks(wanted(i)), asks(wanted(i)); rest > 0; writes++ {
				rest -= ladder.Next(steps, rest, asked)
			}
		}
		began := time.Now()
		measured, err := l.batch(ctx, n, 2*n, usual)
		if err != nil {
			return nil, err
		}
		took := time.Since(began).Seconds()
		mu.Lock()
		defer mu.Unlock()
		measured[lateShare], measured[lateWorst] = 100*sum/float64(n), worst
		measured[writesEach], measured[writesRate] = float64(writes)/float64(n), float64(writes)/took
		return measured, nil
	}}, l.end, nil
}
