// Command monitored delivers webhooks as examples/webhooks does, without an end,
// and lets itself be watched: metrics for Prometheus at /metrics, a readiness probe
// at /healthz, the log as JSON on stderr, and traces on stdout.
//
//	go run . --listen 127.0.0.1:9095
//
// docs/monitoring has the dashboard and the alerts that belong to its metrics.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"
)

const defaultURL = "amqp://guest:guest@127.0.0.1:5672/"

const usage = `Usage: monitored [--url URL] [--management URL] [--listen ADDRESS] [--queue NAME] [--pace DURATION]

Delivers webhooks to a receiver that fails in many ways, until it is interrupted.
Its queues stay, as those of a service do.

Exit status: 0 after an interrupt, 1 if something went wrong, 2 for a wrong argument.

`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// config is what the flags say.
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

// parse says on stderr what is wrong.
func parse(args []string, stderr io.Writer) (config, error) {
	flags := flag.NewFlagSet("monitored", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		fmt.Fprint(flags.Output(), usage)
		flags.PrintDefaults()
	}
	var cfg config
	// Defaults are not shown where they may hold a password.
	flags.StringVar(&cfg.url, "url", "", "`URL` of the broker (default AMQP_URL, else "+defaultURL+")")
	flags.StringVar(&cfg.management, "management", "",
		"`URL` of the management API, for messages that are held (default MANAGEMENT_URL, else none)")
	flags.StringVar(&cfg.listen, "listen", "127.0.0.1:9095", "`address` of /metrics and /healthz")
	flags.StringVar(&cfg.queue, "queue", "millpond-monitored", "`name` of the queue")
	flags.DurationVar(&cfg.pace, "pace", 200*time.Millisecond, "`time` between two webhooks")
	if err := flags.Parse(args); err != nil {
		return cfg, err
	}
	for _, fallback := range []struct {
		value *string
		or    []string
	}{{&cfg.url, []string{os.Getenv("AMQP_URL"), defaultURL}}, {&cfg.management,
		[]string{os.Getenv("MANAGEMENT_URL")}}} {
		for _, or := range fallback.or {
			if *fallback.value == "" {
				*fallback.value = or
			}
		}
	}
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
