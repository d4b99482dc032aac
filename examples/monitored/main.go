// Command monitored delivers webhooks as examples/webhooks does, without an end, and can be
// watched: metrics for Prometheus at /metrics, a readiness probe at /healthz, the log as JSON on
// stderr, and traces on stdout.
//
//	go run . --listen 127.0.0.1:9095
//
// docs/monitoring has the dashboard and the alerts for its metrics.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/millpond-go/millpond/examples/internal/program"
)

const usage = `Usage: monitored [--url URL] [--management URL] [--listen ADDRESS]
                 [--queue NAME] [--pace DURATION]

Delivers webhooks to a receiver that fails in many ways, until it is interrupted.
Its queues stay, as the queues of a service do.

Exit status: 0 after an interrupt, 1 if something went wrong, 2 for a wrong argument.

`

func main() { program.Exit(run) }

// config has the values of the flags.
type config struct {
	url, management, listen, queue string
	pace                           time.Duration
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	cfg, err := parse(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	}
	logger := slog.New(slog.NewJSONHandler(stderr, nil))
	if err := serve(ctx, cfg, logger, stdout); err != nil {
		logger.Error("Ended", "error", err.Error())
		return 1
	}
	return 0
}

// parse prints its error on stderr.
func parse(args []string, stderr io.Writer) (config, error) {
	flags := flag.NewFlagSet("monitored", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		fmt.Fprint(flags.Output(), usage)
		flags.PrintDefaults()
	}
	var cfg config
	// Defaults that may hold a password are not shown.
	flags.StringVar(&cfg.url, "url", "",
		"`URL` of the broker (default AMQP_URL, else "+program.DefaultURL+")")
	flags.StringVar(&cfg.management, "management", "",
		"`URL` of the management API, for messages that are held (default MANAGEMENT_URL, else none)")
	flags.StringVar(&cfg.listen, "listen", "127.0.0.1:9095", "`address` of /metrics and /healthz")
	flags.StringVar(&cfg.queue, "queue", "millpond-monitored", "`name` of the queue")
	flags.DurationVar(&cfg.pace, "pace", 200*time.Millisecond, "`time` between two webhooks")
	if err := flags.Parse(args); err != nil {
		return cfg, err
	}
	cfg.url = program.URL(cfg.url)
	cfg.management = cmp.Or(cfg.management, os.Getenv("MANAGEMENT_URL"))
	var err error
	switch {
	case flags.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q", flags.Arg(0))
	case cfg.pace <= 0:
		err = fmt.Errorf("--pace %v is not positive", cfg.pace)
	}
	if err != nil {
		fmt.Fprintf(stderr, "monitored: %v\n", err)
	}
	return cfg, err
}
