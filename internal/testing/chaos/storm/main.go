// Storm lets everything around the library break for a while, and checks that no message is lost:
//
//	go run ./internal/testing/chaos/storm [-minutes 5] [-seed 1] [-nodes 3] [-rate 60]
//	      [-strategy all|perqueue|shared|levels|perattempt] [-only "delay confirms,minority"]
//
// MILLPOND_BROKER chooses the RabbitMQ. The exit code is 1 if a message is lost, or handled more
// often than the faults explain, or if there is a wrong attempt. It is 2 if the run could not be
// done. docs/chaos.md says more.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/millpond-go/millpond/internal/testing/chaos"
)

func main() {
	chaos.MaybeConsume()
	os.Exit(run(os.Args[1:]))
}

func run(args []string) int {
	flags := flag.NewFlagSet("storm", flag.ContinueOnError)
	minutes := flags.Float64("minutes", 5, "`length` of the faults")
	seed := flags.Uint64("seed", 1, "decides the faults and the fates of messages")
	strategy := flags.String("strategy", chaos.AllStrategies,
		"one of "+strings.Join(chaos.Strategies, ", ")+", or "+chaos.AllStrategies+" at once")
	queues := flags.Int("queues", 1000, "quorum queues of other services on the cluster")
	nodes := flags.Int("nodes", 3, "nodes of the cluster")
	consumers := flags.Int("consumers", 3, "consumer processes")
	rate := flags.Int("rate", 60, "messages a second")
	timer := flags.Duration("timer", 0,
		"dead_letter_worker_publisher_confirm_timeout; 0 leaves RabbitMQ's 3m")
	only := flags.String("only", "",
		"the faults that strike, separated by commas: "+join(chaos.Kinds)+"; all if empty")
	bug := flags.String("bug", "", "a mistake planted around the library: "+join(chaos.Bugs))
	verbose := flags.Bool("verbose", false, "print the library's log")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	c := chaos.Config{
		Seed: *seed, Faults: time.Duration(*minutes * float64(time.Minute)), Nodes: *nodes,
		Consumers: *consumers, Rate: *rate,
		Strategy: *strategy, Queues: *queues, Bug: chaos.Bug(*bug), Timer: *timer,
		Out: os.Stdout, Verbose: *verbose,
	}
	for _, kind := range strings.Split(*only, ",") {
		if kind = strings.TrimSpace(kind); kind != "" {
			c.Only = append(c.Only, chaos.Kind(kind))
		}
	}
	if err := check(c); err != nil {
		fmt.Fprintln(os.Stderr, "storm:", err)
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	r, err := chaos.Do(ctx, c)
	if err != nil {
		fmt.Fprintln(os.Stderr, "storm:", err)
		if r.Kept != "" {
			fmt.Fprintln(os.Stderr, "storm: logs are in", r.Kept)
		}
		return 2
	}
	fmt.Printf("\nRabbitMQ %s, seed %d, strategy %s, %g minutes of faults\n", r.Version, c.Seed,
		c.Strategy, *minutes)
	fmt.Print(r.Report)
	fmt.Printf("  %-12s %d messages not confirmed to the producers, %d stranded and moved back, "+
		"%d consumers ended by themselves\n",
		"besides", r.Unconfirmed, r.Stranded, r.Ended)
	fmt.Println(r.Report.Row(c.Seed, c.Strategy, r.Version, *minutes))
	if err := r.Report.Err(); err != nil {
		fmt.Printf("\nFAILED\n%v\nlogs are in %s\n", err, r.Kept)
		return 1
	}
	fmt.Println("\nnothing lost, and nothing made again without a fault that explains it")
	return 0
}

func check(c chaos.Config) error {
	if err := chaos.CheckStrategy(c.Strategy); err != nil {
		return err
	}
	if c.Bug != "" && !slices.Contains(chaos.Bugs, c.Bug) {
		return fmt.Errorf("bug %q is unknown: use one of %v", c.Bug, chaos.Bugs)
	}
	for _, kind := range c.Only {
		if !slices.Contains(chaos.Kinds, kind) {
			return fmt.Errorf("fault %q is unknown: use some of %s", kind, join(chaos.Kinds))
		}
	}
	if c.Faults <= 0 || c.Nodes < 1 || c.Consumers < 1 || c.Rate < 1 || c.Timer < 0 || c.Queues < 0 {
		return fmt.Errorf("minutes, nodes, consumers and rate must be positive, " +
			"timer and queues not negative")
	}
	return nil
}

// join lists names.
func join[T ~string](names []T) string {
	var all []string
	for _, name := range names {
		all = append(all, string(name))
	}
	return strings.Join(all, ", ")
}
