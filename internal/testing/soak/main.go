// Soak runs a service under a steady load and checks that nothing grows:
//
//	go run ./internal/testing/soak [-minutes 10] [-rate 500]
//
// A fifth of the messages fail once or twice and wait for a fraction of a second. It prints the
// figures once a minute, and a verdict at the end. The exit code is 1 if anything grows or a
// message is missing, and 2 if the run could not be done. MILLPOND_BROKER chooses the RabbitMQ.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	os.Exit(run(os.Args[1:]))
}

func run(args []string) int {
	flags := flag.NewFlagSet("soak", flag.ContinueOnError)
	minutes := flags.Float64("minutes", 10, "`length` of the run")
	rate := flags.Int("rate", 500, "messages a second")
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
