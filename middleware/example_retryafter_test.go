package middleware_test

import (
	"fmt"
	"net/http"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millpond-go/millpond/middleware"
)

// answer is what a server that is asked too often says.
func answer(retryAfter string) *http.Response {
	return &http.Response{StatusCode: http.StatusTooManyRequests, Status: "429 Too Many Requests", Header: http.Header{"Retry-After": {retryAfter}}}
}

func ExampleRetryAfterHeader() {
	run(func(msg *message.Message) error {
		if middleware.Attempt(msg.Context()) == 3 {
			return nil
		}
		resp := answer("7") // the policy waits for 1s, then for 10s
		return middleware.RetryAfterHeader(fmt.Errorf("deliver: %s", resp.Status), resp.Header, time.Hour)
	})
	// Output: handled after 3 attempts, delays 7s 10s
}

// A rate limit says nothing about the message: with Snooze it costs no attempt.
func ExampleParseRetryAfter() {
	limited := 0
	run(func(msg *message.Message) error {
		resp := answer("60")
		if limited++; limited > 3 {
			return nil
		}
		err := fmt.Errorf("deliver: %s", resp.Status)
		if wait, asked := middleware.ParseRetryAfter(resp.Header); asked {
			return middleware.Snooze(err, wait)
		}
		return err
	})
	// Output: handled after 1 attempt, snoozed 1m0s 1m0s 1m0s
}
