package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/millpond-go/millpond/topology"
)

// outage is a run of `bench outage`: for each contender a fleet of services, a producer and a
// downstream that is out for a while.
type outage struct {
	broker    *broker
	processes int
	rate      int // messages a second
	// before, out and after are the phases: all is well, the downstream is out, it is back. The
	// last ends early when the backlog is gone, or when the downstream has fallen over.
	before, out, after time.Duration
	ramp               time.Duration
	limit              int // calls a second above which the downstream falls over
	latency            time.Duration
	verbose            bool
	say                func(format string, args ...any)
}

// story is the course of one contender.
type story struct {
	contender string
	limit     int // calls a second above which the downstream falls over
	// ready is when the producer began. The downstream was out from out to back.
	ready, out, back, end time.Time
	published             []time.Time // by number
	calls                 []call
	notes                 []note
	first, last           tally // around the outage
	fell                  time.Time
	drained               time.Time // zero: some backlog was left
	left                  left
}

// startOutage holds the outages, as the arguments behind `bench outage` say.
func startOutage(ctx context.Context, args []string, out io.Writer) (err error) {
	o := &outage{}
	flags := flag.NewFlagSet("bench outage", flag.ContinueOnError)
	flags.IntVar(&o.processes, "processes", 16, "`number` of services")
	flags.IntVar(&o.rate, "rate", 200, "messages a `second`")
	flags.DurationVar(&o.before, "before", 20*time.Second, "time before the outage")
	flags.DurationVar(&o.out, "outage", time.Minute, "time that the downstream is out; at least 5 s")
	flags.DurationVar(&o.after, "after", 5*time.Minute, "the most time after the outage")
	flags.DurationVar(&o.ramp, "ramp", 10*time.Second, "`time` in which the brake ramps the rate up")
	flags.IntVar(&o.limit, "limit", 300, "calls a `second` above which the downstream falls over")
	flags.DurationVar(&o.latency, "latency", 10*time.Millisecond, "`time` of a call that succeeds")
	contenders := flags.String("contenders", strings.Join([]string{perBudget, brake, noBudget}, ","),
		"`names` of the contenders, separated by commas")
	file := flags.String("out", "", "`file` for all figures, as JSON")
	flags.BoolVar(&o.verbose, "v", false, "print the logs of the services")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if o.out < 5*time.Second || o.processes < 1 || o.rate < 1 || flags.NArg() > 0 {
		return errors.New("an outage is 5 s or longer, processes and rate are positive, and there " +
			"are no arguments but flags")
	}
	o.say = func(format string, args ...any) { fmt.Fprintf(out, format, args...) }
	if o.broker, err = startBroker(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.broker.close()) }()

	r := run{Machine: machineOf(o.broker), Rounds: 1}
	o.say("%s\n%d services, %d messages a second, out for %v\n\n", r.Machine, o.processes, o.rate,
		o.out)
	for contender := range strings.SplitSeq(*contenders, ",") {
		o.say("%s ...\n", contender)
		s, err := o.hold(ctx, contender)
		if err != nil {
			return fmt.Errorf("%s: %w", contender, err)
		}
		r.Results = append(r.Results, s.results()...)
	}
	printOutage(out, r)
	if *file != "" {
		return r.write(*file)
	}
	return nil
}

// hold lets one contender go through an outage.
func (o *outage) hold(ctx context.Context, contender string) (s *story, err error) {
	s = &story{contender: contender, limit: o.limit}
	queue := o.broker.name("outage-" + contender)
	plan, err := topology.PlanFor(topology.PerQueue{}, queue, outagePolicy())
	if err != nil {
		return nil, err
	}
	d, err := startDownstream(o.limit, o.latency)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	fleet, err := startFleet(ctx, outageService{
		URL: o.broker.node.URL(), Queue: queue, Downstream: d.url, Contender: contender, Ramp: o.ramp,
		Verbose: o.verbose,
	}, o.processes)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, fleet.stop()) }()
	err = o.broker.own(func(p *producer) error {
		s.ready = time.Now()
		if err := o.phases(ctx, s, d, p); err != nil {
			return err
		}
		s.published, err = p.stop(ctx)
		return err
	}, queue, o.rate)
	if err != nil {
		return nil, err
	}
	o.finish(ctx, s, d)
	if err := fleet.stop(); err != nil {
		return nil, err
	}
	s.end, s.fell, s.calls, s.notes = time.Now(), d.fell(), d.all(), fleet.told()
	if s.left, err = o.broker.collect(plan); err != nil {
		return nil, err
	}
	if contender == brake {
		s.left.tokens, err = o.broker.tokens(queue)
	}
	return s, err
}

// fallenFor is how long a story goes on after the downstream has fallen over.
const fallenFor = 20 * time.Second

// phases lets the downstream be well, out, and back.
func (o *outage) phases(ctx context.Context, s *story, d *downstream, p *producer) (err error) {
	if err := sleep(ctx, o.before); err != nil {
		return err
	}
	if s.first, err = o.broker.tally(ctx); err != nil {
		return err
	}
	s.out = d.setOut(true)
	o.say("  out after %d messages, %d handled\n", p.count(), d.handled())
	// To ask for the counters takes a second. They are read shortly before the end.
	if err := sleep(ctx, o.out-2*time.Second); err != nil {
		return err
	}
	if s.last, err = o.broker.tally(ctx); err != nil {
		return err
	}
	if err := sleep(ctx, time.Until(s.out.Add(o.out))); err != nil {
		return err
	}
	s.back = d.setOut(false)
	o.say("  back with a backlog of %d\n", p.count()-d.handled())
	for time.Since(s.back) < o.after {
		fell := d.fell()
		if !fell.IsZero() && time.Since(fell) > fallenFor {
			o.say("  the downstream fell over after %v\n", fell.Sub(s.back).Round(time.Millisecond))
			return nil
		}
		// A few messages are always on their way.
		if s.drained.IsZero() && p.count()-d.handled() <= max(o.rate/20, 5) {
			s.drained = time.Now()
			o.say("  no backlog after %v\n", s.drained.Sub(s.back).Round(time.Millisecond))
		}
		if !s.drained.IsZero() && time.Since(s.drained) > 5*time.Second {
			return nil
		}
		if err := sleep(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
	o.say("  a backlog of %d after %v\n", p.count()-d.handled(), o.after)
	return nil
}

// finish gives the last messages a moment, unless the downstream cannot handle them.
func (o *outage) finish(ctx context.Context, s *story, d *downstream) {
	limit := time.Now().Add(5 * time.Second)
	for !s.drained.IsZero() && d.fell().IsZero() && d.handled() < len(s.published) &&
		time.Now().Before(limit) {
		if sleep(ctx, 50*time.Millisecond) != nil {
			return
		}
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
