// Inorder checks that the messages of a key are handled in their order while everything around them
// breaks:
//
//	go run ./internal/testing/inorder [-length 10m] [-seed 1] [-keys 1000] [-rate 300]
//	      [-instances 3] [-concurrency 32] [-unordered | -block] [-speed | -waits | -catchup]
//
//	producer ── numbered by key, confirmed ──► queue ──► instances, each in its process
//	                                             ▲             │ a line for each begin and end
//	                          faults of the seed ┘             ▼
//	                                        judge ◄── one log that all processes append to
//
// With -block another process releases and replays the keys that dead letters block.
//
// MILLPOND_BROKER chooses the RabbitMQ. The exit code is 1 for each mistake that no fault explains:
// see report.problems. It is 2 if the run could not be done.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

func main() {
	maybeServe()
	os.Exit(run(os.Args[1:], os.Stdout))
}

func run(args []string, out io.Writer) int {
	flags := flag.NewFlagSet("inorder", flag.ContinueOnError)
	c := config{Out: out}
	flags.DurationVar(&c.Length, "length", time.Minute, "of the faults, or of all trials of -waits")
	flags.Uint64Var(&c.Seed, "seed", 1, "decides the faults and the fates of messages")
	flags.IntVar(&c.Keys, "keys", 1000, "number of keys")
	flags.IntVar(&c.Rate, "rate", 300, "messages a second")
	flags.IntVar(&c.Instances, "instances", 3, "processes that consume")
	flags.IntVar(&c.Concurrency, "concurrency", 32, "handlers at once of an instance")
	flags.IntVar(&c.Percent, "percent", 10, "percent of the messages that fail one to five times")
	flags.IntVar(&c.Dead, "dead", 2, "messages of a thousand that become dead letters")
	delays := flags.String("delays", text(usualDelays), "five delays before attempts 2 to 6")
	flags.DurationVar(&c.Heartbeat, "heartbeat", 2*time.Second, "of the instances' connections")
	flags.DurationVar(&c.Patience, "patience", 20*time.Second,
		"how long a message may wait after the faults with nothing to wait for")
	flags.BoolVar(&c.Unordered, "unordered", false, "leave the option out: there must be inversions")
	flags.BoolVar(&c.Block, "block", false, "dead letters block their keys: an operator decides")
	flags.BoolVar(&c.Memory, "memory", false, "keep the broker's data in memory")
	flags.BoolVar(&c.Verbose, "verbose", false, "print the library's log")
	all := flags.Bool("bugs", false, "plant each mistake in turn: the judge must find it")
	name := flags.String("bug", "", "a mistake planted in the library: "+bugNames())
	speed := flags.Bool("speed", false, "measure the throughput without failures instead")
	waits := flags.Bool("waits", false, "measure the wait of keys without failures instead")
	catchup := flags.Bool("catchup", false, "measure how soon a busy key has caught up instead")
	rounds := flags.Int("rounds", 7, "pairs of a measurement")
	messages := flags.Int("messages", 50000, "messages of each trial of -speed")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	var err error
	if c.Delays, err = durations(*delays); err == nil {
		err = check(c, min(*rounds, *messages))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "inorder:", err)
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	switch {
	case *speed:
		err = measureSpeed(ctx, c, *messages, *rounds)
	case *waits:
		err = measureWaits(ctx, c, *rounds)
	case *catchup:
		err = measureCatchUp(ctx, c)
	case *all:
		var found bool
		if found, err = findBugs(ctx, c); err == nil && !found {
			return 1
		}
	default:
		return judged(ctx, c, *name)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "inorder:", err)
		return 2
	}
	return 0
}

// judged does a run, prints its table, and returns the exit code.
func judged(ctx context.Context, c config, name string) int {
	remove := func() error { return nil }
	var err error
	if name != "" {
		var planted bug
		if planted, err = bugNamed(name); err == nil {
			c = planted.config(c)
			c.Program, remove, err = planted.plant(ctx)
		}
	}
	var r result
	if err == nil {
		r, err = do(ctx, c)
		err = errors.Join(err, remove())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "inorder:", err)
		if r.Kept != "" {
			fmt.Fprintln(os.Stderr, "inorder: the log of events is in", r.Kept)
		}
		return 2
	}
	r.print(c)
	if problems := r.problems(); len(problems) > 0 {
		fmt.Fprintf(c.Out, "\nFAILED\n%s\nthe log of events is in %s\n",
			strings.Join(problems, "\n"), r.Kept)
		return 1
	}
	fmt.Fprintln(c.Out, "\nno inversion, nothing lost, nothing left")
	return 0
}

func check(c config, counts int) error {
	if c.Length <= 0 || c.Keys < 1 || c.Rate < 1 || c.Instances < 1 || c.Concurrency < 1 ||
		c.Heartbeat <= 0 || c.Patience <= 0 || counts < 1 {
		return errors.New("length, keys, rate, instances, concurrency, heartbeat, patience, rounds " +
			"and messages must be positive")
	}
	if c.Block && c.Unordered {
		return errors.New("block and unordered exclude each other")
	}
	if c.Percent < 0 || c.Dead < 0 || 10*c.Percent+c.Dead > 1000 {
		return errors.New("percent and dead must not be negative, nor more than all messages together")
	}
	if len(c.Delays) != mostFailures {
		return fmt.Errorf("%d delays: want %d", len(c.Delays), mostFailures)
	}
	return nil
}

// durations parses delays with commas between them.
func durations(list string) (all []time.Duration, err error) {
	for _, one := range strings.Split(list, ",") {
		d, err := time.ParseDuration(strings.TrimSpace(one))
		if err != nil {
			return nil, err
		}
		all = append(all, d)
	}
	return all, nil
}

func text(delays []time.Duration) string {
	var all []string
	for _, d := range delays {
		all = append(all, d.String())
	}
	return strings.Join(all, ",")
}
