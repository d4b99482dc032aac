// Command basic is the README's sample as a program: a Watermill service with delayed retries.
//
// It handles the queue "orders" of the broker that AMQP_URL names, until it is interrupted.
// examples/webhooks is a longer program, which also proves that no message is lost.
package main

import (
	"cmp"
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millpond-go/millpond/middleware"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	url := cmp.Or(os.Getenv("AMQP_URL"), "amqp://guest:guest@127.0.0.1:5672/")
	err := ServeOrders(ctx, url, func(msg *message.Message) error {
		fmt.Printf("order %s, attempt %d\n", msg.Payload, middleware.Attempt(msg.Context()))
		return nil
	}, watermill.NewStdLogger(false, false))
	if err != nil {
		log.Fatal(err)
	}
}
