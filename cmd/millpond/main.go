// Command millpond shows the queues of millpond to people on call, and acts on them: it lists,
// moves and deletes messages that wait or are dead, and stops and starts services. See
// docs/operations.md.
package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/cmd/millpond/internal/history"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/operate"
)

func main() {
	// A pipe that is closed, as by head, is an error of the next write: the tool gives the messages
	// that it holds back in their order. The signal would kill it.
	signal.Ignore(syscall.SIGPIPE)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends it at once
	code := run(ctx, os.Args, stdio{
		in: os.Stdin, out: os.Stdout, err: os.Stderr, terminal: isTerminal, environment: os.Getenv,
	})
	stop()
	os.Exit(code)
}

// The exit codes.
const (
	exitDone        = 0
	exitFound       = 1   // a problem was found (see exitCodes); a letter or a queue is not there
	exitUsage       = 2   // wrong command, flag or argument
	exitFailed      = 3   // the broker could not be reached, or refused
	exitRefused     = 4   // it is not safe, and nothing was done; a ramp has left the rest
	exitInterrupted = 130 // by a signal; all that had begun is finished
)

var (
	errUsage   = errors.New("wrong use")
	errFound   = errors.New("found")
	errRefused = errors.New("refused")
)

func usage(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{errUsage}, args...)...)
}

const exitCodes = `Exit codes: 0 done; 1 verify found something critical, with --strict also
something that it could not look at, or a dry run of dead replay found something critical, or
there is no such letter, brake or blocked key, or no queue to return a stranded message to; 2
wrong use; 3 the broker could not be reached or refused; 4 not safe, nothing done, or a ramp has
stopped; 130 interrupted, all that had begun is finished.`

// run is the program. It returns the exit code.
func run(ctx context.Context, args []string, io stdio) int {
	err := newApp(io).Run(ctx, args)
	code := exitDone
	for _, part := range parts(err) {
		if !isFinding(part) {
			for line := range strings.SplitSeq(part.Error(), "\n") {
				fmt.Fprintf(io.err, "millpond: %s\n", harmless(line))
			}
		}
		if one := exitCode(ctx, part); code <= exitFound || one == exitInterrupted {
			code = one
		}
	}
	return code
}

// isFinding reports whether the output of the command has said the error.
func isFinding(err error) bool {
	var none *notThere
	return errors.Is(err, errFound) && !errors.As(err, &none)
}

func exitCode(ctx context.Context, err error) int {
	switch {
	case errors.Is(err, errFound):
		return exitFound
	case errors.Is(err, errUsage), errors.Is(err, operate.ErrInvalidOptions),
		errors.Is(err, operate.ErrNoQueue):
		return exitUsage
	case errors.Is(err, errRefused), errors.Is(err, operate.ErrUnsafePeek),
		errors.Is(err, operate.ErrUnsafe), errors.Is(err, operate.ErrStopped),
		errors.Is(err, operate.ErrUnsettled):
		return exitRefused
	case ctx.Err() != nil:
		return exitInterrupted
	}
	return exitFailed
}

func newApp(io stdio) *cli.Command {
	a := app{stdio: io}
	onUsageError := func(_ context.Context, _ *cli.Command, err error, _ bool) error {
		return usage("%v", err)
	}
	root := &cli.Command{
		Name:                      "millpond",
		Usage:                     "dead letters and waiting messages on RabbitMQ, for people on call",
		Description:               exitCodes,
		Writer:                    io.out,
		ErrWriter:                 io.err,
		Flags:                     a.globalFlags(),
		EnableShellCompletion:     true,
		DisableSliceFlagSeparator: true,
		ExitErrHandler:            func(context.Context, *cli.Command, error) {}, // run does
		Commands: []*cli.Command{
			a.status(), a.plan(), a.declare(), a.verify(), a.dead(), a.waiting(), a.stranded(), a.prune(),
			a.order(), a.brake(), a.doctor(), a.serve(), a.auditLog(),
		},
	}
	var prepare func(c *cli.Command)
	prepare = func(c *cli.Command) {
		c.OnUsageError = onUsageError
		if len(c.Commands) > 0 {
			c.Action = func(_ context.Context, c *cli.Command) error {
				if c.Args().Present() {
					return usage("there is no command %q; see %s --help", c.Args().First(), c.FullName())
				}
				return cli.ShowSubcommandHelp(c)
			}
		}
		for _, sub := range c.Commands {
			prepare(sub)
		}
	}
	prepare(root)
	return root
}

