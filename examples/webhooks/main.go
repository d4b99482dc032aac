// Command webhooks delivers webhooks over HTTP with delayed retries, and proves that none is lost.
//
// A receiver, which is a net/http server in the same program, answers by a plan made from a seed:
// 200, 500, 503 for a while, 429 with Retry-After, 400, 410; it drops connections, and sometimes it
// does not answer at all. The service that delivers to it tells errors that pass from errors that
// do not. A connection of plain AMQP, which shares no code with the library, publishes the
// deliveries and reads the dead-letter queue.
//
// What is printed at the end comes from the receiver's own log and from the
// dead-letter queue. The program exits with 1 unless every delivery is in exactly
// one of the two, came there as planned, and never before its delay.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millpond-go/millpond/topology"
)

const (
	defaultURL    = "amqp://guest:guest@127.0.0.1:5672/"
	maxDeliveries = 1000
)

const usage = `Usage: webhooks [--url URL] [--strategy perqueue|shared] [--type quorum|classic]
                [--deliveries N] [--seed N] [--quiet] [--log]

Delivers webhooks to a receiver that fails in many ways, and counts at the end
where each of them is: delivered, or in the dead-letter queue. Takes about 25
seconds. Its queues have names of their own and are deleted at the end, unless
something is wrong.

Exit status: 0 if nothing was lost, left undecided or early, 1 if something was,
2 for a wrong argument.

`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	d, err := parse(args, stdout, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	}
	if err := d.run(ctx); err != nil {
		fmt.Fprintf(stderr, "webhooks: %v\n", err)
		return 1
	}
	return 0
}

// parse says on stderr what is wrong.
func parse(args []string, stdout, stderr io.Writer) (*demo, error) {
	flags := flag.NewFlagSet("webhooks", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		fmt.Fprint(flags.Output(), usage)
		flags.PrintDefaults()
	}
	// The default is not shown, for AMQP_URL may hold a password.
	url := flags.String("url", "", "`URL` of the broker (default AMQP_URL, else "+defaultURL+")")
	strategy := flags.String("strategy", "perqueue", "`where` messages wait: perqueue or shared")
	kind := flags.String("type", "quorum", "`type` of the wait queues: quorum or classic")
	deliveries := flags.Int("deliveries", 200, "`number` of deliveries")
	seed := flags.Uint64("seed", 1, "what the receiver's plan is made from")
	quiet := flags.Bool("quiet", false, "do not print a line for each attempt")
	log := flags.Bool("log", false, "show the log of the library and of Watermill on stderr")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}

	d := &demo{
		url: *url, kind: topology.QueueType(*kind), strategy: *strategy, seed: *seed, quiet: *quiet,
		plan: deal(min(max(*deliveries, 0), maxDeliveries), *seed), logger: watermill.NopLogger{},
		screen: screen{out: stdout, live: isTerminal(stdout) && !*log},
	}
	if d.url == "" {
		d.url = os.Getenv("AMQP_URL")
	}
	if d.url == "" {
		d.url = defaultURL
	}
	if *log {
		d.logger = watermill.NewStdLoggerWithOut(stderr, false, false)
	}

	var err error
	switch {
	case flags.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q", flags.Arg(0))
	case *strategy != "perqueue" && *strategy != "shared":
		err = fmt.Errorf("unknown strategy %q: perqueue or shared", *strategy)
	case d.kind != topology.Quorum && d.kind != topology.Classic:
		err = fmt.Errorf("unknown type %q: quorum or classic", *kind)
	case *deliveries < 1 || *deliveries > maxDeliveries:
		err = fmt.Errorf("%d deliveries: from 1 to %d", *deliveries, maxDeliveries)
	}
	if err != nil {
		fmt.Fprintf(stderr, "webhooks: %v\n", err)
	}
	return d, err
}
