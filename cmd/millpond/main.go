// Command millpond shows the queues of millpond to people on call, and acts on them: it lists,
// moves and deletes messages that wait or are dead. See docs/operations.md.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
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
