// Command millpond shows the queues of millpond to people on call, and acts on them: it lists,
// moves and deletes messages that wait or are dead. See docs/operations.md.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/urfave/cli/v3"

	"github.com/millpond-go/millpond/topology/operate"
)

func main() {
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
	exitFound       = 1   // verify found a problem (see exitCodes); a letter is not there
	exitUsage       = 2   // wrong command, flag or argument
	exitFailed      = 3   // the broker could not be reached, or refused
	exitRefused     = 4   // it is not safe, and nothing was done
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
something that it could not look at, or there is no such letter; 2 wrong use; 3 the broker could not
be reached or refused; 4 not safe, nothing done; 130 interrupted, all that had begun is finished.`

// run is the program. It returns the exit code.
func run(ctx context.Context, args []string, io stdio) int {
	err := newApp(io).Run(ctx, args)
	if err != nil && !errors.Is(err, errFound) {
		fmt.Fprintf(io.err, "millpond: %v\n", err)
	}
	return exitCode(ctx, err)
}

func exitCode(ctx context.Context, err error) int {
	switch {
	case err == nil:
		return exitDone
	case errors.Is(err, errFound):
		return exitFound
	case errors.Is(err, errUsage), errors.Is(err, operate.ErrInvalidOptions),
		errors.Is(err, operate.ErrNoQueue):
		return exitUsage
	case errors.Is(err, errRefused), errors.Is(err, operate.ErrUnsafePeek),
		errors.Is(err, operate.ErrUnsafe):
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
			a.status(), a.plan(), a.declare(), a.verify(), a.dead(), a.waiting(), a.prune(),
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
type app struct{ stdio }

// queue returns the one argument of a command.
func queueOf(c *cli.Command) (string, error) {
	if c.NArg() != 1 {
		return "", usage("%s takes the name of one queue, not %d arguments", c.FullName(), c.NArg())
	}
	return c.Args().First(), nil
}
