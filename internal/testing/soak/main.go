// Soak runs a service under a steady load and checks that nothing grows:
//
//	go run ./internal/testing/soak [-minutes 10] [-rate 500]
//	go run ./internal/testing/soak -month
//
// A fifth of the messages fail once or twice and wait for a fraction of a second. It prints the
// figures once a minute, and a verdict at the end. The exit code is 1 if anything grows or a
// message is missing, and 2 if the run could not be done. MILLPOND_BROKER chooses the RabbitMQ.
//
// With -month it runs a month of a service in minutes instead, on a cluster of three nodes; see
// package month.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/millpond-go/millpond/internal/testing/month"
)

func main() {
	os.Exit(run(os.Args[1:]))
}

func run(args []string) int {
	flags := flag.NewFlagSet("soak", flag.ContinueOnError)
	minutes := flags.Float64("minutes", 10, "`length` of the run")
	rate := flags.Int("rate", 500, "messages a second")
	aMonth := flags.Bool("month", false, "run a month in minutes instead of the load")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	length := time.Duration(*minutes * float64(time.Minute))
	every := min(time.Minute, length/(minSamples+1))
	if *rate < 1 || every <= 0 {
		fmt.Fprintln(os.Stderr, "soak: minutes and rate must be positive")
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if *aMonth {
		return runMonth(ctx)
	}
	problems, err := soak(ctx, config{length: length, every: every, rate: *rate, out: os.Stdout})
	if err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		return 2
	}
	for _, p := range problems {
		fmt.Println("NOT FLAT:", p)
	}
	if len(problems) > 0 {
		return 1
	}
	fmt.Println("flat: nothing grows, nothing is missing")
	return 0
}

// runMonth runs the month and returns the exit code.
func runMonth(ctx context.Context) int {
	report, err := month.Run(ctx, month.Config{Days: 30, Nodes: 3, Out: os.Stdout})
	if err != nil {
		fmt.Fprintln(os.Stderr, "month:", err)
		return 2
	}
	for _, p := range report.Problems {
		fmt.Println("PROBLEM:", p)
	}
	if len(report.Problems) > 0 {
		return 1
	}
	fmt.Println("nothing is lost, every message has ended, and the faults explain every copy")
	return 0
}
