// Command basic is a small Watermill service with delayed retries, and the
// proof that it loses nothing.
//
// It publishes four orders: one is handled at once, one after three failures,
// one has a permanent error and one always fails. Before that it deletes a wait
// queue, which the library has to notice. A connection of plain AMQP, which
// shares no code with the library, publishes the orders and finds out at the end
// where they are. The program exits with 1 unless each of them is in exactly one
// place, came there by the attempts it should, and never before its delay.
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
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millpond-go/millpond/topology"
)

const (
	defaultURL = "amqp://guest:guest@127.0.0.1:5672/"
	// limit is when the demo gives up; it takes about four seconds.
	limit = 30 * time.Second
)

const usage = `Usage: basic [--url URL] [--strategy quorum|classic] [--log]

Publishes four orders to a RabbitMQ, lets two of them fail for a while, and
counts at the end where each of them is. Its queues have a name of their own
and are deleted at the end, unless something is wrong.

Exit status: 0 if nothing was lost or left undecided, 1 if something was, 2 for
a wrong argument.

`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	d := demo{out: stdout, limit: limit, logger: watermill.NopLogger{}}
	url := os.Getenv("AMQP_URL")
	if url == "" {
		url = defaultURL
	}
	flags := flag.NewFlagSet("basic", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		fmt.Fprint(flags.Output(), usage)
		flags.PrintDefaults()
	}
	// The default is not shown, for AMQP_URL may hold a password.
	flags.StringVar(&d.url, "url", "", "`URL` of the broker (default AMQP_URL, else "+defaultURL+")")
	strategy := flags.String("strategy", "quorum", "`type` of the wait queues, quorum or classic")
	log := flags.Bool("log", false, "show the log of the library and of Watermill on stderr")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	}
	if d.url == "" {
		d.url = url
	}
	switch d.strategy.Type = topology.QueueType(*strategy); {
	case flags.NArg() > 0:
		fmt.Fprintf(stderr, "basic: unexpected argument %q\n", flags.Arg(0))
		return 2
	case d.strategy.Type != topology.Quorum && d.strategy.Type != topology.Classic:
		fmt.Fprintf(stderr, "basic: unknown strategy %q: quorum or classic\n", *strategy)
		return 2
	}
	if *log {
		d.logger = watermill.NewStdLoggerWithOut(stderr, false, false)
	}

	if err := d.run(ctx); err != nil {
		fmt.Fprintf(stderr, "basic: %v\n", err)
		return 1
	}
	return 0
}
