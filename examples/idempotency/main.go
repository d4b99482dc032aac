// Idempotency is a service that bears the duplicates which at-least-once brings: it
// books payments, each once, however often its message comes.
//
//	payments ─► DelayedRetry ─► handler ─ one transaction ─┬─ inbox: the message's id
//	                                                       └─ account: the work itself
//
// The id and the work are committed together or not at all. So an attempt that
// failed leaves nothing behind and is retried, and a message whose work is done is
// known whenever it comes again: sent twice by its producer, delivered again because
// the connection or the process ended before the ack, or waiting twice because the
// broker's confirm came too late.
//
//	AMQP_URL=amqp://guest:guest@localhost:5672/ go run . payments.db
//
// The store is SQLite in a file, so that the example needs no other server and a
// killed process finds again what it has committed, which a map in memory could not
// show. With another database the two statements are the same; the inbox must be in
// the database of the work. What has no transaction, such as a mail or a call of a
// payment provider, is not covered: give it the id of the message as idempotency key.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/ThreeDotsLabs/watermill"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Getenv("AMQP_URL"), os.Args[1:]); err != nil {
		log.Fatal(err)
	}
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
	service := Service{URL: url, Queue: "payments", Handle: bank.Handle, Logger: watermill.NewStdLogger(false, false)}
	if err := service.Run(ctx); err != nil {
		return err
	}
	balance, err := bank.Balance(context.WithoutCancel(ctx))
	fmt.Println("balance", balance)
	return err
}