// app has the methods that all commands share.
type app struct {
	stdio
	// What a command has seen that looks again and again; nil for another command.
	last *operate.View
	past *history.History
}

const oneQueue = "the name of one queue"

// argument returns the one argument of a command. about names it in an error.
func argument(c *cli.Command, about string) (string, error) {
	if c.NArg() != 1 {
		return "", usage("%s takes %s, not %d arguments", c.FullName(), about, c.NArg())
	}
	return c.Args().First(), nil
}

const (
	flagURL          = "url"
	flagManagement   = "management"
	flagNoManagement = "no-management"
	flagNoPolicies   = "no-policies"
	flagPolicy       = "policy"
	flagOldPolicy    = "old-policy"
	flagStrategy     = "strategy"
	flagType         = "type"
	flagPrefix       = "prefix"
	flagReturnTo     = "return-to"
	flagDLQ          = "dlq"
	flagProvisioned  = "pre-provisioned"
	flagJSON         = "json"
	flagAudit        = "audit"
	flagBy           = "by"
)

// defaultURL is RabbitMQ's own.
const defaultURL = "amqp://guest:guest@localhost:5672/"

// waits are the values of the flags that say how messages wait.
type waits struct {
	kind     topology.QueueType
	prefix   string
	returnTo []string
	delays   backoff.List // of the policy, in its order
	dead     topology.DeadLetters
}

// strategies makes a strategy from the flags for each value of --strategy.
var strategies = map[string]func(w waits) (topology.Strategy, error){
	"perqueue": func(w waits) (topology.Strategy, error) {
		return topology.PerQueue{Type: w.kind, Prefix: w.prefix, Via: w.returnTo, Dead: w.dead}, nil
	},
	"perattempt": func(w waits) (topology.Strategy, error) {
		return topology.PerAttempt{Delays: w.delays, Type: w.kind, Dead: w.dead}, nil
	},
	"levels": func(w waits) (topology.Strategy, error) {
		return topology.Levels{Type: w.kind, Prefix: w.prefix, Dead: w.dead}, nil
	},
	"delayed": func(w waits) (topology.Strategy, error) {
		return topology.DelayedExchange{
			Type: w.kind, Prefix: w.prefix, Via: w.returnTo, Dead: w.dead,
		}, nil
	},
	nativeStrategy:  nativeOf,
	inOrderStrategy: inOrderOf,
	"shared": func(w waits) (topology.Strategy, error) {
		return topology.Shared{Type: w.kind, Prefix: w.prefix, Via: w.returnTo, Dead: w.dead}, nil
	},
}

// returning are the strategies with --return-to.
var returning = []string{"perqueue", "shared", "delayed"}

func strategyNames() string { return strings.Join(slices.Sorted(maps.Keys(strategies)), ", ") }

