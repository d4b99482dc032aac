package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/millpond-go/millpond/internal/testing/testbroker"
)

const mib = 1 << 20

// sampler measures this process and its broker.
type sampler struct {
	node   *testbroker.Node
	load   *load
	begun  time.Time
	before int // handled until the last sample
	at     time.Time
	rows   []*series
}

func newSampler(node *testbroker.Node, l *load) *sampler {
	now := time.Now()
	return &sampler{node: node, load: l, begun: now, at: now, rows: []*series{
		{name: "heap", unit: "MiB", abs: 8, rel: 0.25},
		{name: "rss", unit: "MiB", abs: 16, rel: 0.25},
		{name: "goroutines", abs: 10},
		{name: "connections", abs: 0.5},
		{name: "channels", abs: 2},
		{name: "queues", abs: 0.5},
		{name: "messages", abs: 500, rel: 0.5}, // in all queues
		// The log of quorum queues stays in memory until it is rolled over after minutes: a saw.
		{name: "broker", unit: "MiB", abs: 160, rel: 0.25},
		{name: "p50", unit: "ms", abs: 50, rel: 0.5},
		{name: "p99", unit: "ms", abs: 250, rel: 1},
	}}
}

// header names the columns.
func (s *sampler) header() string {
	line := fmt.Sprintf("%7s %9s", "time", "handled/s")
	for _, r := range s.rows {
		line += fmt.Sprintf(" %11s", strings.TrimSpace(r.name+" "+r.unit))
	}
	return line
}

// run measures once in each interval until the time is over.
func (s *sampler) run(ctx context.Context, c config) error {
	fmt.Fprintln(c.out, s.header())
	ticker := time.NewTicker(c.every)
	defer ticker.Stop()
	for time.Since(s.begun)+c.every <= c.length+c.every/2 {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		line, err := s.take(ctx)
		if err != nil {
			return err
		}
		fmt.Fprintln(c.out, line)
	}
	return nil
}

// take measures everything and returns it as a line.
func (s *sampler) take(ctx context.Context) (string, error) {
	lateness := s.load.takeLateness()
	if len(lateness) == 0 {
		return "", fmt.Errorf("no message came back from its wait in %s",
			time.Since(s.at).Round(time.Second))
	}
	slices.Sort(lateness)
	quantile := func(q float64) float64 { return ms(lateness[int(q*float64(len(lateness)-1))]) }

	runtime.GC()
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	rss, err := residentSize()
	if err != nil {
		return "", err
	}
	handled, now := s.load.handledCount(), time.Now()
	line := fmt.Sprintf("%7s %9.0f", now.Sub(s.begun).Round(time.Second),
		float64(handled-s.before)/now.Sub(s.at).Seconds())
	s.before, s.at = handled, now

	values := []float64{float64(mem.HeapAlloc) / mib, rss / mib, float64(runtime.NumGoroutine())}
	for _, list := range []string{"list_connections", "list_channels"} {
		names, err := s.ctl(ctx, list, "pid")
		if err != nil {
			return "", err
		}
		values = append(values, float64(len(names)))
	}
	depths, err := s.ctl(ctx, "list_queues", "messages")
	if err != nil {
		return "", err
	}
	messages := 0.0
	for _, d := range depths {
		n, err := strconv.ParseFloat(d, 64)
		if err != nil {
			return "", err
		}
		messages += n
	}
	total, err := s.node.RunCtl(ctx, "eval", "erlang:memory(total).")
	if err != nil {
		return "", err
	}
	broker, err := strconv.ParseFloat(strings.TrimSpace(total), 64)
	if err != nil {
		return "", err
	}
	values = append(values, float64(len(depths)), messages, broker/mib, quantile(0.5), quantile(0.99))
	for i, v := range values {
		s.rows[i].values = append(s.rows[i].values, v)
		line += fmt.Sprintf(" %11.1f", v)
	}
	return line, nil
}

// ctl returns the lines of a list.
func (s *sampler) ctl(ctx context.Context, list, column string) ([]string, error) {
	out, err := s.node.RunCtl(ctx, list, "--no-table-headers", column)
	return strings.Fields(out), err
}

// verdict returns the growth of every series that grows.
func (s *sampler) verdict() []string {
	var problems []string
	for _, r := range s.rows {
		if p := r.growth(); p != "" {
			problems = append(problems, p)
		}
	}
	return problems
}

// residentSize returns the memory of this process in bytes, and 0 without /proc.
func residentSize() (float64, error) {
	status, err := os.ReadFile("/proc/self/statm")
	if os.IsNotExist(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	pages, err := strconv.ParseFloat(strings.Fields(string(status))[1], 64)
	return pages * float64(os.Getpagesize()), err
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
