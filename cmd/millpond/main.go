// Command millpond puts the queues of millpond into the hands of whoever is on
// call: what waits, what is dead, and what to do about it. See docs/operations.md.
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
	code := run(ctx, os.Args, stdio{in: os.Stdin, out: os.Stdout, err: os.Stderr, terminal: isTerminal, environment: os.Getenv})
	stop()
	os.Exit(code)
}
