// Command idempotency is a service that bears the duplicates of at-least-once delivery. It books
// each payment once, however often its message comes.
//
//	payments ─► DelayedRetry ─► handler ─ one transaction ─┬─ inbox: the message's id
//	                                                       └─ account: the work itself
//
// The id and the work are committed together or not at all. So an attempt that failed leaves
// no trace and is retried, and a message whose work is done is known when it comes again. It may
// have been sent twice by its producer. It may have been delivered again, because the connection
// or the process ended before the ack. It may have waited twice, because the broker's confirm
// came too late.
//
//	AMQP_URL=amqp://guest:guest@localhost:5672/ go run . payments.db
//
// The store is SQLite in a file: the example needs no other server, and a process that was killed
// finds again the work that it had committed. In another database the two statements are the
// same; the inbox must be in the database of the work. Work without a transaction, such as a mail
// or a call of a payment provider, is not covered: give it the message's id as idempotency key.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millpond-go/millpond"
	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/examples/internal/program"
)

func main() {
	program.Exit(func(ctx context.Context, args []string, _, stderr io.Writer) int {
		if err := run(ctx, os.Getenv("AMQP_URL"), args); err != nil {
			fmt.Fprintf(stderr, "idempotency: %v\n", err)
			return 1
		}
		return 0
	})
}

func run(ctx context.Context, url string, args []string) (err error) {
	if len(args) != 1 || url == "" {
		return errors.New("usage: AMQP_URL=amqp://… idempotency <file>")
	}
	bank, err := OpenBank(ctx, args[0])
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, bank.Close()) }()
	logger := watermill.NewStdLogger(false, false)
	service := Service{URL: url, Queue: "payments", Handle: bank.Handle, Logger: logger}
	if err := service.Run(ctx); err != nil {
		return err
	}
	balance, err := bank.Balance(context.WithoutCancel(ctx))
	fmt.Println("balance", balance)
	return err
}

// Service handles a queue with retries.
type Service struct {
	URL, Queue string
	Handle     message.NoPublishHandlerFunc
	Logger     watermill.LoggerAdapter

	// Tests set these. The zero values are the defaults.
	policy backoff.Policy // 1s 5s 30s
	ready  func()         // called when it consumes
}

// Run handles messages until ctx is done.
func (s Service) Run(ctx context.Context) (err error) {
	policy := s.policy
	if policy == nil {
		policy = backoff.List{time.Second, 5 * time.Second, 30 * time.Second}
	}
	cfg := millpond.QuorumQueue(amqp.NewDurableQueueConfig(s.URL))
	retries, err := millpond.Open(ctx, cfg, policy, millpond.WithLogger(s.Logger))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, retries.Close()) }()
	router, err := message.NewRouter(message.RouterConfig{}, s.Logger)
	if err != nil {
		return err
	}
	router.AddMiddleware(retries.Retry.Middleware)
	router.AddConsumerHandler("payments", s.Queue, retries.Subscriber, s.Handle)
	if s.ready != nil {
		go func() {
			select {
			case <-router.Running():
				s.ready()
			case <-ctx.Done():
			}
		}()
	}
	return router.Run(ctx)
}
