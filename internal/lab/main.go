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
// could not be done. docs/notes/chaos.md says more.
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
	rep, err := parsed(args, out)
	if rep != nil {
		fmt.Fprintf(out, "\n%s\n", strings.Join(rep.rows, "\n"))
		if broken := rep.err(); broken != nil {
			fmt.Fprintf(out, "%s%v\n\nthe log is in %s\n", failedMark, broken, rep.kept)
			return 1
		}
		fmt.Fprintln(out, "\nno rule is broken")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "lab:", err)
		return 2
	}
	return 0
}

// parsed does what the arguments ask for.
func parsed(args []string, out io.Writer) (*report, error) {
	var s settings
	var sc *scenario
	flags := flag.NewFlagSet("lab", flag.ContinueOnError)
	flags.Func("scenario", "`name`: chaos, keys, outage, overload or soak; comes first",
		func(name string) error {
			i := slices.IndexFunc(scenarios, func(sc *scenario) bool { return sc.name == name })
			if i < 0 {
				return errors.New("there is no such scenario")
			}
			sc, s = scenarios[i], scenarios[i].settings
			s.Out, s.Seed = out, 1
			return nil
		})
	s.flags(flags)
	bug := flags.String("bug", "", "a `mistake` of bugs.go to plant, which must be found; all: each")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	switch {
	case sc == nil:
		return nil, errors.New("name a scenario")
	case sc.simulate != nil:
		return sc.simulate(), nil
	}
	if err := s.check(); err != nil {
		return nil, err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if *bug != "" {
		return findBugs(ctx, *bug, sc.name, s, args)
	}
	return sc.do(ctx, s)
}

// flags lets arguments change the settings.
func (s *settings) flags(flags *flag.FlagSet) {
	flags.DurationVar(&s.Length, "length", 0, "of the faults")
	flags.Uint64Var(&s.Seed, "seed", 1, "decides the faults and the fates of messages")
	flags.IntVar(&s.Nodes, "nodes", 0, "of the cluster")
	flags.DurationVar(&s.Timer, "timer", 0,
		"dead_letter_worker_publisher_confirm_timeout; 0 leaves RabbitMQ's 3m")
	flags.IntVar(&s.Queues, "queues", 0, "quorum queues of other services")
	flags.StringVar(&s.Strategy, "strategy", "", strings.Join(copying, ", ")+", or "+
		allStrategies+" of them at once; or "+keyStrategy)
	flags.BoolVar(&s.Block, "block", false,
		"dead letters block their keys, and an operator decides about them")
	flags.DurationVar(&s.Bound, "bound", 0,
		"how long a ready message may wait while the broker works and a handler is free")
	flags.BoolVar(&s.Once, "once", false, "end the run at the first message out of order")
	flags.BoolVar(&s.Verbose, "verbose", false, "print the library's log")
	flags.Func("only", "the `faults` that strike, with commas between them", func(list string) error {
		for kind := range strings.SplitSeq(list, ",") {
			s.Only = append(s.Only, faultKind(strings.TrimSpace(kind)))
		}
		return nil
	})
}

// check finds mistakes in the settings, and fits some to the length and to others.
func (s *settings) check() error {
	if s.Length <= 0 || s.Nodes < 1 || s.Queues < 0 || s.Timer < 0 || s.Bound <= 0 {
		return errors.New("length, nodes and bound must be positive, queues and timer not negative")
	}
	if s.Block && s.Strategy != keyStrategy {
		return errors.New("block needs the strategy " + keyStrategy)
	}
	s.Fates.Seed = s.Seed
	if s.Block {
		s.Fates.Dead = max(s.Fates.Dead, 10)
	}
	s.Samples = min(s.Samples, s.Length/(minSamples+1))
	if s.Length < time.Minute {
		s.Queues = min(s.Queues, 20)
	}
	_, err := newLines(*s)
	return err
}
