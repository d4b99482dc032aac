// Lab runs a scenario: a workload, faults around it, and a judge that looks for broken promises.
//
//	go run ./internal/lab -scenario chaos [-length 5m] [-seed 1] [-bug all] …
//
//	producers ── numbered, confirmed ──► brokers ──► instances, each in its process
//	     │                               ▲     ▲           │ a line for each begin and end
//	     │             faults of the seed┘     └── proxies │
//	     ▼                                          ▼      ▼
//	   judge ◄───────────────────────────── one log that all append to
//
// The seed decides the fates of messages, and which faults strike when. After the faults everything
// is healed. Then the rules of the scenario must hold.
//
// MILLPOND_BROKER chooses the RabbitMQ. The exit code is 1 if a rule is broken, and 2 if the run
// could not be done. docs/chaos.md says more.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	maybeServe()
	os.Exit(start(os.Args[1:], os.Stdout))
}

// failedMark stands before the broken rules in the output.
const failedMark = "\nFAILED\n"

func start(args []string, out io.Writer) int {
	err := parsed(args, out)
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errBroken):
		return 1
	}
	fmt.Fprintln(os.Stderr, "lab:", err)
	return 2
}

var errBroken = errors.New("a rule is broken")

func parsed(args []string, out io.Writer) error {
	var sc *scenario
	flags := flag.NewFlagSet("lab", flag.ContinueOnError)
	name := flags.String("scenario", "", "`name`: "+about())
	for i, arg := range args { // its settings are the defaults of the other flags
		if arg == "-scenario" && i+1 < len(args) {
			sc = named(args[i+1])
		}
	}
	if sc == nil {
		sc = &scenario{}
	}
	s := sc.settings
	s.Out = out
	s.flags(flags)
	bug := flags.String("bug", "", "a mistake to plant, which must be found: "+
		strings.Join(bugNames(), ", "))
	if err := flags.Parse(args); err != nil {
		return err
	}
	if sc.name == "" {
		return fmt.Errorf("there is no scenario %q: use one of %s", *name, about())
	}
	if *bug != "" && !slices.Contains(bugNames(), *bug) {
		return fmt.Errorf("there is no bug %q: use one of %v", *bug, bugNames())
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	switch err := s.check(); {
	case sc.simulate != nil:
		return told(sc.simulate(), out)
	case err != nil:
		return err
	case *bug != "":
		if err := findBugs(ctx, *bug, sc.name, s, args, out); err != nil {
			fmt.Fprintf(out, "%s%v\n", failedMark, err)
			return errBroken
		}
		return nil
	}
	rep, err := sc.do(ctx, s)
	if err != nil {
		return err
	}
	return told(rep, out)
}

// told prints a report.
func told(r *report, out io.Writer) error {
	fmt.Fprintf(out, "\n%s", r)
	if err := r.err(); err != nil {
		fmt.Fprintf(out, "%s%v\n\nthe log is in %s\n", failedMark, err, r.kept)
		return errBroken
	}
	fmt.Fprintln(out, "\nno rule is broken")
	return nil
}

func named(name string) *scenario {
	for _, sc := range scenarios {
		if sc.name == name {
			return sc
		}
	}
	return nil
}

func about() string {
	var all []string
	for _, sc := range scenarios {
		all = append(all, fmt.Sprintf("%s (%s)", sc.name, sc.about))
	}
	return strings.Join(all, ", ")
}

// flags lets arguments change the settings.
func (s *settings) flags(flags *flag.FlagSet) {
	flags.DurationVar(&s.Length, "length", s.Length, "of the faults")
	flags.Uint64Var(&s.Seed, "seed", 1, "decides the faults and the fates of messages")
	flags.IntVar(&s.Nodes, "nodes", s.Nodes, "of the cluster")
	flags.BoolVar(&s.Memory, "memory", s.Memory, "keep the broker's data in memory")
	flags.DurationVar(&s.Timer, "timer", s.Timer,
		"dead_letter_worker_publisher_confirm_timeout; 0 leaves RabbitMQ's 3m")
	flags.IntVar(&s.Queues, "queues", s.Queues, "quorum queues of other services")
	flags.IntVar(&s.Instances, "instances", s.Instances, "processes that consume")
	flags.StringVar(&s.Strategy, "strategy", s.Strategy, strings.Join(copying, ", ")+", or "+
		allStrategies+" of them at once; or "+keyStrategy)
	flags.BoolVar(&s.Block, "block", s.Block,
		"dead letters block their keys, and an operator decides about them")
	flags.IntVar(&s.Keys, "keys", s.Keys, "number of keys")
	flags.IntVar(&s.Rate, "rate", s.Rate, "messages a second")
	flags.DurationVar(&s.Bound, "bound", s.Bound,
		"how long a ready message may wait while the broker works and a handler is free")
	flags.BoolVar(&s.Once, "once", false, "end the run at the first message out of order")
	flags.BoolVar(&s.Verbose, "verbose", false, "print the library's log")
	flags.Func("only", "the `faults` that strike, with commas between them", func(list string) error {
		for _, kind := range strings.Split(list, ",") {
			s.Only = append(s.Only, faultKind(strings.TrimSpace(kind)))
		}
		return nil
	})
}

// check finds mistakes in the settings, and fits some to the length and to others.
func (s *settings) check() error {
	if s.Length <= 0 || s.Nodes < 1 || s.Instances < 1 || s.Keys < 1 || s.Rate < 1 || s.Queues < 0 ||
		s.Timer < 0 || s.Bound <= 0 {
		return errors.New("length, nodes, instances, keys, rate and bound must be positive, queues and " +
			"timer not negative")
	}
	if s.Block && s.Strategy != keyStrategy {
		return errors.New("block needs the strategy " + keyStrategy)
	}
	s.Fates.Seed = s.Seed
	if s.Block {
		const leastDead = 10
		s.Fates.Dead = max(s.Fates.Dead, leastDead)
	}
	s.Samples = min(s.Samples, s.Length/(minSamples+1))
	if s.Length < time.Minute {
		s.Queues = min(s.Queues, 20)
	}
	_, err := newLines(*s)
	return err
}
