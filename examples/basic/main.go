// Command basic is the README's sample as a program: a Watermill service with delayed retries.
//
// It handles the queue "orders" of the broker that AMQP_URL names, until it is interrupted.
// examples/webhooks is a longer program, which also proves that no message is lost.
package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millpond-go/millpond/examples/internal/program"
	"github.com/millpond-go/millpond/middleware"
)

func main() {
	program.Main("basic", func(ctx context.Context, url, _ string, out io.Writer) error {
		logger := watermill.NewStdLoggerWithOut(os.Stderr, false, false)
		return ServeOrders(ctx, url, func(msg *message.Message) error {
			fmt.Fprintf(out, "order %s, attempt %d\n", msg.Payload, middleware.Attempt(msg.Context()))
			return nil
		}, logger)
	})
}
