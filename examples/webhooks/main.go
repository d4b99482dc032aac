// Command webhooks delivers webhooks over HTTP with delayed retries, and proves that none is lost.
//
// A receiver, which is a net/http server in the same program, answers by a plan made from a seed.
// It answers 200, 500, 503 for a while, 429 with Retry-After, 400 and 410; it drops connections,
// and sometimes it does not answer at all. The service that delivers to it has a policy for each
// kind of error: the network's, the receiver's, and errors that do not pass. A plain AMQP
// connection, which shares no code with the library, publishes the deliveries and reads the
// dead-letter queue.
//
// The table at the end comes from the receiver's log and from the dead-letter queue. The program
// exits with 1 unless every delivery is in exactly one of the two, after the planned attempts and
// never before its delay.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millpond-go/millpond/examples/internal/program"
	"github.com/millpond-go/millpond/topology"
)

const maxDeliveries = 1000

const usage = `Usage: webhooks [--url URL]
                [--strategy perqueue|perattempt|shared|levels|delayed|native|inorder]
                [--type quorum|classic] [--deliveries N] [--seed N] [--quiet] [--log]

Delivers webhooks to a receiver that fails in many ways, and counts at the end
where each of them is: delivered, or in the dead-letter queue. Takes about 25
seconds. Its queues have names of their own and are deleted at the end, unless
something is wrong. The strategy delayed needs RabbitMQ's delayed-message plugin,
and the strategy native needs RabbitMQ 4.3.

Exit status: 0 if nothing was lost, left undecided or early, 1 if something was,
2 for a wrong argument.

`

const named = "perqueue, perattempt, shared, levels, delayed, native or inorder"

func main() { program.Exit(run) }

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

// parse reads the arguments. It prints its error.
func parse(args []string, stdout, stderr io.Writer) (*demo, error) {
	flags := flag.NewFlagSet("webhooks", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		fmt.Fprint(flags.Output(), usage)
		flags.PrintDefaults()
	}
	// The default is not shown, because AMQP_URL may hold a password.
	url := flags.String("url", "",
		"`URL` of the broker (default AMQP_URL, else "+program.DefaultURL+")")
	strategy := flags.String("strategy", "perqueue", "`where` messages wait: "+named)
	kind := flags.String("type", "quorum", "`type` of the wait queues: quorum or classic")
	deliveries := flags.Int("deliveries", 200, "`number` of deliveries")
	seed := flags.Uint64("seed", 1, "`seed` of the receiver's plan")
	quiet := flags.Bool("quiet", false, "do not print a line for each attempt")
	log := flags.Bool("log", false, "show the log of the library and of Watermill on stderr")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}

	d := &demo{
		url: program.URL(*url), kind: topology.QueueType(*kind), strategy: *strategy, seed: *seed,
		quiet: *quiet,
		plan:  deal(min(max(*deliveries, 0), maxDeliveries), *seed), logger: watermill.NopLogger{},
		screen: screen{out: stdout, live: isTerminal(stdout) && !*log},
	}
	if *log {
		d.logger = watermill.NewStdLoggerWithOut(stderr, false, false)
	}

	var err error
	switch {
	case flags.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q", flags.Arg(0))
	case strategies[*strategy] == nil:
		err = fmt.Errorf("unknown strategy %q: %s", *strategy, named)
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
