//go:build !plan9 && !wasip1

package middleware_test

import (
	"fmt"
	"io"
	"net/url"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/middleware/header"
)

// Retry what may pass, and give up at once on all the rest.
func ExampleNetworkErrors() {
	handle := func(msg *message.Message) error {
		if middleware.Attempt(msg.Context()) == 1 {
			return &url.Error{
				Op: "Post", URL: "http://stock", Err: io.EOF,
			} // the server closed the connection
		}
		return errInvalidOrder
	}
	run(handle,
		middleware.WithClassifier(middleware.NetworkErrors()),
		middleware.WithDefaultClass(header.ClassPermanent),
	)
	// Output: dead-lettered (permanent) after 2 attempts, delays 1s
}

// statusError is the error of a program's own HTTP client.
type statusError int

func (e statusError) Error() string { return fmt.Sprintf("status %d", int(e)) }

func ExamplePermanentIf() {
	rejected := func(err error) bool {
		status, ok := err.(statusError)
		return ok && status >= 400 && status < 500
	}
	run(func(*message.Message) error { return statusError(410) },
		middleware.WithClassifier(middleware.PermanentIf(rejected)))
	// Output: dead-lettered (permanent) after 1 attempt
}

func ExampleRetryableIf() {
	unavailable := func(err error) bool { return err == statusError(503) }
	run(func(*message.Message) error { return statusError(503) },
		middleware.WithClassifier(middleware.RetryableIf(unavailable)),
		middleware.WithDefaultClass(header.ClassPermanent),
		middleware.WithMaxAttempts(2),
	)
	// Output: dead-lettered (exhausted) after 2 attempts, delays 1s
}
