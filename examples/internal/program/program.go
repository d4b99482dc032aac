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

// Main calls run and exits with 1 if it fails. The context ends at an interrupt; a second one
// ends the program at once. The queue's name belongs to this process alone.
func Main(name string, run func(ctx context.Context, url, queue string, out io.Writer) error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	url := os.Getenv("AMQP_URL")
	if url == "" {
		url = DefaultURL
	}
	err := run(ctx, url, fmt.Sprintf("millpond-%s-%d", name, os.Getpid()), os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		os.Exit(1)
	}
}

// Service is a router that runs, and the connections that its handlers use.
type Service struct {
	router  *message.Router
	client  io.Closer
	stopped chan error // takes what the router's Run returns
}

// Start runs the router and returns once all its handlers consume. If it fails, it closes the
// router and the client. The client may be nil. The end of ctx only ends Start: call Close.
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

// Close lets the messages in progress finish, hands over those that failed, and ends the
// connections.
func (s *Service) Close() error {
	err := errors.Join(s.router.Close(), <-s.stopped)
	if s.client != nil {
		err = errors.Join(err, s.client.Close())
	}
	return err
}
