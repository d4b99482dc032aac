// Package program holds the parts that the example programs share: reading AMQP_URL, ending at
// a signal, and running a router.
package program

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/ThreeDotsLabs/watermill/message"
)

// DefaultURL names the broker where AMQP_URL is not set.
const DefaultURL = "amqp://guest:guest@127.0.0.1:5672/"

// URL returns the broker's address: the given one, else AMQP_URL, else DefaultURL.
func URL(given string) string {
	for _, url := range []string{given, os.Getenv("AMQP_URL")} {
		if url != "" {
			return url
		}
	}
	return DefaultURL
}

// Exit ends the process with the code that run returns. The context of run ends at an interrupt;
// a second interrupt ends the process at once.
func Exit(run func(ctx context.Context, args []string, stdout, stderr io.Writer) int) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// Main runs a program without arguments as Exit does. It gives run the broker's address and a name
// for its queue, which no other process uses, and prints the error of run.
func Main(name string, run func(ctx context.Context, url, queue string, out io.Writer) error) {
	Exit(func(ctx context.Context, _ []string, stdout, stderr io.Writer) int {
		queue := fmt.Sprintf("millpond-%s-%d", name, os.Getpid())
		if err := run(ctx, URL(""), queue, stdout); err != nil {
			fmt.Fprintf(stderr, "%s: %v\n", name, err)
			return 1
		}
		return 0
	})
}

// Service is a router that runs, and the connections that its handlers use.
type Service struct {
	router  *message.Router
	client  io.Closer
	stopped chan error // has the result of the router's Run
}

// Start runs the router and returns once all its handlers consume. If it fails, it closes the
// router and the client. The client may be nil. The end of ctx ends Start alone: call Close.
func Start(ctx context.Context, router *message.Router, client io.Closer) (*Service, error) {
	s := &Service{router: router, client: client, stopped: make(chan error, 1)}
	go func() { s.stopped <- router.Run(context.WithoutCancel(ctx)) }()
	select {
	case <-router.Running():
		return s, nil
	case err := <-s.stopped:
		s.stopped <- err
		return nil, s.Close()
	case <-ctx.Done():
		return nil, errors.Join(context.Cause(ctx), s.Close())
	}
}

// Close lets the messages in progress finish, hands over the failed ones, and ends the connections.
func (s *Service) Close() error {
	err := errors.Join(s.router.Close(), <-s.stopped)
	if s.client != nil {
		err = errors.Join(err, s.client.Close())
	}
	return err
}

// Await receives n values, or returns an error that names the awaited thing.
func Await[T any](ctx context.Context, from <-chan T, n int, awaited string) error {
	for range n {
		select {
		case <-from:
		case <-ctx.Done():
			return fmt.Errorf("waited for %s: %w", awaited, context.Cause(ctx))
		}
	}
	return nil
}