func (a app) globalFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{
			Name: flagURL, Usage: "AMQP `URL` of the broker; " + defaultURL + " without it",
			Sources: cli.EnvVars("AMQP_URL"), HideDefault: true,
		},
		&cli.StringFlag{
			Name: flagManagement, Usage: "`URL` of its management API, which shows all queues: " +
				"http://user:password@host:15672; the host and the user of --url without it",
			Sources: cli.EnvVars("MILLPOND_MANAGEMENT_URL"), HideDefault: true,
		},
		&cli.BoolFlag{
			Name: flagNoManagement, Usage: "do not ask the management API: the flags below say how " +
				"messages wait",
		},
		&cli.BoolFlag{
			Name: flagNoPolicies, Usage: "no policy sets delivery-limit on the queues to read: " +
				"you say so, and nothing checks it; for brokers without --management",
		},
		&cli.StringFlag{
			Name: flagPolicy, Usage: "the `DELAYS` of the queue's policy, as in 1s,10s,100s",
		},
		&cli.StringFlag{
			Name: flagStrategy, Usage: "how messages wait: " + strategyNames(), Value: "perqueue",
		},
		&cli.StringFlag{Name: flagType, Usage: "of the wait queues: quorum or classic", Value: "quorum"},
		&cli.StringFlag{
			Name: flagPrefix, Usage: "`PREFIX` of shared queues, where the service has set one",
		},
		&cli.StringSliceFlag{
			Name: flagReturnTo, Usage: "`EXCHANGE` that retries pass on their way back, " +
				"where the service has named one; may be repeated",
		},
		&cli.StringFlag{
			Name: flagDLQ, Usage: "`NAME` of the dead-letter queue, where it is not <queue>.dlq",
		},
		&cli.BoolFlag{Name: flagProvisioned, Usage: "declare nothing, not even to compare arguments"},
		&cli.BoolFlag{Name: flagJSON, Usage: "write JSON"},
		&cli.StringFlag{
			Name: flagAudit, Usage: "`FILE` in which the tool and the page note who did what; " +
				"~/.local/state/millpond/audit.jsonl without it",
			Sources: cli.EnvVars("MILLPOND_AUDIT"),
		},
		&cli.StringFlag{
			Name: flagBy, Usage: "your `NAME`, for the audit log and on brakes and edited letters; " +
				"user@host without it", Sources: cli.EnvVars("MILLPOND_BY"),
		},
	}
}

// strategy makes the strategy that the flags name; the policy has these delays.
func (a app) strategy(c *cli.Command, delays backoff.List) (topology.Strategy, error) {
	name := c.String(flagStrategy)
	strategy, ok := strategies[name]
	if !ok {
		return nil, usage("--strategy %q is unknown: use one of %s", name, strategyNames())
	}
	w := waits{
		kind: topology.QueueType(c.String(flagType)), prefix: c.String(flagPrefix),
		returnTo: c.StringSlice(flagReturnTo), delays: delays,
	}
	if len(w.returnTo) > 0 && !slices.Contains(returning, name) {
		return nil, usage("--%s: with %s, messages return through no exchange of yours, only with %s",
			flagReturnTo, name, strings.Join(returning, ", "))
	}
	if dlq := c.String(flagDLQ); dlq != "" {
		if dlq == strandedQueue(c) {
			return nil, usage("--dlq %q is the stranded queue, whose messages are no dead letters: "+
				"list and return them with millpond stranded", dlq)
		}
		w.dead.Name = func(string) string { return dlq }
	}
	return strategy(w)
}

// delays reads the delays of a flag; nil without it.
func delays(c *cli.Command, flag string) (list backoff.List, err error) {
	if c.String(flag) == "" {
		return nil, nil
	}
	for text := range strings.SplitSeq(c.String(flag), ",") {
		d, err := time.ParseDuration(strings.TrimSpace(text))
		switch {
		case err != nil || d < 0 || d == 0 && list != nil:
			return nil, usage("--%s: %q is no delay: write 500ms, 10s, 2m, 1h30m", flag, text)
		case d == 0: // a first retry at once needs no wait queue
			list = backoff.List{}
		default:
			list = append(list, d)
		}
	}
	return list, nil
}

// planOf computes a queue's plan for the policy of a flag, without a broker.
func (a app) planOf(c *cli.Command, queue, flag string) (plan topology.Plan, err error) {
	list, err := delays(c, flag)
	if err != nil {
		return plan, err
	}
	strategy, err := a.strategy(c, list)
	if err != nil {
		return plan, err
	}
	if c.String(flagStrategy) == inOrderStrategy {
		list = backoff.List{} // messages wait in the line, for any delay
	}
	if plan, err = strategy.Plan(queue, list); err != nil {
		prefix := map[string]string{flagOldPolicy: "--" + flagOldPolicy + ": "}[flag]
		return plan, usage("%s%v", prefix, err)
	}
	return plan, nil
}
